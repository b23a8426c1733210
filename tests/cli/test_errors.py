"""How commands end: usage errors with a message and exit code 2, bugs with their traceback."""

from __future__ import annotations

import errno
import io
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from support.measurements import ordinary
from support.training_runs import TINY, call, image_folder
from typer.testing import CliRunner

import flopping.training.recipe
from flopping.cost.records import append
from flopping.errors import UsageError
from flopping.training.distributed import SharedUsageError
from flopping.training.trainer import Trainer
from flopping_cli import app

BUGS = [ValueError("a bug"), PermissionError("a bug"), PermissionError(errno.EACCES, "a bug", "/opt/not/typed")]


@pytest.mark.parametrize("error", BUGS, ids=repr)
def test_a_bug_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system refuses a file that nobody named."""

    def broken(name: str) -> None:
        raise error

    monkeypatch.setattr(flopping.training.recipe, "load", broken)
    found = CliRunner().invoke(app, ["recipes", "deit3_base"])
    assert found.exception is error
    assert "Invalid value" not in found.output


def test_a_file_that_was_named_and_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(name: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "in" / "a.yaml"))

    monkeypatch.setattr(flopping.training.recipe, "load", denied)
    ended = call("recipes", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert f"{tmp_path}/in/a.yaml" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["recipes", "LONG.yaml"],
        ["train", "LONG.yaml"],
        ["eval", "LONG", "--data", "."],
        ["predict", "LONG/LONG", "cat.jpg"],
        ["verify", "LONG.py:build"],
        ["show", "LONG.png"],
        ["train", "fashion_vit", "--data", "LONG"],
        ["train", "fashion_vit", "--data", "fashion-mnist", "-o", "LONG", "--device", "cpu"],
        ["report", "RECORDS", "-o", "LONG"],
    ],
    ids=" ".join,
)
def test_names_that_the_system_refuses(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says of a name that is too long is no bug."""
    monkeypatch.chdir(tmp_path)
    append(Path("records.jsonl"), [ordinary()])
    named = [word.replace("LONG", "a" * 300).replace("RECORDS", "records.jsonl") for word in words]
    ended = call(*named, curves=True)
    assert (ended.code, ended.out) == (2, "")
    assert "a" * 300 in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_own_code_that_exits_is_refused(tmp_path: Path) -> None:
    """Whatever it passes to sys.exit: nothing was checked."""
    (tmp_path / "net.py").write_text("import sys\n\ndef build():\n    sys.exit(0)\n")
    ended = call("verify", f"{tmp_path}/net.py:build")
    assert (ended.code, ended.out) == (2, "")
    assert "sys.exit(0)" in ended.err


@pytest.mark.parametrize(
    "line",
    [
        "train fashion_vit --data fashion-mnist -o EMPTY",
        "train EMPTY --data fashion-mnist",
        "demo -o EMPTY",
        "eval . --data=",
        "eval EMPTY --data fashion-mnist",
        "predict EMPTY fashion-mnist",
        "predict ViT-S EMPTY",
        "export EMPTY -o net.pt2",
        "export ViT-S --output=",
        "show fashion-mnist:1 -o EMPTY",
        "probe ViT-S EMPTY",
        "report EMPTY",
        "convert reference net.pth -o EMPTY",
        "bench E(ViT-S) --baseline EMPTY",
        "bench loader small_data --model ViT-S --data EMPTY",
        "experiment cifar10 --data photos -o EMPTY --report page.md",
        "count EMPTY",
        "verify EMPTY",
    ],
)
def test_empty_words(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell variable that isn't set is not the current folder."""
    monkeypatch.chdir(tmp_path)
    words = line.split()
    before = next((a for a, b in itertools.pairwise(words) if b == "EMPTY" and a.startswith("-")), "")
    ended = call(*(word.replace("EMPTY", "") for word in words), curves=True)
    assert (ended.code, ended.out) == (2, "")
    given = f"{before or (words[-1][:-1] if words[-1].endswith('=') else '')} ''".strip()
    assert f"{given} names nothing" in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        "verify loop.py:build",
        "count loop.py:build",
        "predict loop.py:build loop.py",
        "export loop.py:build -o net.pt2",
        "show loop.py --model loop.py:build",
        "train fashion_vit --data fashion-mnist --model loop.py:build -o run",
    ],
)
def test_links_to_themselves(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.py").symlink_to("loop.py")
    ended = call(*line.split(), curves=True)
    assert (ended.code, ended.out) == (2, "")
    assert "loop.py" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["loop.py"]


@pytest.mark.parametrize("command", ["verify", "count", "predict", "export", "probe"])
def test_images_of_absurd_sizes(command: str) -> None:
    more = {"predict": ["photo.png"], "export": ["-o", "net.pt2"], "probe": ["photos"]}.get(command, [])
    ended = call(command, "deit3_flop_test_patch16_64", *more, "--img-size", str(16 * 10**8))
    assert (ended.code, ended.out) == (2, "")
    assert "'--img-size'" in ended.err


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["count", "--help"]], ids=" ".join)
def test_help_on_a_full_disk(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as ended:
            app(words)
        monkeypatch.undo()
    assert ended.value.code == 1
    assert "No space left on device" in capsys.readouterr().err


def test_output_that_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without a character for a name, and an output that is closed."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    for stream in (out, None):
        monkeypatch.setattr("sys.stdout", stream)
        with pytest.raises(SystemExit):
            app(["recipes", "--fields", "--json", "-q"])
        print("é")
        sys.stdout.flush()
    sys.stdout.close()
    assert out.buffer.getvalue().endswith(b"\\xe9\n")  # type: ignore[attr-defined]


def test_a_usage_error_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise UsageError(f"no {name}")

    monkeypatch.setattr(flopping.training.recipe, "load", refuse)
    found = CliRunner().invoke(app, ["recipes", "deit3_base"])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "no deit3_base" in found.stderr
    assert "recipes --help" in found.stderr


def test_what_all_ranks_refuse_is_shown_by_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise SharedUsageError("no such recipe")

    monkeypatch.setattr(flopping.training.recipe, "load", refuse)
    monkeypatch.setattr("flopping_cli.common.RANK0_SECONDS", 0.0)
    first, second = (CliRunner().invoke(app, ["recipes", "deit3_base"], env={"RANK": rank}) for rank in "01")
    assert (first.exit_code, second.exit_code, second.output) == (2, 2, "")
    assert "no such recipe" in first.stderr


def test_a_bug_in_training_names_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Trainer.save

    def save_and_break(trainer: Trainer, *arguments: Any) -> Path:
        save(trainer, *arguments)
        raise ValueError("a bug")

    monkeypatch.setattr(Trainer, "save", save_and_break)
    data, run = image_folder(tmp_path / "data", train=4, test=1, classes=2), tmp_path / "run"
    options = ["--data", str(data), "-o", str(run), "--device", "cpu", "--workers", "0", "--no-compile", "-q"]
    changes = [*TINY, "epochs=1", "warmup_epochs=0"]
    found = CliRunner().invoke(app, ["train", "fashion_vit", *changes, *options], env={"COLUMNS": "300"})
    assert type(found.exception) is ValueError
    assert f"The last good checkpoint is '{run}/checkpoints/step-00000002'" in found.stderr
