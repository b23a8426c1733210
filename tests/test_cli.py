"""What all commands have in common. A new one is tested the moment it is registered.

Whoever adds a command says by an example how it is called, and gives it --quiet and --json.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from measurements import ordinary
from training_runs import FAMILIES, command, image_folder, recipe_file
from typer.main import get_command
from typer.testing import CliRunner

import flopping
from flopping.bench.records import append
from flopping_cli import app

WITHOUT_JSON = {"demo": "a story for people; `eval --json` and `count --json` give its numbers"}
"""Commands that have no --json, and why."""
HEAVY = ("torch", "timm", "matplotlib", "numpy", "PIL", "flopping", "onnx", "onnxruntime", "yaml")
"""What takes long to import, and what imports it."""
ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")
HELP = f"""
import io, json, sys
from contextlib import redirect_stdout
from flopping_cli import app

found = {{}}
for name in json.loads(sys.argv[1]):
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            app([*name.split(), "--help"], prog_name="flopping")
    except SystemExit as end:
        found[name] = end.code, out.getvalue(), [heavy for heavy in {HEAVY} if heavy in sys.modules]
print(json.dumps(found))
"""


def every_command(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Commands by what is typed after `flopping`, those of groups too."""
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        inner = (*path, name)
        found |= every_command(one, inner) if hasattr(one, "commands") else {" ".join(inner): one}
    return found


COMMANDS = every_command(get_command(app))
GROUPS = sorted({name.rpartition(" ")[0] for name in COMMANDS})
"""Of commands; the first one is `flopping` itself."""
commands = pytest.mark.parametrize("name", COMMANDS)


def examples(name: str) -> list[list[str]]:
    """The words of the examples that end a command's help."""
    text = re.search(r"\n *Examples?: (.*)\Z", COMMANDS[name].help, re.DOTALL)
    assert text is not None, f"the help of {name!r} ends without an example"
    return [shlex.split(example) for example in text[1].split(";")]


def options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def parse(name: str, words: list[str]) -> dict[str, Any]:
    """What a command would get; a file that it looks for is made, empty, in the working directory."""
    try:
        found: dict[str, Any] = COMMANDS[name].make_context(name, list(words)).params
        return found
    except Exception as error:
        missing = re.search("'([^']+)' does not exist", str(error))
        if missing is None or Path(missing[1]).exists():
            raise
    Path(missing[1]).touch()
    return parse(name, words)


def run(*words: str, **environment: str) -> tuple[int, str, str]:
    """A command in this process, none of whose streams is a terminal."""
    found = CliRunner().invoke(app, list(words), env={"COLUMNS": "300", **environment})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


@cache
def helped() -> dict[str, tuple[int, str, list[str]]]:
    """The help of all commands, from one process whose output is a pipe, and the heavy modules it had imported."""
    script = [sys.executable, "-c", HELP, json.dumps([*COMMANDS, *GROUPS])]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert not done.stderr
    return {name: tuple(found) for name, found in json.loads(done.stdout).items()}


def test_there_are_commands() -> None:
    """What the other tests go through is not empty."""
    assert {"train", "eval", "bench", "convert reference"} <= COMMANDS.keys()
    assert GROUPS == ["", "convert"]


