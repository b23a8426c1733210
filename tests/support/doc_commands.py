"""Runs the shell lines of the documentation in a folder that has what they name, at a size that takes no time.

A line runs in this process as it is, but for its size: options that make it small are added (`SMALL`), and small
networks replace the paper's. A program or command without a rule here is an error: nothing is skipped.
"""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib.metadata import metadata
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import torch
import typer

from flopping.cost.measure import Session
from flopping.cost.records import append
from flopping.lab.doctor import plan
from flopping.models import VisionTransformer, paper_names, registered_name
from flopping.training.recipe import load as load_recipe
from flopping_cli import app
from support.doc_pages import ROOT, Command
from support.image_files import image_folder, make_image, web_dataset
from support.measurements import many
from support.reference_format import to_reference
from support.scripts import load as load_example
from support.training_runs import call, few_training_images

HERE = ("--device", "cpu", "--workers", "0")
RUN = ("--no-compile", *HERE)
FAST = ("epochs=1", "warmup_epochs=0", "ema=0.9", "repeats=1", "precision=float32")
FASHION = ("batch_size=200", "model_args.embed_dim=16", "model_args.depth=1", "model_args.patch_size=7")
MEASURED = ("--repeats", "1", "--warmup", "0", "--batch", "1", "--threads", "1", "--mode", "eager", "--device", "cpu")
SMALL: dict[str, tuple[str, ...]] = {
    "train": (*FAST, *RUN),
    "bench loader": (*FAST, "--seconds", "0.02", *RUN),
    "eval": HERE,
    "models": ("*test*",),
    "bench": MEASURED,
    "bench launches": ("--no-compile", "--batch", "1"),
    "show": ("--model", "deit3_flop_test_patch16_64"),
    "doctor": ("--device", "cpu", "--quiet"),
    **dict.fromkeys(("count", "recipes", "report", "verify", "convert", "predict", "export", "probe"), ()),
}
"""Options that are added to a command: the last value of an option counts."""
DRAWING = ("report", "show", "probe")
"""Commands that need matplotlib. Others do without: it takes longer than they do."""
TWINS = {
    "deit3_flop_hybrid_*": "deit3_flop_hybrid_test_patch16_64",
    "deit3_flop_invariant_*": "deit3_flop_invariant_test_patch16_64",
    "deit3_flop_*": "deit3_flop_test_patch16_64",
    "deit3_octic_invariant_*": "deit3_octic_invariant_test_patch16_64",
    "deit3_octic_*": "deit3_octic_test_patch16_64",
    "deit3_*": "test_vit",
    "resmlp_flop_*": "resmlp_flop_test_64",
    "resmlp_*": "resmlp_test_64",
    "convnext_flop_iso_*": "convnext_flop_iso_test",
    "convnext_flop_*": "convnext_flop_test",
    "convnext_*": "convnext_iso_test",
}
"""Small networks that replace registered ones."""
MY_NET = """
from flopping import Layout, flop, nn as fnn

def build():
    width = Layout.regular(flop, 16)
    head = fnn.InvariantHead(width, num_classes=3)
    return fnn.Sequential(fnn.PatchEmbed(width, img_size=64, patch_size=16), head)
"""
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OUTPUTS = ("-o", "--output", "--report")
SPLITS = {"train": {"cat": 4, "dog": 4}, "val": {"cat": 26, "dog": 26}}
"""How many images there are in folders; probe needs some."""
FLOWERS = {"train": {"rose": 4, "lily": 4}, "val": {"rose": 2, "lily": 2}}


def twin(name: str) -> str:
    """A small network like the one that a page names, which has to exist.

    >>> twin("H(ViT-H)"), twin("deit3_flop_base_patch16_224")
    ('deit3_flop_hybrid_test_patch16_64', 'deit3_flop_test_patch16_64')
    """
    registered = registered_name(name)
    return next((small for pattern, small in TWINS.items() if fnmatch(registered, pattern)), registered)


def is_network(word: str) -> bool:
    return word in paper_names() or (word.startswith(("deit3_", "resmlp_", "convnext_")) and word.endswith("_224"))


@dataclass
class Ran:
    """The result of a line; `whole` where nothing was made smaller, so that the output is that of the page."""

    code: int
    out: str
    whole: bool = True


