"""What all commands have in common. A new one is tested the moment it is registered.

Whoever adds a command says by an example how it is called, and gives it --quiet and --json.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.measurements import ordinary
from support.training_runs import FAMILIES, command, image_folder, recipe_file
from typer.main import get_command
from typer.testing import CliRunner

import flopping.training.recipe
from flopping.cost.records import append
from flopping_cli import app
from flopping_cli.common import PANELS

WITHOUT_JSON = {"demo": "a story for people; `eval --json` and `count --json` give its numbers"}
"""Commands that have no --json, and why."""
HEAVY = ("torch", "timm", "matplotlib", "numpy", "PIL", "flopping", "onnx", "onnxruntime", "ruamel")
"""What takes long to import, and what imports it; pydantic is imported by typer itself, for the help of a command."""
ESCAPE = "\x1b"
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
    assert {"train", "eval", "bench networks", "convert reference", *WITHOUT_JSON} <= COMMANDS.keys()
    assert GROUPS == ["", "bench", "convert"]


@commands
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is a call of the command itself; all of them are understood by its parser."""
    monkeypatch.chdir(tmp_path)
    first, *_ = found = examples(name)
    assert " ".join(first).startswith(f"flopping {name.removesuffix(' networks')}"), first
    for words in found:
        del words[: words.index("flopping") + 1]  # torchrun may stand before it
        if words[0] == "bench" and " ".join(words[:2]) not in COMMANDS:
            words.insert(1, "networks")
        called = next(other for other in COMMANDS if words[: len(other.split())] == other.split())
        parse(called, words[len(called.split()) :])


def test_bench_measures_networks_unless_told_otherwise() -> None:
    for words in (["bench", "E(ViT-Q)"], ["bench", "networks", "E(ViT-Q)"], ["bench", "--quiet", "E(ViT-Q)"]):
        code, _, err = run(*words)
        assert code == 2
        assert "E(ViT-Q)" in err


@commands
def test_options_that_all_commands_have(name: str) -> None:
    assert {"--quiet", "-q"} <= options(name)
    assert ("--json" in options(name)) != (name in WITHOUT_JSON)


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help(name: str) -> None:
    """It comes without heavy imports, and without colours where nobody sees them."""
    code, text, heavy = helped()[name]
    assert code == 0
    assert heavy == []
    assert f"Usage: flopping {name}".strip() in text
    assert ESCAPE not in text


def test_help_begins_with_what_people_do_first() -> None:
    """Every command stands in a panel; a new one has to be given its place."""
    text = helped()[""][1]
    assert set(sum(PANELS.values(), ())) == {name.split()[0] for name in COMMANDS}
    listed = re.findall(rf"^\W ({'|'.join(sum(PANELS.values(), ()))}) |\W ({'|'.join(PANELS)}) \W", text, re.MULTILINE)
    words = [word for panel, names in PANELS.items() for word in (panel, *names)]
    assert [command or panel for command, panel in listed] == words


def test_ctrl_c_during_the_imports_has_no_traceback() -> None:
    script = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
import flopping_cli
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    "wrong",
    ["--depth -1", "--tol nan", "--tol inf", "--tol -1", "--img-size 100000000", "--img-size 8193", "--group trivial"],
)
def test_what_verify_refuses(wrong: str) -> None:
    code, out, err = run("verify", "convnext_flop_test", *wrong.split())
    assert (code, out) == (2, "")
    assert wrong.split()[0] in err


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
    recipe = recipe_file(tmp_path / "a.yaml", "ResMLP", epochs=1, batch_size=12, **kind)
    words = [word for word in command(recipe, data, folder, model, "--workers", "0") if word != "--json"]
    code, out, err = run(*words, "-q")
    assert code == 0, err
    assert re.fullmatch(
        rf"{model}, the last weights \({folder}/last\) on 5 validation images:\n  top-1 [\d.]+ %\n"
        r"  mirrored: top-1 [\d.]+ %; 0 images get another class\n"
        rf"The best weights \({folder}/best\): top-1 [\d.]+ % after step 1.+\n",
        out,
    )
    warning = f"1 validation image could not be read, left out: {bad}. Put good images there"
    family = "The recipe was made for ResMLP, and the network is a VisionTransformer: other values may suit it better."
    assert err == f"{family}\n{warning} before the next run.\n"
    code, out, err = run(*words, "--resume")
    assert "The run is already complete" in err
    tested = ["eval", str(folder), "--data", str(data), "--workers", "0", "--device", "cpu", "-q"]
    code, evaluated, err = run(*tested)
    assert (code, err) == (1, f"1 image could not be read and was left out: {bad}. Replace it\n")
    first, *figures, last = evaluated.splitlines()
    best = folder / "checkpoints" / "step-00000001"
    assert first == f"{model}, the best weights ({best}) on 5 images ({data / 'val'}):"
    assert figures == out.splitlines()[1:3]
    assert last.startswith("If the run was validated on these images")
    code, out, _ = run(*tested, "--json")
    chosen = json.loads(out)
    assert (chosen["images"], chosen["weights"]) == (5, "best")
    code, out, _ = run(*words, "--resume", "--json")
    assert json.loads(out)["weights"] == "last"
    assert json.loads(out)["best"] == {"step": 1, "top1": chosen["top1"]}


# -- what is not installed

HUB = ("--data", "hfds/someone/photos", "-o", "OUT", "--no-compile", "--device", "cpu")
EXTRAS = [
    ("plot", "matplotlib", ["report", "RECORDS", "-o", "out.md"]),
    ("plot", "matplotlib", ["experiment", "cifar10", "--data", "data", "-o", "OUT", "--report", "a.md"]),
    ("data", "datasets", ["train", "fashion_vit", *HUB]),
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
