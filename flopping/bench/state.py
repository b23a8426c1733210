"""What is known of a network while it is being measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from flopping.bench.plan import Case
from flopping.bench.records import Memory


@dataclass
class State:
    """What is known of a case so far."""

    case: Case
    key: str
    params: int = 0
    input_size: tuple[int, ...] = ()
    flops: float | None = None
    macs: float | None = None
    modules: int = 0
    """How much there is to compile."""
    memory: Memory | None = None
    compile_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    run: str = ""
    problem: str | None = None
    remark: str | None = None
    """What is missing from the figures."""
    stage: str = "new"
    """new, filled (its memory is known), ready (it runs in turn with others), done."""

    @property
    def work(self) -> float:
        """FLOPs of a batch; where they aren't known, as if each weight were used once."""
        return self.case.setting.batch * (self.flops or 2.0 * self.params)


def alive(states: Sequence[State]) -> list[State]:
    return [state for state in states if state.problem is None]


def job_of(state: State) -> dict[str, Any]:
    return {"key": state.key, "model": state.case.model, "setting": asdict(state.case.setting)}


def jobs_of(states: Sequence[State]) -> list[dict[str, Any]]:
    return [job_of(state) for state in states]


def bytes_needed(states: Sequence[State]) -> int:
    """Bytes for several networks in one process, of which one runs at a time; every one may keep its peak."""
    return 2**30 + sum(state.memory.peak if state.memory else 8 * state.params for state in states)


def new_run() -> str:
    return uuid4().hex[:12]
