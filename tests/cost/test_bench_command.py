"""What `flopping bench` refuses, before anything is measured."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flopping_cli import app

HUGE = "99999999999999999999"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "300"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to measure"),
        (["E(ViT-Q)"], "the closest are E(ViT-S)"),
        (["E(ViT-S)", "--baseline", "resnet19"], "'resnet19'; the closest are resnet18"),
        (["E(ViT-S)", "--dtype", "float8"], "'float8'"),
        (["E(ViT-S)", "--mode", "jit"], "'jit'"),
        (["E(ViT-S)", "--latency", "--batch", "8"], "got --batch 8"),
        (["E(ViT-S)", "--train", "--mode", "compiled-frozen"], "compiled-frozen"),
        (["--goals", "--batch", "4", "--train"], "leave out --goals or --batch, --train"),
        (["E(ViT-S)", "--budget", "5"], "got --budget 5"),
        (["E(ViT-S)", "--format", "latex", "--json"], "--format latex"),
        (["E(ViT-S)", "--batch", HUGE], "'--batch'"),
        (["E(ViT-S)", "--threads", HUGE], "'--threads'"),
        (["--paper", "--budget", "inf"], "'--budget'"),
        (["--paper", "--budget", "nan"], "'--budget'"),
        (["layers", "--threads", HUGE], "'--threads'"),
        (["export", "--batch", HUGE], "'--batch'"),
        (["export", "ViT-S"], "'ViT-S' has no ordinary twin"),
        (["export", "E(ViT-Q)"], "the closest are E(ViT-S)"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("text", ["my notes\n", "\x00\xff"])
def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path, text: str) -> None:
    out = tmp_path / "notes.txt"
    out.write_text(text, encoding="latin-1")
    result = bench("E(ViT-S)", "-o", str(out))
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert out.read_text(encoding="latin-1") == text


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for out in (tmp_path / "missing" / "out.jsonl", tmp_path):
        result = bench("E(ViT-S)", "-o", str(out))
        assert result.exit_code == 2
        assert str(out) in result.output
