"""Measuring networks beside their baselines, in torch or in ONNX Runtime, while there is time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from time import monotonic
from uuid import uuid4

import torch
from timm.data import resolve_model_data_config

from flopping.cost.measure import Session
from flopping.cost.protocol import Protocol
from flopping.cost.records import EXPORTED, Record
from flopping.cost.timing import interleave
from flopping.cost.worker import describe
from flopping.deploy import CheckFailedError, onnx_file
from flopping.deploy.exporter import check, make_images
from flopping.errors import UsageError, pluralize
from flopping.models import targets

CHECKED = 2
"""Images on which an exported graph is compared with its network."""
Report = Callable[[str, float], object]
"""Takes a text, and the share of the work that is done."""


def measure_groups(
    groups: Sequence[Sequence[Record]],
    protocol: Protocol,
    sink: Callable[[Record], object],
    *,
    seconds: float | None = None,
    cache: Path | None = None,
    progress: Report = lambda text, share: None,
) -> int:
    """Measure the networks of each group in turn; after so many seconds no further group is begun.

    Returns how many groups are left.
    """
    start = monotonic()
    for number, group in enumerate(groups):
        if seconds is not None and monotonic() - start > seconds:
            return len(groups) - number

        def report(text: str, share: float, number: int = number) -> None:
            progress(text, (number + share) / len(groups))

        exported = [record for record in group if record.setting.mode == EXPORTED]
        if len(exported) < len(group):
            others = [record for record in group if record.setting.mode != EXPORTED]
            Session(protocol, sink, cache=cache, progress=report).measure(others)
        if exported:
            measure_exported(exported, protocol, sink, report)
    return 0


def measure_exported(
    records: Sequence[Record], protocol: Protocol, sink: Callable[[Record], object], progress: Report
) -> None:
    """Export networks, compare each graph with its network, and time the graphs in turn in this process.

    What can't be exported, or gives other logits, becomes a record with a problem. On an interrupt, the rounds until
    then become records that say so.
    """
    runs: dict[str, Callable[[], object]] = {}
    found: dict[str, Record] = {}
    with tempfile.TemporaryDirectory(prefix="flopping-") as folder:
        for number, record in enumerate(records):
            progress(f"exporting {record.name}", number / len(records) / 2)
            figures = describe(record.model, training=False)
            try:
                runs[record.model] = _export(record, Path(folder, f"{number}.onnx"))
            except (CheckFailedError, UsageError) as error:
                figures["problem"] = str(error)
            except Exception as error:  # of torch's exporter or ONNX Runtime: the other networks are measured
                figures["problem"] = f"not exported: {type(error).__name__}: {shorten(str(error), 200)}"
            found[record.model] = replace(record, **figures)
        progress("timing exported networks", 0.5)
        rounds: list[dict[str, float]] = []
        start, limit, interrupted = monotonic(), protocol.seconds, True

        def enough(done: int) -> bool:
            return limit is not None and done >= protocol.fewest and monotonic() - start > limit

        try:
            interleave(runs, protocol.repeats, protocol.warmup, progress=rounds.append, enough=enough)
            interrupted = False
        finally:
            run = uuid4().hex[:12]
            for name, record in found.items():
                seconds = tuple(times[name] for times in rounds if name in times)
                problem = record.problem
                if interrupted and problem is None:
                    if not seconds:
                        continue
                    problem = f"interrupted after {pluralize(len(seconds), 'round')}"
                sink(replace(record, run=run, warmup=protocol.warmup, seconds=seconds, problem=problem))


def _export(record: Record, path: Path) -> Callable[[], object]:
    """A call that runs an exported network on a batch, once its logits are known to be those of the network."""
    torch.manual_seed(0)
    model = targets.load(record.model).eval()
    size = resolve_model_data_config(model)["input_size"]
    onnx_file.require_small(model, record.name)
    onnx_file.write_graph(model, size, path)
    check(onnx_file.read(path), model, [make_images(model, size, CHECKED)])
    images = {onnx_file.INPUT: make_images(model, size, record.setting.batch).numpy()}
    return partial(onnx_file.start_session(path, record.setting.threads).run, [onnx_file.OUTPUT], images)
