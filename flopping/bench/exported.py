"""What is left of the saving in ONNX Runtime: E(X) against X, both exported, in one process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config

from flopping import targets
from flopping.bench.machine import Machine
from flopping.bench.records import EXPORTED, Record, Setting
from flopping.bench.state import new_run
from flopping.bench.timing import Interval, Timing, interleave
from flopping.bench.worker import description
from flopping.export import onnx_file
from flopping.export.check import check, pictures
from flopping.export.describe import INPUT, OUTPUT
from flopping.export.formats import format_of, require_modules
from flopping.models.zoo import names_in_paper, ordinary_twin, registered_name

GOAL = 1.5
"""How many times the throughput of X that of E(X) should be at least."""
CHECKED = 2
"""Images that each graph is compared with its network on."""


@dataclass(frozen=True)
class Pair:
    """An equivariant network and its ordinary twin, as they are called in the paper and in the registry."""

    name: str
    twin: str
    model: str
    twin_model: str


@dataclass(frozen=True)
class Compared:
    """Both of them in ONNX Runtime, round by round."""

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
        low, high = self.speedup.low, self.speedup.high
        return {
            "name": self.pair.name,
            "twin": self.pair.twin,
            "batch": self.batch,
            "threads": self.threads,
            "rounds": len(self.timing.seconds),
            "ms": 1e3 * self.timing.median,
            "twin_ms": 1e3 * self.twin_timing.median,
            "speedup": self.speedup.value,
            "interval": [low, high] if len(self.timing.seconds) > 1 else None,
            "goal": GOAL,
            "met": self.met,
            "megabytes": self.megabytes,
            "twin_megabytes": self.twin_megabytes,
            "difference": self.difference,
        }


def pairs(names: Sequence[str]) -> list[Pair]:
    """Networks beside their twins; refused before anything runs where there is none.

    >>> pairs(["e(vit-s)"])[0].twin, pairs(["E(ResMLP-S24)"])[0].twin_model
    ('ViT-S', 'resmlp_24_224')
    """
    require_modules(format_of("model.onnx"))
    found = []
    for name in names:
        model = registered_name(name)
        twin = ordinary_twin(model)
        if twin is None:
            raise ValueError(f"{name!r} has no ordinary twin to be compared with: name networks like E(ViT-S)")
        papers = names_in_paper()
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
    sizes: dict[str, float] = {}
    difference = 0.0
    images = None
    for name, registered in ((pair.name, pair.model), (pair.twin, pair.twin_model)):
        progress(f"Exporting {name}")
        torch.manual_seed(0)
        model = targets.load(registered).eval()
        size = resolve_model_data_config(model)["input_size"]
        path = folder / f"{registered}.onnx"
        onnx_file.refuse_large(model, name)
        onnx_file.write_graph(model, size, path)
        difference = max(difference, check(onnx_file.read(path), model, [pictures(model, size, CHECKED)]).difference)
        images = pictures(model, size, batch).numpy() if images is None else images
        runs[name] = partial(onnx_file.session(path, threads).run, [OUTPUT], {INPUT: images})
        sizes[name] = os.path.getsize(path) / 1e6
    progress(f"Timing {pair.name} against {pair.twin}")
    timings = interleave(runs, repeats, warmup)
    return Compared(
        pair, batch, threads, timings[pair.name], timings[pair.twin], sizes[pair.name], sizes[pair.twin], difference
    )


def records_of(found: Compared, *, warmup: int, machine: Machine, command: str, time: str) -> list[Record]:
    """The twin and the network, as `flopping bench` saves them: the report compares them in the same way."""
    pair, run = found.pair, new_run()
    setting = Setting(EXPORTED, "inference", "cpu", "float32", found.batch, found.threads)
    made = []
    for model, paper, baseline, timing in (
        (pair.twin_model, pair.twin, None, found.twin_timing),
        (pair.model, pair.name, pair.twin_model, found.timing),
    ):
        about = description(model, training=False)
        made.append(
            Record(
                model=model,
                paper=paper,
                baseline=baseline,
                setting=setting,
                input_size=about["input_size"],
                params=about["params"],
                flops=about["flops"],
                macs=about["macs"],
                seconds=timing.seconds,
                run=run,
                warmup=warmup,
                compile_seconds=None,
                memory=None,
                noise=None,
                problem=about["remark"],
                machine=machine,
                command=command,
                time=time,
            )
        )
    return made


def compared(chosen: Sequence[Pair], **options: Any) -> Iterator[Compared]:
    """One pair after the other, in a folder that is gone afterwards."""
    for pair in chosen:
        with tempfile.TemporaryDirectory(prefix="flopping-") as folder:
            yield compare(pair, Path(folder), **options)
