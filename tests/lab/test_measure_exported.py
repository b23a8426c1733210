"""Exported networks in ONNX Runtime: what is measured, what is kept, and that a wrong graph is no result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime
import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from flopping.cost.protocol import Protocol
from flopping.cost.records import Record, Setting, new_record, read
from flopping.deploy import onnx_file
from flopping.lab.bench.measure_groups import measure_exported
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


def test_a_graph_that_is_not_its_network_is_a_row_without_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_file, "read", lambda path: lambda images: 1.01 * torch.ones(len(images), 1000))
    records: list[Record] = []
    setting = Setting("onnxruntime", "inference", "cpu", "float32", batch=1, threads=1)
    protocol = Protocol(batch=1, dtype="float32", warmup=0, repeats=1)
    measure_exported([new_record(model=E, setting=setting)], protocol, records.append, lambda *_: None)
    (record,) = records
    assert record.seconds == ()
    assert record.problem is not None
    assert "logits differ" in record.problem
