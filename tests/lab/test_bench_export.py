"""`flopping bench export`: what it measures, what it keeps, and that a wrong graph is no result."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from flopping.cost.records import Setting, new_record, read
from flopping.deploy import CheckFailedError, onnx_file
from flopping.lab.bench import bench_export
from flopping.lab.bench.bench_export import GOAL, Compared, Pair, compare, pairs
from flopping_cli import app

X, E = "resmlp_test_64", "resmlp_flop_test_64"


def small_pair(batch: int = 1, threads: int = 1, **origin: Any) -> Pair:
    setting = Setting("onnxruntime", "inference", "cpu", "float32", batch, threads)
    x = new_record(model=X, paper="ResMLP", setting=setting, **origin)
    return x, replace(x, model=E, paper="E(ResMLP)", baseline=X)


def timed(pair: Pair, x: tuple[float, ...], e: tuple[float, ...]) -> Compared:
    return Compared(replace(pair[0], seconds=x, run="a"), replace(pair[1], seconds=e, run="a"), 801.2, 402.4, 1e-6)


def run(*arguments: str | Path, columns: int = 400) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})


def test_both_are_exported_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_export, "pairs", lambda names, *more, **origin: [small_pair(*more, **origin)])
    monkeypatch.setattr("flopping.models.targets.load", lambda name, *_: timm.create_model(name, depth=1))
    path = tmp_path / "exported.jsonl"
    words = ["bench", "export", "--batch", "3", "--threads", "1", "--repeats", "2", "--warmup", "2", "--json", "-q"]
    monkeypatch.setattr(sys, "argv", ["/bin/flopping", *words, "-o", "my file"])
    result = run(*words, "-o", path)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["name"], found["twin"], found["batch"], found["rounds"]) == ("E(ResMLP)", "ResMLP", 3, 2)
    assert 0 < found["difference"] < 1e-4
    assert found["ms"] > 0
    assert found["megabytes"] < found["twin_megabytes"]
    assert found["met"] == (found["speedup"] >= GOAL)
    x, e = read(path)
    assert (x.model, e.model, e.baseline, e.warmup, len(e.seconds)) == (X, E, X, 2, 2)
    assert e.run == x.run != ""
    assert e.params < x.params
    assert e.setting == Setting("onnxruntime", "inference", "cpu", "float32", batch=3, threads=1)
    assert e.machine.versions["onnxruntime"] == onnxruntime.__version__
    assert e.command == f"flopping {' '.join(words)} -o 'my file'"
    assert e.time.startswith("20")
    report = run("report", path, "--format", "jsonl")
    assert json.loads(report.stdout.splitlines()[-1])["speedup"] == pytest.approx(found["speedup"])


def test_an_interrupt_keeps_the_pairs_that_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(chosen: list[Pair], **_: Any) -> Iterator[Compared]:
        yield timed(chosen[0], (1.5, 1.6), (1.0, 1.1))
        assert [record.seconds for record in read(path)] == [(1.5, 1.6), (1.0, 1.1)]  # at once
        raise KeyboardInterrupt

    path = tmp_path / "exported.jsonl"
    monkeypatch.setattr(bench_export, "compare_all", measured)
    result = run("bench", "export", "-o", path)
    assert result.exit_code == 130, result.output
    assert f"Interrupted: 1 of 2 rows were measured, 2 records kept in {path}." in result.stderr
    assert "E(ViT-S)" in result.stdout


def test_the_table_is_whole_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    row = timed(pairs(["convnext_flop_iso_large"])[0], (6.512,) * 3, (3.411,) * 3)
    monkeypatch.setattr(bench_export, "compare_all", lambda chosen, **_: [row])
    result = run("bench", "export", columns=80)
    assert result.exit_code == 0, result.output
    *table, note = result.stdout.splitlines()
    assert max(map(len, table)) <= 80
    cells = [cell.strip() for cell in table[3].strip("│").split("│")]
    assert cells == ["E(ConvNeXt-L (iso.))", "3411 / 6512", "1.91 [1.91, 1.91]", "met", "402 / 801"]
    assert "1 thread, medians of 3 rounds" in note


def test_a_graph_that_is_not_its_network_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_file, "read", lambda path: lambda images: 1.01 * torch.ones(len(images), 1000))
    with pytest.raises(CheckFailedError):
        compare(small_pair(), tmp_path, repeats=1)
