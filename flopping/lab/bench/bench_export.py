"""The speed-up of E(X) over X in ONNX Runtime: both exported, timed in turn in one process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from timm.data import resolve_model_data_config

from flopping.cost.protocol import plan_records
from flopping.cost.records import EXPORTED, Record, Setting
from flopping.cost.timing import Interval, Timing, interleave
from flopping.cost.worker import describe
from flopping.deploy import onnx_file
from flopping.deploy.exporter import check, make_images
from flopping.errors import UsageError
from flopping.lab.bench.goals import GOAL_OF_EXPORT as GOAL
from flopping.models import targets

CHECKED = 2
"""Images on which each graph is compared with its network."""

Pair = tuple[Record, Record]
"""The records of X and of E(X)."""


@dataclass(frozen=True)
class Compared:
    """A pair in ONNX Runtime."""

    x: Record
    e: Record
    x_megabytes: float
    megabytes: float
    difference: float
    """The larger of the two differences between a graph's logits and its network's, as a share of the largest."""

    @property
    def speedup(self) -> Interval:
        return Timing(self.x.seconds).interval_over(Timing(self.e.seconds))

    @property
    def met(self) -> bool:
        return self.speedup.value >= GOAL

    def as_dict(self) -> dict[str, Any]:
        value, low, high = self.speedup
        return {
            "name": self.e.name,
            "twin": self.x.name,
            "batch": self.e.setting.batch,
            "threads": self.e.setting.threads,
            "rounds": len(self.e.seconds),
            "ms": 1e3 * Timing(self.e.seconds).median,
            "twin_ms": 1e3 * Timing(self.x.seconds).median,
            "speedup": value,
            "interval": [low, high] if len(self.e.seconds) > 1 else None,
            "goal": GOAL,
            "met": self.met,
            "megabytes": self.megabytes,
            "twin_megabytes": self.x_megabytes,
            "difference": self.difference,
        }


def pairs(names: Sequence[str], batch: int = 8, threads: int = 1, **origin: Any) -> list[Pair]:
    """Networks beside their twins, as records without figures.

    >>> [record.name for record in pairs(["e(vit-s)"])[0]]
    ['ViT-S', 'E(ViT-S)']
    """
    setting = Setting(EXPORTED, "inference", "cpu", "float32", batch, threads)
    found = []
    for name in names:
        records = plan_records([name], [setting], **origin)
        if len(records) < 2:
            raise UsageError(f"{name!r} has no ordinary twin to be compared with: name networks like E(ViT-S)")
        found.append((records[0], records[1]))
    return found


def compare(
    pair: Pair,
    folder: Path,
    *,
    repeats: int,
    warmup: int = 3,
    progress: Callable[[str], object] = lambda text: None,
) -> Compared:
    """Export both into a folder, compare their graphs with the networks, and time them in turn."""
    runs: dict[str, Callable[[], object]] = {}
    sizes, differences = [], []
    for record in pair:
        progress(f"Exporting {record.name}")
        torch.manual_seed(0)
        model = targets.load(record.model).eval()
        size = resolve_model_data_config(model)["input_size"]
        path = folder / f"{record.model}.onnx"
        onnx_file.require_small(model, record.name)
        onnx_file.write_graph(model, size, path)
        differences.append(check(onnx_file.read(path), model, [make_images(model, size, CHECKED)]).difference)
        images = {onnx_file.INPUT: make_images(model, size, record.setting.batch).numpy()}
        session = onnx_file.start_session(path, record.setting.threads)
        runs[record.model] = partial(session.run, [onnx_file.OUTPUT], images)
        sizes.append(os.path.getsize(path) / 1e6)
    progress(f"Timing {pair[1].name} against {pair[0].name}")
    timings, run = interleave(runs, repeats, warmup), uuid4().hex[:12]
    x, e = (
        replace(r, run=run, warmup=warmup, seconds=timings[r.model].seconds, **describe(r.model, training=False))
        for r in pair
    )
    return Compared(x, e, sizes[0], sizes[1], max(differences))


def compare_all(chosen: Sequence[Pair], **options: Any) -> Iterator[Compared]:
    """One pair after the other, in a temporary folder."""
    for pair in chosen:
        with tempfile.TemporaryDirectory(prefix="flopping-") as folder:
            yield compare(pair, Path(folder), **options)
