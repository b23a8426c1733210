"""What `flopping export` refuses, before the work begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.saved_networks import LABELS, TINY, list_files, save_network
from typer.testing import CliRunner

from flopping.deploy import export
from flopping.errors import UsageError
from flopping_cli import app


def refuse(*arguments: str | Path) -> str:
    """The message of an export that is refused."""
    result = CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("a network was opened before the request was refused")

    monkeypatch.setattr("flopping.deploy.exporter.open_classifier", opened)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with things that must survive."""
    for name in ("old.onnx", "file", "notes/config.json", "notes/diary.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("older")
    (tmp_path / "folder.pt2").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("output", "options", "words"),
    [
        ("a.tflite", [], ["a.tflite'", ".pt2 or .onnx"]),
        ("a.pt2", ["--opset", "20"], ["--opset 20 is for .onnx"]),
        ("a/", ["--batch", "4"], ["--batch 4 is for .pt2 or .onnx"]),
        ("a.onnx", ["--opset", "7"], ["between 18 and 23, got 7"]),
        ("a.onnx", ["--batch", "0"], ["--batch"]),
        ("missing/a.onnx", [], ["no folder"]),
        ("old.onnx", [], ["old.onnx' exists", "--force"]),
        ("folder.pt2", ["--force"], ["folder.pt2' is a folder"]),
        (".onnx", [], ["name.onnx"]),
        ("..", ["--force"], ["is no name"]),
        ("notes", ["--force"], ["diary.txt"]),
    ],
)
@pytest.mark.usefixtures("_idle")
def test_outputs_that_are_refused(output: str, options: list[str], words: list[str], place: Path) -> None:
    before = list_files(place)
    message = refuse("E(ViT-S)", "-o", f"{place}/{output}", *options)
    assert all(word in message for word in words), message
    assert list_files(place) == before


@pytest.mark.usefixtures("_idle")
def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever may write everywhere tests nothing with permissions
    assert "no permission" in refuse("E(ViT-S)", "-o", tmp_path / "a.pt2")


@pytest.mark.usefixtures("_idle")
def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("flopping.deploy.formats.find_spec", lambda name: None if name == "onnxscript" else find(name))
    assert "onnxscript: pip install 'flopping[onnx]'" in refuse("E(ViT-S)", "-o", tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("target", "output", "options", "word"),
    [
        ("E(ViT-X)", "a.onnx", {}, "E(ViT-S)"),
        ("checkpoint", "a.onnx", {"img_size": 32}, "--img-size 32"),
        (TINY, "a.onnx", {"average": True}, "--average"),
        ("mine.py:Mine", "a", {}, "timm"),
    ],
)
def test_networks_that_are_refused(
    target: str, output: str, options: dict[str, object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n        return x.mean((2, 3))\n"
    Path("mine.py").write_text(code)
    save_network(Path("checkpoint"), "resmlp_test_64", LABELS, depth=1)
    before = list_files(tmp_path)
    with pytest.raises(UsageError) as error:
        export(target, tmp_path / output, **options)  # type: ignore[arg-type]
    assert word in str(error.value)
    assert list_files(tmp_path) == before


def test_weights_that_are_too_large_for_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.deploy.onnx_file.LARGEST", 1000)
    monkeypatch.setattr("flopping.deploy.onnx_file.trace", lambda *_: pytest.fail("the work began"))
    with pytest.raises(UsageError, match="2 GB"):
        export(TINY, tmp_path / "a.onnx")
