"""What `flopping bench` refuses, before anything is measured."""

import resource
import signal
from pathlib import Path

import pytest
from measurements import ordinary
from typer.testing import CliRunner

from flopping.bench.records import append, read
from flopping_cli import app

runner = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to measure"),
        (["E(ViT-S)", "--paper"], "say what to measure"),
        (["E(ViT-Q)"], "the closest are E(ViT-S)"),
        (["E(ViT-S)", "--baseline", "resnet19"], "no model is called 'resnet19'; the closest are resnet18"),
        (["E(ViT-S)", "--dtype", "float8"], "'float8'; possible are float32, bfloat16, float16"),
        (["E(ViT-S)", "--device", "gpu"], "'gpu' here; possible are cpu"),
        (["E(ViT-S)", "--mode", "jit"], "'jit'; possible are eager, compiled, compiled-frozen"),
        (["E(ViT-S)", "--latency", "--batch", "8"], "batch 1, got --batch 8"),
        (["E(ViT-S)", "--latency", "--train"], "--latency is inference"),
        (["E(ViT-S)", "--train", "--mode", "compiled-frozen"], "can't train"),
        (["--goals", "--batch", "4", "--train"], "leave out --goals or --batch, --train"),
        (["E(ViT-S)", "--repeats", "0"], "Invalid value for '--repeats'"),
        (["E(ViT-S)", "--format", "latex", "--json"], "--json is --format jsonl, got --format latex too"),
        (["E(ViT-S)", "--format", "pdf"], "'pdf' is not one of"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["bench", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("text", ["my notes\n", '{"format": "something else"}\n', "\x00\xff"])
def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path, text: str) -> None:
    out = tmp_path / "notes.txt"
    out.write_text(text, encoding="latin-1")
    result = runner.invoke(app, ["bench", "E(ViT-S)", "-o", str(out)], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert out.read_text(encoding="latin-1") == text


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for out in (tmp_path / "missing" / "out.jsonl", tmp_path):
        result = runner.invoke(app, ["bench", "E(ViT-S)", "-o", str(out)], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert str(out) in result.output


def test_a_file_without_a_last_newline_goes_on_with_a_line_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    append(out, [ordinary()])
    out.write_bytes(out.read_bytes().rstrip())
    append(out, [ordinary()])
    assert read(out) == [ordinary(), ordinary()]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A limit on the size of files stops a write midway, as a full disk does."""
    out = tmp_path / "out.jsonl"
    append(out, [ordinary()])
    before = out.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, old[1]))
    try:
        with pytest.raises(OSError, match="only 10 of"):
            append(out, [ordinary()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert out.read_bytes() == before