def run_line(command: Command, folder: Path) -> Ran:
    """Run a line of a page, in the folder that is the current one and has what the lines before have made."""
    words = [word.replace("/shared/", f"{folder}/shared/") for word in command.words]
    target, given = None, b""
    if ">" in words:
        words, (_, target) = words[: words.index(">")], words[words.index(">") :]
    if "|" in words:
        before, words = words[: words.index("|")], words[words.index("|") + 1 :]
        make_inputs(folder, before[1:])
        # find, ls, cat: a program of the system
        given = subprocess.run(before, capture_output=True, check=True, cwd=folder).stdout
    if words[1:2] == ["export"] and not command.place.startswith(("docs/export.md", "README.md")):
        words = [word.replace(".onnx", ".pt2") for word in words]  # in less time; these pages write both
    if words[0] not in PROGRAMS:
        raise AssertionError(f"{command.place}: no rule for {words[0]!r} in {__file__}: {command.text}")
    ran = PROGRAMS[words[0]](folder, words, given)
    if target is not None:
        (folder / target).write_text(ran.out, encoding="utf-8")
    return ran


def make_inputs(folder: Path, words: Sequence[str]) -> list[str]:
    """Make what a line names and isn't there, unless it is the line's own output; wildcards become files."""
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        path = folder / word.replace("**", "some")
        if before in OUTPUTS:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.with_name(path.name.partition(":")[0]).exists() and not ("*" in word and any(folder.glob(word))):
            make = next((make for pattern, make in INPUTS.items() if fnmatch(word.rstrip("/"), pattern)), None)
            if make is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                make(folder, path.with_name(path.name.replace("*", "some")))
        files = sorted(folder.glob(word)) if "*" in word and not Path(word).is_absolute() else []
        found += [str(file.relative_to(folder)) for file in files] or [word]
    return found