@commands
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is a call of the command itself; all of them are understood by its parser."""
    monkeypatch.chdir(tmp_path)
    first, *_ = found = examples(name)
    assert " ".join(first).startswith(f"flopping {name}"), first
    for words in found:
        start = words.index("flopping") + 1  # torchrun may stand before it
        called = next(other for other in COMMANDS if words[start : start + len(other.split())] == other.split())
        parse(called, words[start + len(called.split()) :])


def test_an_example_that_is_wrong_is_noticed() -> None:
    """The parser that examples are tried on is the real one."""
    for words in (["E(ViT-S)", "--no-such-option"], [], ["E(ViT-S)", "--batch", "many"]):
        with pytest.raises(Exception, match=r"(?i)no such option|missing (argument|parameter)|valid int"):
            parse("count", words)
    assert parse("count", ["E(ViT-S)", "--batch", "3"])["batch"] == 3


@commands
def test_options_that_all_commands_have(name: str) -> None:
    assert {"--quiet", "-q"} <= options(name)
    assert ("--json" in options(name)) != (name in WITHOUT_JSON)


def test_every_reason_is_of_a_command() -> None:
    assert COMMANDS.keys() >= WITHOUT_JSON.keys()


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help(name: str) -> None:
    """It comes without heavy imports, and without colours where nobody sees them."""
    code, text, heavy = helped()[name]
    assert code == 0
    assert heavy == []
    assert f"Usage: flopping {name}".strip() in text
    assert ESCAPE not in text


@commands
def test_wrong_use(name: str) -> None:
    """It is refused with exit code 2, on standard error."""
    wrong = [["--no-such-option"]]
    if any(parameter.required for parameter in COMMANDS[name].params):
        wrong.append([])
    for words in wrong:
        code, out, err = run(*name.split(), *words)
        assert (code, out) == (2, "")
        assert re.search("no such option|missing", err, re.IGNORECASE)
        assert f"{name} --help" in err
        assert ESCAPE not in err


def test_version() -> None:
    assert run("--version") == (0, f"flopping {flopping.__version__}\n", "")


def test_unknown_command() -> None:
    code, out, err = run("trian")
    assert (code, out) == (2, "")
    assert "trian" in err


# -- what some of them give


RESULTS = {
    "count": ["deit3_flop_test_patch16_64"],
    "models": ["resmlp_flop_test*"],
    "recipes": [],
    "verify": ["Linear"],
}
"""Commands that are done in a moment."""


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    """On standard output, the same with --quiet, and as lines of JSON with --json; nothing is coloured."""
    code, out, err = run(name, *RESULTS[name])
    assert (code, err.strip()) == (0, "")
    assert len(out.splitlines()) > 3
    assert ESCAPE not in out
    assert run(name, *RESULTS[name], "--quiet") == (code, out, "")
    code, out, err = run(name, *RESULTS[name], "--json", "-q")
    assert (code, err) == (0, "")
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())


def test_results_and_warnings_of_a_quiet_run(tmp_path: Path) -> None:
    """Training and testing say nothing on the way, but what a user should know is said."""
    data, folder = image_folder(tmp_path / "data", train=4, test=2), tmp_path / "run"
    bad = data / "val" / "class-0" / "001.png"
    bad.write_bytes(b"")
    model, fields = FAMILIES["ViT"]
    kind = {"optimizer": "adamw", "lr": 1e-3, "model_args": fields["model_args"]}
    recipe = recipe_file(tmp_path / "a.yaml", "ViT", epochs=1, batch_size=12, **kind)
    words = [word for word in command(recipe, data, folder, model, "--workers", "0") if word != "--json"]
    code, out, err = run(*words, "-q")
    assert code == 0, err
    assert re.fullmatch(
        rf"{model} \({folder}\) on 5 test images:\n  top-1 [\d.]+ %, top-5 100.00 %\n"
        r"  mirrored: top-1 [\d.]+ %; 0 images get another class\n",
        out,
    )
    warning = f"1 test image could not be read, left out: {bad}. Put good images there"
    assert err == f"{warning} before the next run.\n"
    code, out, err = run(*words, "--resume")
    assert "has come to its end already" in err
    tested = ["eval", str(folder), "--data", str(data), "--workers", "0", "--device", "cpu", "-q"]
    assert run(*tested) == (
        1,
        out.replace(str(folder), str(folder / "checkpoints" / "step-00000001")),
        f"1 image could not be read and was left out: {bad}. Replace it\n",
    )
    code, out, _ = run(*tested, "--json")
    assert json.loads(out)["images"] == 5


def in_a_terminal(*words: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from flopping_cli import app; app(prog_name='flopping')", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**plain, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    found = b""
    with suppress(OSError):  # how a terminal ends
        while part := os.read(ours, 1 << 16):
            found += part
    process.wait()
    os.close(ours)
    return found.decode()


def test_colours() -> None:
    """A terminal has them, unless its user wants none."""
    coloured, plain = in_a_terminal("--help"), in_a_terminal("--help", NO_COLOR="1")
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    assert "Usage" in plain


# -- what is not installed

HUB = ("--data", "hfds/someone/photos", "-o", "OUT", "--no-compile", "--device", "cpu")
EXTRAS = [
    ("plot", "matplotlib", ["report", "RECORDS", "-o", "OUT"]),
    ("plot", "matplotlib", ["experiment", "cifar10", "--data", "data", "-o", "OUT", "--report", "a.md"]),
    ("data", "datasets", ["train", "fashion_vit", *HUB]),
    ("data", "webdataset", ["train", "fashion_vit", *HUB[2:], "--data", "wds/photos"]),
]
"""Extras, a module that each brings, and commands that can't do without it."""


@pytest.mark.parametrize(("extra", "module", "words"), EXTRAS, ids=lambda value: str(value)[:20])
def test_an_extra_that_is_missing(extra: str, module: str, words: list[str], tmp_path: Path) -> None:
    """The refusal says what brings it, before anything is done."""
    places = {"OUT": tmp_path / "out", "RECORDS": tmp_path / "records.jsonl"}
    append(places["RECORDS"], [ordinary()])
    with patch.dict(sys.modules, {module: None}):
        code, out, err = run(*(str(places.get(word, word)) for word in words))
    assert (code, out) == (2, "")
    assert f"pip install 'flopping[{extra}]'" in err
    assert not places["OUT"].exists()
