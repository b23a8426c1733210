"""The speed-ups that this library promises, and whether measurements reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flopping.cost.plan import Case, cases
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


@dataclass(frozen=True)
class Verdict:
    """A goal, and what was measured."""

    name: str
    mode: str
    goal: float
    speedup: float

    @property
    def met(self) -> bool:
        return self.speedup >= self.goal


def goal_cases() -> list[Case]:
    """What has to be measured for all verdicts."""
    return [c for mode, s in SETTINGS.items() for c in cases([name for name in GOALS if mode in GOALS[name]], [s])]


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Speed-ups over the baseline of the same run, in the settings that have a goal."""
    baselines = {(record.run, record.model, record.setting): record for record in records}
    for record in records:
        goal = GOALS.get(record.name, {}).get(record.setting.mode)
        if goal is None or record.setting != SETTINGS[record.setting.mode] or record.baseline is None:
            continue
        other = baselines.get((record.run, record.baseline, record.setting))
        if other is not None and other.timing is not None and record.timing is not None:
            yield Verdict(record.name, record.setting.mode, goal, other.timing.over(record.timing))