def flopping(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """A command of ours, in this process."""
    if words[1].startswith("--"):
        return _call(words[1:], given)
    assert words[1] in COMMANDS, f"no command is called {words[1]!r}; there are {', '.join(COMMANDS)}"
    name = " ".join(words[1 : 1 + _count_command_words(words)])
    if name not in SMALL:
        raise AssertionError(f"no rule for 'flopping {name}' in {__file__}")
    small, asked = SMALL[name], make_inputs(folder, words[1:])
    named = name == "models" and len(asked) > 1 and not asked[1].startswith("-")
    if named or (name == "show" and "--model" in asked):
        small = ()
    if name in ("train", "bench loader"):
        parse(["flopping", *asked])
        _move_run(folder, asked)
        small = (*(FASHION if "fashion-mnist" in asked else ("batch_size=4", "img_size=32")), *small)
        keys = {word.partition("=")[0] for word in small if "=" in word}
        asked = [word for word in asked if word.partition("=")[0] not in keys]
    if name == "bench" and ("onnxruntime" in asked or sum(map(is_network, asked)) != 1):
        return _plan(folder, asked)
    large = name != "bench launches" and "fashion-mnist" not in asked  # these have become small already, or needn't
    done = [*(twin(word) if large and is_network(word) else word for word in asked), *small]
    return replace(_call(done, given, curves=name in DRAWING), whole=done == list(words[1:]))


def _call(words: Sequence[str], given: bytes, curves: bool = True) -> Ran:
    with ExitStack() as stack:
        stack.enter_context(few_training_images())
        if words[0] == "doctor":  # the first of its checks
            stack.enter_context(patch("flopping.lab.doctor.plan", lambda device: plan(device)[:1]))
        ended = call(*words, curves=curves, stdin=given)
    return Ran(ended.code, f"{ended.out}\n{ended.err}")


def _move_run(folder: Path, asked: Sequence[str]) -> None:
    """Move a run away that a page starts again, in another way."""
    run = next((word for before, word in pairwise(asked) if before in OUTPUTS), None)
    if run is not None and (folder / run).exists() and "--resume" not in asked:
        (folder / run).rename(folder / f"{run}.{len(list(folder.rglob('run.json')))}")


def _plan(folder: Path, asked: Sequence[str]) -> Ran:
    """Measurements of many networks, an hour's work: all is done but the measuring, which has to have something to do.

    A file for the records gets some of a test's, for the lines that follow.
    """
    planned: list[object] = []

    def measure(self: Session, group: Sequence[object]) -> None:
        planned.extend(group)
        self.sink(many()[0])  # something was measured, else the command would rightly complain

    with patch.object(Session, "measure", measure):
        ended = call(*asked)
    assert planned, f"nothing would be measured: {ended.err}"
    for before, word in pairwise(asked):
        if before in OUTPUTS:
            append(folder / word, many())
    return Ran(ended.code, ended.out, whole=False)


def torchrun(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """torch's own parser takes its options; the command runs in one process, which can't shard a network."""
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(list(words[1:]))
    assert parsed.module, f"torchrun starts a module with -m: {words}"
    assert parsed.training_script == "flopping"
    return _run_alone(folder, parsed.training_script_args)


def sbatch(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """The script is one of bash, and its arguments are those of `flopping train`."""
    checked = subprocess.run(["bash", "-n", str(ROOT / words[1])], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return _run_alone(folder, ["train", *words[2:], "--resume"])


def _run_alone(folder: Path, words: Sequence[str]) -> Ran:
    parse(["flopping", *words])
    return replace(flopping(folder, ["flopping", *(word for word in words if word != "--shard")]), whole=False)


def make(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """The target exists, and make knows how to reach it."""
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    targets = [word for word in words[1:] if "=" not in word]
    assert set(targets) <= set(known), f"no target is called {' '.join(targets)}; there are {', '.join(known)}"
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout + done.stderr, whole=False)


def pip(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """What it would install is this project, with extras that it has."""
    assert words[1] == "install", words
    extras = metadata("flopping").get_all("Provides-Extra") or []
    for word in (word for word in words[2:] if not word.startswith("-")):
        found = re.fullmatch(r"(?:flopping|\.)(?:\[([\w,]+)\])?", word)
        assert found is not None, f"{word!r} is not this project"
        missing = set((found[1] or "").split(",")) - {"", *extras}
        assert not missing, f"there is no extra {missing}"
    return Ran(0, "", whole=False)


def python(folder: Path, words: Sequence[str], given: bytes = b"") -> Ran:
    """A line of Python (-c), `-m flopping`, an example of ours with few steps, or a tool of ours, which is compiled."""
    said = io.StringIO()
    if words[1] == "-c":
        make_inputs(folder, re.findall(r"runs/\w+", words[2]))
        with redirect_stdout(said):
            exec(compile(words[2], "a line of the docs", "exec"), {})
        return Ran(0, said.getvalue())
    if words[1:3] == ["-m", "flopping"]:
        return flopping(folder, words[2:], given)
    assert (ROOT / words[1]).is_file(), f"no file {words[1]!r}"
    if words[1] != "examples/segmentation.py":
        compile((ROOT / words[1]).read_text(encoding="utf-8"), words[1], "exec")
        return Ran(0, "", whole=False)
    with redirect_stdout(said):
        load_example("segmentation").main(steps=2, batch=2, held_out=4)
    return Ran(0, said.getvalue())


PROGRAMS: dict[str, Callable[[Path, Sequence[str], bytes], Ran]] = {
    program.__name__: program for program in (flopping, torchrun, sbatch, make, pip, python)
}


def _train_run(folder: Path, path: Path) -> None:
    """A run that has ended."""
    make_inputs(folder, ["photos"])
    run = path if path.name not in ("last", "best") or path.parent.name == "runs" else path.parent
    words = ["train", "deit3_small", "--model", "E(ViT-S)", "--data", "photos", "-o", str(run), "model_args.depth=1"]
    ran = flopping(folder, ["flopping", *words])
    assert ran.code == 0, ran.out


def _save_reference(folder: Path, path: Path) -> None:
    torch.save(to_reference(VisionTransformer(img_size=64, embed_dim=384, depth=1, num_heads=6, num_classes=3)), path)


INPUTS: dict[str, Callable[[Path, Path], object]] = {
    "*runs/*": _train_run,
    "*imagenet": lambda folder, path: image_folder(path, SPLITS),
    "photos": lambda folder, path: image_folder(path, SPLITS),
    "flowers": lambda folder, path: image_folder(path, FLOWERS),
    "shards": lambda folder, path: web_dataset(path, {"train": [8], "validation": [4]}),
    "*.jsonl": lambda folder, path: append(path, many()),
    "*.pth": _save_reference,
    "my_net.py:*": lambda folder, path: path.with_name("my_net.py").write_text(MY_NET, encoding="utf-8"),
    "*.jpg": lambda folder, path: make_image(1, size=(80, 60)).save(path),
    "*.png": lambda folder, path: make_image(1, size=(80, 60)).save(path),
}
"""What pages name and a reader would have."""


def parse(words: Sequence[str]) -> None:
    """Check a command of ours without running it: its options, its recipe, and the fields that it changes."""
    first = 1 + _count_command_words(words)
    command = COMMANDS[words[1]] if first == 2 else COMMANDS[words[1]].commands[words[2]]
    command.make_context(words[1], list(words[first:]))
    if words[1] == "train" or words[1:3] == ["bench", "loader"]:
        load_recipe(words[first]).override([word for word in words[first + 1 :] if re.match(r"[\w.]+=", word)])


def _count_command_words(words: Sequence[str]) -> int:
    """`flopping train` has one, `flopping bench loader` two."""
    return 2 if words[1] == "bench" and words[2] in COMMANDS["bench"].commands else 1


def mask(text: str) -> str:
    """Text without its numbers and the frames of tables, to compare what a page shows with what was printed.

    >>> mask("│ 2  │ Wrong │ 1.3e+00 │"), mask("top-1 80.69 %")
    ('# Wrong #', 'top# # %')
    """
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", re.sub(r"[│┃─━┌┐└┘├┤]", " ", text)).split())
