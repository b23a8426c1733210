"""`flopping bench export`: what it refuses, what it measures, and what it keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from flopping.cost.records import Setting, read
from flopping.cost.timing import Timing
from flopping.deploy import CheckFailedError, onnx_file
from flopping.deploy.formats import Run
from flopping.lab.bench.bench_export import GOAL, Compared, Pair, compare, pairs
from flopping_cli import app

PAIR = Pair("E(ResMLP)", "ResMLP", "resmlp_flop_test_64", "resmlp_test_64")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400"})


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ViT-S"], "'ViT-S' has no ordinary twin"),
        (["E(ViT-Q)"], "the closest are E(ViT-S)"),
    ],
)
def test_benchmarks_that_are_refused(arguments: list[str], message: str) -> None:
    refused(run("bench", "export", *arguments), message)


def test_both_are_exported_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.lab.bench.bench_export.pairs", lambda names: [PAIR])
    monkeypatch.setattr("flopping.models.targets.load", lambda name: timm.create_model(name, depth=1))  # smaller still
    result = run("bench", "export", "--batch", "3", "--threads", "1", "--repeats", "2", "--json", "-q")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["name"], found["twin"], found["batch"], found["rounds"]) == ("E(ResMLP)", "ResMLP", 3, 2)
    assert 0 < found["difference"] < 1e-4
    assert found["ms"] > 0
    assert found["megabytes"] < found["twin_megabytes"]
    assert found["met"] == (found["speedup"] >= GOAL)


def test_rows_are_saved_as_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as soon as it is there: the second pair is interrupted, and the first one is kept and shown."""

    def measured(chosen: object, **options: Any) -> Iterator[Compared]:
        assert options["warmup"] == 2
        yield Compared(PAIR, 8, 1, Timing((1.0, 1.1)), Timing((1.5, 1.6)), 1.0, 2.0, 1e-6)
        assert [record.model for record in read(path)] == [PAIR.twin_model, PAIR.model]
        raise KeyboardInterrupt

    path = tmp_path / "exported.jsonl"
    monkeypatch.setattr("flopping.lab.bench.bench_export.pairs", lambda names: [PAIR, PAIR])
    monkeypatch.setattr("flopping.lab.bench.bench_export.compared", measured)
    monkeypatch.setattr(sys, "argv", ["/bin/flopping", "bench", "export", "--warmup", "2", "-o", "my file"])
    result = run("bench", "export", "--warmup", "2", "-o", path)
    assert result.exit_code == 130, result.output
    assert f"Interrupted: 1 of 2 rows were measured, 2 records kept in {path}." in result.stderr
    twin, network = read(path)
    assert (twin.seconds, network.seconds, network.baseline) == ((1.5, 1.6), (1.0, 1.1), PAIR.twin_model)
    assert network.run == twin.run
    assert network.params < twin.params
    assert network.setting == Setting("onnxruntime", "inference", "cpu", "float32", batch=8, threads=1)
    assert network.machine.versions["onnxruntime"] == onnxruntime.__version__
    assert network.command == "flopping bench export --warmup 2 -o 'my file'"
    assert network.time.startswith("20")
    report = run("report", path, "--format", "jsonl")
    assert report.exit_code == 0, report.output
    assert json.loads(report.stdout.splitlines()[-1])["speedup"] == pytest.approx((1.5 / 1.0 + 1.6 / 1.1) / 2)
    other = tmp_path / "diary.txt"
    other.write_text("mine")
    refused(run("bench", "export", "-o", other), "diary.txt, line 1: no JSON")
    assert other.read_text() == "mine"


def test_the_table_is_whole_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pairs(["convnext_flop_iso_large"])[0]
    row = Compared(pair, 8, 1, Timing((3.411,) * 3), Timing((6.512,) * 3), 402.4, 801.2, 1e-6)
    monkeypatch.setattr("flopping.lab.bench.bench_export.compared", lambda chosen, **_: [row])
    result = CliRunner().invoke(app, ["bench", "export"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    *table, note = result.stdout.splitlines()
    assert max(map(len, table)) <= 80
    cells = [cell.strip() for cell in table[3].strip("│").split("│")]
    assert cells == ["E(ConvNeXt-L (iso.))", "3411 / 6512", "1.91 [1.91, 1.91]", "met", "402 / 801"]
    assert "1 thread, medians of 3 rounds" in note


def test_a_graph_that_is_not_its_network_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path) -> Run:
        return lambda images: 1.01 * torch.ones(len(images), 1000)

    monkeypatch.setattr(onnx_file, "write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_file, "read", wrong)
    with pytest.raises(CheckFailedError):
        compare(PAIR, tmp_path, batch=1, threads=1, repeats=1)
