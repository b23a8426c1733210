"""What `flopping export` and `flopping bench-export` refuse, before the work begins; and the benchmark itself."""

from __future__ import annotations

import errno
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from exported_networks import NETWORKS, listing, saved
from typer.testing import CliRunner, Result

from flopping.bench.exported import GOAL, Compared, Pair, compare, pairs
from flopping.bench.records import Setting, read
from flopping.bench.timing import Timing
from flopping.export import CheckFailedError, onnx_file
from flopping.export.check import Run
from flopping_cli import app

PAIR = Pair("E(ResMLP)", "ResMLP", "resmlp_flop_test_64", "resmlp_test_64")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400"})


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is opened."""

    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("a network was opened before the request was refused")

    monkeypatch.setattr("flopping.export.exporting.open_classifier", opened)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with things that must survive."""
    (tmp_path / "old.onnx").write_text("older")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text("older")
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "config.json").write_text("older")
    (tmp_path / "folder.pt2").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("a.tflite", [], "a.tflite': names end in .pt2 or .onnx, and a folder's in no suffix or in /"),
        ("a.pt", [], "names end in .pt2 or .onnx"),
        ("a.safetensors", [], "names end in .pt2 or .onnx"),
        ("a.pt2", ["--opset", "20"], "--opset 20 is for .onnx, and"),
        ("a", ["--opset", "20"], "is a folder"),
        ("a/", ["--batch", "4"], "--batch 4 is for .pt2 or .onnx, and"),
        ("a.onnx", ["--opset", "7"], "--opset is between 18 and 23, got 7"),
        ("a.onnx", ["--batch", "0"], "Invalid value for '--batch'"),
        ("missing/a.onnx", [], "no folder"),
        ("old.onnx", [], "old.onnx' exists; --force replaces it"),
        ("old.onnx/a.pt2", [], "no folder"),
        ("exported", [], "exported' exists; --force replaces it"),
        ("folder.pt2", ["--force"], "folder.pt2' is a folder"),
        (".onnx", [], ".onnx' is a suffix without a name: write it as in name.onnx"),
        (".PT2", [], ".PT2' is a suffix without a name"),
        ("..", [], "is no name for what is to be written"),
        ("notes", ["--force"], "holds more than an exported network ('diary.txt')"),
    ],
)
@pytest.mark.usefixtures("idle")
def test_refusals(output: str, options: list[str], message: str, place: Path) -> None:
    before = listing(place)
    refused(run("export", "E(ViT-S)", "-o", f"{place}/{output}", *options), message)
    assert listing(place) == before


@pytest.mark.parametrize("output", ["", ".", "./", "..", "/"])
@pytest.mark.usefixtures("idle")
def test_what_is_no_name(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--force"]):
        refused(run("export", "E(ViT-S)", "-o", output, *options), f"{output!r} is no name for what is to be written")
    assert not listing(tmp_path)


@pytest.mark.usefixtures("idle")
def test_a_file_in_place_of_a_folder(place: Path) -> None:
    (place / "file").write_text("mine")
    refused(run("export", "E(ViT-S)", "-o", place / "file", "--force"), "is a file: name a folder")


@pytest.mark.usefixtures("idle")
def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever may write everywhere tests nothing with permissions
    refused(run("export", "E(ViT-S)", "-o", tmp_path / "a.pt2"), "no permission to write in")


@pytest.mark.usefixtures("idle")
def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("flopping.export.formats.find_spec", lambda name: None if name == "onnxscript" else find(name))
    message = ".onnx needs onnxscript: pip install 'flopping[onnx]'"
    refused(run("export", "E(ViT-S)", "-o", tmp_path / "a.onnx"), message)
    refused(run("bench-export", "E(ViT-S)"), message)


@pytest.mark.parametrize(
    ("target", "output", "options", "message"),
    [
        ("E(ViT-X)", "a.onnx", [], "the closest are E(ViT-S)"),
        ("checkpoint", "a.onnx", ["--img-size", "32"], "--img-size has no meaning"),
        ("checkpoint", "a.onnx", ["--average"], "has no averaged weights"),
        ("deit3_flop_test_patch16_64", "a.onnx", ["--average"], "--average takes the averaged weights"),
        ("mine.py:Mine", "a", [], "an architecture that timm knows, and"),
        ("nothing/here", "a.onnx", [], "nothing/here"),
    ],
)
def test_networks_that_are_refused(target: str, output: str, options: list[str], message: str, tmp_path: Path) -> None:
    code = "import torch\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n        return x.mean((2, 3))\n"
    (tmp_path / "mine.py").write_text(code)
    saved(tmp_path / "checkpoint", *NETWORKS["ResMLP"])
    here = f"{tmp_path}/" if target.startswith(("checkpoint", "mine", "nothing")) else ""
    before = listing(tmp_path)
    refused(run("export", f"{here}{target}", "-o", tmp_path / output, *options), message)
    assert listing(tmp_path) == before


def test_weights_that_are_too_large_for_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.export.onnx_file.LARGEST", 1000)
    monkeypatch.setattr("flopping.export.onnx_file.traced", lambda *_: pytest.fail("the work began"))
    result = run("export", "deit3_flop_test_patch16_64", "-o", tmp_path / "a.onnx")
    refused(result, "an .onnx file holds 2 GB at most: export it as .pt2 or as a folder")


# the benchmark


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ViT-S"], "'ViT-S' has no ordinary twin"),
        (["deit3_flop_test_patch16_64"], "has no ordinary twin"),
        (["E(ViT-Q)"], "the closest are E(ViT-S)"),
        (["E(ViT-S)", "--batch", "0"], "Invalid value for '--batch'"),
    ],
)
def test_benchmarks_that_are_refused(arguments: list[str], message: str) -> None:
    refused(run("bench-export", *arguments), message)


