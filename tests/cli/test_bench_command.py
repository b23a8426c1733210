"""What `flopping bench` refuses, before anything is measured."""

import os
from pathlib import Path

import pytest
from support.at_once import at_once
from support.measurements import ordinary
from typer.testing import CliRunner, Result

from flopping.cost.records import RecordFile, read
from flopping.errors import UsageError
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
        (["E(ViT-S)", "--train", "--mode", "compiled-frozen"], "compiled-frozen"),
        (["--goals", "--batch", "4", "--train"], "leave out --goals or --batch, --train"),
        (["E(ViT-S)", "--budget", "5"], "got --budget 5"),
        (["E(ViT-S)", "--mode", "reduce-overhead", "--device", "cpu"], "reduce-overhead"),
        (["launches", "ViT-S"], "'ViT-S' has no ordinary twin"),
        (["E(ViT-S)", "--batch", HUGE], "'--batch'"),
        (["E(ViT-S)", "--threads", HUGE], "'--threads'"),
        (["--paper", "--budget", "inf"], "'--budget'"),
        (["--paper", "--budget", "nan"], "'--budget'"),
        (["layers", "--threads", HUGE], "'--threads'"),
        (["export", "--batch", HUGE], "'--batch'"),
        (["export", "ViT-S", "--train"], "ONNX Runtime"),
        (["export", "E(ViT-Q)"], "the closest are E(ViT-S)"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("command", [["E(ViT-S)"], ["export", "E(ViT-S)"]])
@pytest.mark.parametrize("place", ["notes.txt", "bytes", "missing/out.jsonl", ""])
def test_places_for_records_that_are_refused_at_once(tmp_path: Path, command: list[str], place: str) -> None:
    files = {"notes.txt": b"my notes\n", "bytes": b"\x00\xff"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    result = bench(*command, "-o", str(tmp_path / place))
    assert result.exit_code == 2, result.output
    assert str(tmp_path / place) in result.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_records_go_where_a_link_leads(tmp_path: Path) -> None:
    """A link to a file that doesn't exist yet stays as it is, and so does its target, until there are records."""
    link, target = tmp_path / "link.jsonl", tmp_path / "target.jsonl"
    link.symlink_to(target)
    file = RecordFile(link)
    assert link.is_symlink()
    assert not target.exists()
    file.add(ordinary())
    assert len(read(target)) == 1


def test_pipes_for_records_are_refused(tmp_path: Path) -> None:
    """Opening one waits for a reader."""
    os.mkfifo(tmp_path / "pipe")
    with at_once(), pytest.raises(UsageError, match="pipe"):
        RecordFile(tmp_path / "pipe")
