"""The speed-up of E(X) over X in ONNX Runtime: both exported, timed in turn in one process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from timm.data import resolve_model_data_config

from flopping.cost.records import EXPORTED, Record, Setting
from flopping.cost.timing import Interval, Timing, interleave
from flopping.cost.worker import describe
from flopping.deploy import onnx_file
from flopping.deploy.exporter import check, make_images
from flopping.deploy.formats import require_modules
from flopping.errors import UsageError, as_usage_error
from flopping.machine import Machine
from flopping.models import targets
from flopping.models.zoo import names_in_paper, ordinary_twin, registered_name

GOAL = 1.5
"""The speed-up that is promised."""
CHECKED = 2
"""Images on which each graph is compared with its network."""


@dataclass(frozen=True)
class Pair:
    """An equivariant network and its ordinary twin, by their names in the paper and in the registry."""

    name: str
    twin: str
    model: str
    twin_model: str


@dataclass(frozen=True)
class Compared:
    """A pair in ONNX Runtime, round by round."""

    pair: Pair
    batch: int
    threads: int
    timing: Timing
    twin_timing: Timing
    megabytes: float
    twin_megabytes: float
    difference: float
    """The larger of the two differences between a graph's logits and its network's, as a share of the largest."""

    @property
    def speedup(self) -> Interval:
        return self.twin_timing.interval_over(self.timing)

    @property
    def met(self) -> bool:
        return self.speedup.value >= GOAL

    def as_dict(self) -> dict[str, Any]:
        value, low, high = self.speedup
        return {
            "name": self.pair.name,
            "twin": self.pair.twin,
            "batch": self.batch,
            "threads": self.threads,
            "rounds": len(self.timing.seconds),
            "ms": 1e3 * self.timing.median,
            "twin_ms": 1e3 * self.twin_timing.median,
            "speedup": value,
            "interval": [low, high] if len(self.timing.seconds) > 1 else None,
            "goal": GOAL,
            "met": self.met,
            "megabytes": self.megabytes,
            "twin_megabytes": self.twin_megabytes,
            "difference": self.difference,
        }

    def records(self, *, warmup: int, machine: Machine, command: str, time: str) -> list[Record]:
        """The twin and the network in the format of `flopping bench`, for the report."""
        common: dict[str, Any] = {"run": uuid4().hex[:12], "warmup": warmup, "machine": machine, "command": command}
        common["setting"] = Setting(EXPORTED, "inference", "cpu", "float32", self.batch, self.threads)
        common |= {"time": time, "compile_seconds": None, "memory": None, "noise": None}
        pair = self.pair
        twin = {"model": pair.twin_model, "paper": pair.twin, "baseline": None, "seconds": self.twin_timing.seconds}
        own = {"model": pair.model, "paper": pair.name, "baseline": pair.twin_model, "seconds": self.timing.seconds}
        return [Record(**common, **one, **describe(str(one["model"]), False)) for one in (twin, own)]


def pairs(names: Sequence[str]) -> list[Pair]:
    """Networks beside their twins.

    >>> pairs(["e(vit-s)"])[0].twin, pairs(["E(ResMLP-S24)"])[0].twin_model
    ('ViT-S', 'resmlp_24_224')
    """
    require_modules()
    papers = names_in_paper()
    found = []
    for name in names:
        with as_usage_error(ValueError):
            model = registered_name(name)
        twin = ordinary_twin(model)
        if twin is None:
            raise UsageError(f"{name!r} has no ordinary twin to be compared with: name networks like E(ViT-S)")
        found.append(Pair(papers[model], papers[twin], model, twin))
    return found


def compare(
    pair: Pair,
    folder: Path,
    *,
    batch: int,
    threads: int,
    repeats: int,
    warmup: int = 3,
    progress: Callable[[str], object] = lambda text: None,
) -> Compared:
    """Export both into a folder, compare their graphs with the networks, and time them in turn."""
    runs: dict[str, Callable[[], object]] = {}
    sizes, differences = [], []
    for name, registered in ((pair.name, pair.model), (pair.twin, pair.twin_model)):
        progress(f"Exporting {name}")
        torch.manual_seed(0)
        model = targets.load(registered).eval()
        size = resolve_model_data_config(model)["input_size"]
        path = folder / f"{registered}.onnx"
        onnx_file.require_small(model, name)
        onnx_file.write_graph(model, size, path)
        differences.append(check(onnx_file.read(path), model, [make_images(model, size, CHECKED)]).difference)
        images = {onnx_file.INPUT: make_images(model, size, batch).numpy()}
        runs[name] = partial(onnx_file.start_session(path, threads).run, [onnx_file.OUTPUT], images)
        sizes.append(os.path.getsize(path) / 1e6)
    progress(f"Timing {pair.name} against {pair.twin}")
    timings = interleave(runs, repeats, warmup)
    return Compared(pair, batch, threads, timings[pair.name], timings[pair.twin], sizes[0], sizes[1], max(differences))


def compared(chosen: Sequence[Pair], **options: Any) -> Iterator[Compared]:
    """One pair after the other, in a temporary folder."""
    for pair in chosen:
        with tempfile.TemporaryDirectory(prefix="flopping-") as folder:
            yield compare(pair, Path(folder), **options)
