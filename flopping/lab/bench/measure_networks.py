"""Measuring networks beside their baselines, in torch or in ONNX Runtime, while there is time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from time import monotonic

import torch
from timm.data import resolve_model_data_config

from flopping.cost.measure import Session
from flopping.cost.protocol import Protocol
from flopping.cost.records import EXPORTED, Record
from flopping.cost.timing import interleave
from flopping.cost.worker import describe
from flopping.deploy import CheckFailedError, onnx_file
from flopping.deploy.exporter import check, make_images
from flopping.errors import UsageError
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

        for kind, exported in ((Session, False), (ExportedSession, True)):
            chosen = [record for record in group if (record.setting.mode == EXPORTED) == exported]
            if chosen:
                kind(protocol, sink, cache=cache, progress=report).measure(chosen)
    return 0


class ExportedSession(Session):
    """Exports networks, compares each graph with its network, and times the graphs in turn in this process.

    What can't be exported, or gives other logits, becomes a record with a problem.
    """

    def measure(self, group: Sequence[Record]) -> None:
        self.runs: dict[str, Callable[[], object]] = {}
        super().measure(group)

    def _prepare(self, key: str) -> None:
        self.progress(f"exporting {self.records[key].name}", int(key) / len(self.records) / 2)
        record = self.records[key] = replace(self.records[key], **describe(self.records[key].model, training=False))
        try:
            self.runs[key] = _export(record, self.folder / f"{key}.onnx")
        except (CheckFailedError, UsageError) as error:
            self.problems[key] = str(error)
        except Exception as error:  # of torch's exporter or ONNX Runtime: the other networks are measured
            self.problems[key] = f"not exported: {type(error).__name__}: {shorten(str(error), 200)}"

    def _measure_time(self) -> None:
        self.progress("timing exported networks", 0.5)
        start, protocol = monotonic(), self.protocol

        def enough(done: int) -> bool:
            return (
                protocol.seconds is not None and done >= protocol.min_repeats and monotonic() - start > protocol.seconds
            )

        interleave(self.runs, protocol.repeats, protocol.warmup, progress=self.rounds.append, enough=enough)


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
