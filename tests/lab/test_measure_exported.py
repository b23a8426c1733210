"""Exported networks in ONNX Runtime: what is measured, what is kept, and that a wrong graph is no result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import onnxruntime
import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from flopping.cost.protocol import Protocol
from flopping.cost.records import Record, Setting, new_record, read
from flopping.deploy import onnx_file
from flopping.lab.bench import measure_networks
from flopping.lab.bench.measure_networks import ExportedSession
from flopping_cli import app

X, E = "resmlp_test_64", "resmlp_flop_test_64"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400"})


def test_both_are_exported_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.models.targets.load", lambda name, *_: timm.create_model(name, depth=1))
    path = tmp_path / "exported.jsonl"
    words = ["bench", "export", E, "--baseline", X, "--batch", "3", "--threads", "1", "--repeats", "2", "--warmup", "2"]
    monkeypatch.setattr(sys, "argv", ["/bin/flopping", *words, "-o", "my file"])
    result = run(*words, "--json", "-q", "-o", path)
    assert result.exit_code == 0, result.output
    x, e = read(path)
    assert [json.loads(line)["model"] for line in result.stdout.splitlines()] == [X, E]
    assert (x.model, e.model, e.baseline, e.warmup, len(e.seconds)) == (X, E, X, 2, 2)
    assert e.problem is None
    assert e.run == x.run != ""
    assert e.params < x.params
    assert e.setting == Setting("onnxruntime", "inference", "cpu", "float32", batch=3, threads=1)
    assert e.machine.versions["onnxruntime"] == onnxruntime.__version__
    assert e.command == f"flopping {' '.join(words)} -o 'my file'"
    assert e.time.startswith("20")


SETTING = Setting("onnxruntime", "inference", "cpu", "float32", batch=1, threads=1)


def measured(*models: str, **changes: float) -> list[Record]:
    """What is measured of networks, until an interrupt."""
    records: list[Record] = []
    protocol = replace(Protocol(batch=1, dtype="float32", warmup=0, repeats=4, min_repeats=2), **changes)
    planned = [new_record(model=model, setting=SETTING) for model in models]
    with suppress(KeyboardInterrupt):
        ExportedSession(protocol, records.append).measure(planned)
    return records


def pretend_export(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], failing: str = "") -> None:
    """Instead of an export, which takes seconds."""

    def export(record: Record, path: Path) -> Callable[[], object]:
        if record.model == failing:
            raise RuntimeError("no such operator")
        return run

    monkeypatch.setattr(measure_networks, "_export", export)


def test_an_interrupt_keeps_the_rounds_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def run() -> None:
        if next(calls) == 5:  # in the third round of two networks
            raise KeyboardInterrupt

    pretend_export(monkeypatch, run)
    records = measured(X, E)
    assert [(record.model, len(record.seconds)) for record in records] == [(X, 2), (E, 2)]
    assert {record.problem for record in records} == {"interrupted after 2 rounds"}


def test_no_round_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_export(monkeypatch, lambda: None)
    (record,) = measured(X, seconds=0.0)
    assert (len(record.seconds), record.problem) == (2, None)


def test_a_failed_export_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_export(monkeypatch, lambda: None, failing=E)
    x, e = measured(X, E)
    assert (len(x.seconds), x.problem) == (4, None)
    assert (e.seconds, e.problem) == ((), "not exported: RuntimeError: no such operator")
    words = ["--baseline", X, "--batch", "1", "--threads", "1", "--repeats", "1", "-q", "-o", tmp_path / "a.jsonl"]
    assert run("bench", "export", E, *words).exit_code == 1
    assert run("bench", "export", X, *words).exit_code == 0


def test_a_graph_that_is_not_its_network_is_a_row_without_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_file, "read", lambda path: lambda images: 1.01 * torch.ones(len(images), 1000))
    (record,) = measured(E)
    assert record.seconds == ()
    assert record.problem is not None
    assert "logits differ" in record.problem
