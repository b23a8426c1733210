"""The speed-ups that this library promises, and whether measurements reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flopping.cost.protocol import plan_records
from flopping.cost.records import EXPORTED, Record, Setting
from flopping.cost.timing import Timing
from flopping.lab.bench.launches import count_launches
from flopping.models import registered_name

COMPILED, BLOCKS = "compiled", "blocks"
"""Modes of `flopping bench`: the network compiled as a whole, or each kind of block once."""
COMPILED_SPEEDUPS = {
    "E(ViT-S)": 1.72,
    "E(ResMLP-T12)": 1.84,
    "E(ResMLP-S24)": 1.90,
    "E(ConvNeXt-S (iso.))": 1.78,
    "E(ViT-B)": 1.93,
    "E(ResMLP-B24)": 1.95,
    "E(ConvNeXt-B (iso.))": 1.93,
}
"""Of networks of the paper, when they are compiled."""
LARGER_GROUPS = {"flipflop E(ViT-L)": 2.8, "octic E(ViT-L)": 3.0, "octic H(ViT-L)": 1.45}
"""Of networks for larger groups, compiled block by block, at a batch of 4."""
SPEEDUPS: dict[tuple[str, str], dict[str, float]] = {
    ("inference", COMPILED): COMPILED_SPEEDUPS,
    ("inference", BLOCKS): {"E(ViT-S)": 1.67, "E(ResNet-50)": 1.45, **LARGER_GROUPS},
    ("training", BLOCKS): {
        "E(ViT-S)": 1.65,
        "E(ResMLP-S24)": 1.85,
        "E(ConvNeXt-S (iso.))": 1.70,
        "E(ResNet-50)": 1.4,
    },
    ("inference", EXPORTED): dict.fromkeys(("E(ViT-S)", "E(ResMLP-S24)"), 1.6),
    ("inference", "operations"): dict.fromkeys(COMPILED_SPEEDUPS, 1.5),
    ("inference", "eager"): dict.fromkeys(COMPILED_SPEEDUPS, 1.35),
}
"""How many times the throughput of X that of E(X) or H(X) must be at least, by task and mode."""
COMPILE_SECONDS = {("E(ViT-S)", "inference", BLOCKS): 15.0}
"""How long `flopping.compile_blocks` may take, from an empty cache."""
LAUNCHES = {"E(ViT-S)": {"eager": 4.0, "operations": 2.5}}
"""How many times the launches of X a forward pass may have, by mode."""


class Goal(NamedTuple):
    """A speed-up that is promised, in the setting that it is promised for."""

    name: str
    setting: Setting
    least: float

    def plan(self, **origin: Any) -> list[Record]:
        """The records of X and E(X) that have to be measured."""
        return plan_records([self.name], [self.setting], **origin)

    def measured(self, records: Sequence[Record]) -> tuple[Record, Record] | None:
        """The last complete measurement of both, in one run."""
        found = None
        every = {(r.run, r.model): r for r in records if r.setting == self.setting and r.seconds and not r.problem}
        for (run, model), e in every.items():
            x = every.get((run, e.baseline or ""))
            if model == registered_name(self.name) and x is not None:
                found = x, e
        return found


def goals() -> list[Goal]:
    """All speed-ups that are promised, for two cores: the paper's networks first, which take less time."""
    found = [
        Goal(name, Setting(mode, task, "cpu", "float32", batch=4 if name in LARGER_GROUPS else 8, threads=2), least)
        for (task, mode), networks in SPEEDUPS.items()
        for name, least in networks.items()
    ]
    return sorted(found, key=lambda goal: goal.name not in COMPILED_SPEEDUPS)


class GoalResult(NamedTuple):
    """What is promised, the figure that was measured, and whether it is good enough; None where it wasn't measured."""

    what: str
    found: str
    goal: str
    met: bool | None


def goal_results(records: Sequence[Record]) -> Iterator[GoalResult]:
    """Of every goal, from the records of its setting."""
    for goal in goals():
        what = f"{goal.name}, {goal.setting.task}, {goal.setting.mode}"
        pair, least = goal.measured(records), f">= {goal.least:.2f}"
        if pair is None:
            yield GoalResult(what, "", least, None)
            continue
        x, e = pair
        speedup = Timing(x.seconds).interval_over(Timing(e.seconds))
        text = f"{speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]"
        yield GoalResult(what, text, least, speedup.value >= goal.least)
        seconds, most = e.compile_seconds, COMPILE_SECONDS.get((goal.name, goal.setting.task, goal.setting.mode))
        if seconds is not None and most is not None:
            yield GoalResult(f"{goal.name}, compile time", f"{seconds:.1f} s", f"<= {most:g} s", seconds <= most)


def launch_results() -> Iterator[GoalResult]:
    """Of the goals for launches, which are counted here and now."""
    for name, modes in LAUNCHES.items():
        for row in count_launches(name, batch=1, compiled=False):
            if row.mode in modes:
                found, most = f"{row.launches} of {row.x_launches}", modes[row.mode]
                met = row.launches <= most * row.x_launches
                yield GoalResult(f"{name}, launches, {row.mode}", found, f"<= {most:g} x", met)
