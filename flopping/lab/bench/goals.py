"""The speed-ups that this library promises, and whether measurements reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flopping.cost.protocol import plan_records
from flopping.cost.records import Record, Setting

GOALS: dict[str, dict[str, float]] = {
    "E(ViT-S)": {"eager": 1.0, "compiled": 1.6},
    "E(ViT-B)": {"compiled": 1.7},
    "E(ResMLP-S24)": {"eager": 1.0, "compiled": 1.7},
    "E(ResMLP-B24)": {"compiled": 1.8},
    "E(ConvNeXt-S (iso.))": {"eager": 1.0, "compiled": 1.5},
    "E(ConvNeXt-B (iso.))": {"compiled": 1.7},
}
"""How many times the throughput of X that of E(X) must be at least, by mode."""
SETTINGS = {mode: Setting(mode, "inference", "cpu", "float32", batch=8, threads=2) for mode in ("eager", "compiled")}
"""The settings that the goals are set for."""


class Verdict(NamedTuple):
    """A goal, and what was measured."""

    name: str
    mode: str
    speedup: float
    goal: float


def plan_goals(**origin: Any) -> list[Record]:
    """What has to be measured for all verdicts."""
    return [
        record
        for mode, setting in SETTINGS.items()
        for record in plan_records([name for name in GOALS if mode in GOALS[name]], [setting], **origin)
    ]


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Speed-ups over the baseline of the same run, in the settings that have a goal."""
    every = {(record.run, record.model, record.setting): record for record in records}
    for record in records:
        goal = GOALS.get(record.name, {}).get(record.setting.mode)
        x = every.get((record.run, record.baseline or "", record.setting))
        if goal and x and x.timing and record.timing and record.setting in SETTINGS.values():
            yield Verdict(record.name, record.setting.mode, x.timing.interval_over(record.timing).value, goal)