def test_pairs_are_those_of_the_paper() -> None:
    found = pairs(["E(ViT-S)", "H(ViT-B)", "convnext_flop_iso_small"])
    assert [(pair.name, pair.twin) for pair in found] == [
        ("E(ViT-S)", "ViT-S"),
        ("H(ViT-B)", "ViT-B"),
        ("E(ConvNeXt-S (iso.))", "ConvNeXt-S (iso.)"),
    ]


def test_both_are_exported_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.bench.exported.pairs", lambda names: [PAIR])
    monkeypatch.setattr("flopping.targets.load", lambda name: timm.create_model(name, depth=1))  # smaller still
    result = run("bench-export", "--batch", "3", "--threads", "1", "--repeats", "2", "--json", "-q")
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
    monkeypatch.setattr("flopping.bench.exported.pairs", lambda names: [PAIR, PAIR])
    monkeypatch.setattr("flopping.bench.exported.compared", measured)
    monkeypatch.setattr(sys, "argv", ["/bin/flopping", "bench-export", "--warmup", "2", "-o", "my file"])
    result = run("bench-export", "--warmup", "2", "-o", path)
    assert result.exit_code == 130, result.output
    assert f"Interrupted: 1 of 2 rows were measured, 2 records kept in {path}." in result.stderr
    twin, network = read(path)
    assert (twin.seconds, network.seconds, network.baseline) == ((1.5, 1.6), (1.0, 1.1), PAIR.twin_model)
    assert network.run == twin.run
    assert network.params < twin.params
    assert network.setting == Setting("onnxruntime", "inference", "cpu", "float32", batch=8, threads=1)
    assert network.machine.versions["onnxruntime"] == onnxruntime.__version__
    assert network.command == "flopping bench-export --warmup 2 -o 'my file'"
    assert network.time.startswith("20")
    report = run("report", path, "--format", "jsonl")
    assert report.exit_code == 0, report.output
    assert json.loads(report.stdout.splitlines()[-1])["speedup"] == pytest.approx((1.5 / 1.0 + 1.6 / 1.1) / 2)
    other = tmp_path / "diary.txt"
    other.write_text("mine")
    refused(run("bench-export", "-o", other), "diary.txt, line 1: no JSON")
    assert other.read_text() == "mine"


def test_the_table_is_whole_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pairs(["convnext_flop_iso_large"])[0]
    row = Compared(pair, 8, 1, Timing((3.411,) * 3), Timing((6.512,) * 3), 402.4, 801.2, 1e-6)
    monkeypatch.setattr("flopping.bench.exported.compared", lambda chosen, **_: [row])
    result = CliRunner().invoke(app, ["bench-export"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    *table, note = result.stdout.splitlines()
    assert max(map(len, table)) <= 80
    cells = [cell.strip() for cell in table[3].strip("│").split("│")]
    assert cells == ["E(ConvNeXt-L (iso.))", "3411 / 6512", "1.91 [1.91, 1.91]", "yes", "402 / 801"]
    assert "1 thread, medians of 3 rounds" in note


@pytest.mark.parametrize(("seconds", "met"), [((1.0, 1.0, 1.0), True), ((1.1, 1.1, 1.1), False)])
def test_the_goal(seconds: tuple[float, ...], met: bool) -> None:
    twin = Timing((1.5, 1.5, 1.5))
    found = Compared(PAIR, 8, 2, Timing(seconds), twin, 1.0, 2.0, 1e-6)
    assert found.met is met
    assert found.as_dict()["speedup"] == 1.5 / seconds[0]


def test_a_graph_that_is_not_its_network_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path) -> Run:
        return lambda images: 1.01 * torch.ones(len(images), 1000)

    monkeypatch.setattr(onnx_file, "write_graph", lambda *_: None)
    monkeypatch.setattr(onnx_file, "read", wrong)
    with pytest.raises(CheckFailedError):
        compare(PAIR, tmp_path, batch=1, threads=1, repeats=1)


@pytest.mark.parametrize("json", [False, True])
def test_a_disk_that_is_full_after_the_first_row(json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished is shown: in the table, or it was already."""

    def measured(chosen: object, **options: Any) -> Iterator[Compared]:
        yield Compared(PAIR, 8, 1, Timing((1.0, 1.1)), Timing((1.5, 1.6)), 1.0, 2.0, 1e-6)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("flopping.bench.exported.pairs", lambda names: [PAIR, PAIR])
    monkeypatch.setattr("flopping.bench.exported.compared", measured)
    result = run("bench-export", *(["--json"] if json else []))
    assert result.exit_code == 1, result.output
    assert result.stdout.count(PAIR.name) == 1
    assert "No space left on device" in result.stderr
    assert ("The other rows were not measured" in result.stderr) != json
