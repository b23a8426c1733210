"""Runs the shell lines of the documentation in a folder that has what they name, at a size that takes no time.

A line runs in this process as it stands, but for its size: options that make it small are put behind it (`SMALL`), and
small networks take the place of the paper's. A program or command without a rule here is an error: nothing is skipped.
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
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import patch

import torch
import typer
from doc_pages import ROOT, Command
from measurements import many
from pictures import image_folder, picture, web_dataset
from reference_format import to_reference
from test_examples import load as load_example
from test_figures import COSTS
from training_runs import call

from flopping.bench.measure import Session
from flopping.bench.records import append
from flopping.models import VisionTransformer, paper_names, registered_name
from flopping.training.recipe import load as load_recipe
from flopping_cli import app

HERE = ("--device", "cpu", "--workers", "0")
RUN = ("--no-compile", *HERE)
FAST = ("epochs=1", "warmup_epochs=0", "ema=0.9", "repeats=1", "precision=float32")
FASHION = ("batch_size=500", "model_args.embed_dim=16", "model_args.depth=1", "model_args.patch_size=7")
MEASURED = ("--repeats", "1", "--warmup", "0", "--batch", "1", "--threads", "1", "--mode", "eager", "--device", "cpu")
SMALL: dict[str, tuple[str, ...]] = {
    "train": (*FAST, *RUN),
    "bench-loader": (*FAST, "--seconds", "0.02", *RUN),
    "eval": HERE,
    "models": ("*test*",),
    "bench": MEASURED,
    "bench-export": (),
    "show": ("--model", "deit3_flop_test_patch16_64"),
}
"""What is put behind a command, in favour of what it says: the last value of an option counts."""
AS_IT_IS = ("count", "recipes", "report", "verify", "convert", "predict", "export", "probe")
"""Commands that run as they stand, but for the network."""
DRAWING = ("report", "show", "probe")
"""Commands that need matplotlib. Others do without: it takes longer than they do."""
TWINS = {
    "deit3_flop_hybrid_*": "deit3_flop_hybrid_test_patch16_64",
    "deit3_flop_invariant_*": "deit3_flop_invariant_test_patch16_64",
    "deit3_flop_*": "deit3_flop_test_patch16_64",
    "deit3_*": "test_vit",
    "resmlp_flop_*": "resmlp_flop_test_64",
    "resmlp_*": "resmlp_test_64",
    "convnext_flop_iso_*": "convnext_flop_iso_test",
    "convnext_flop_*": "convnext_flop_test",
    "convnext_*": "convnext_iso_test",
}
"""Small networks in place of registered ones."""
MY_NET = """
from flopping import Layout, flop, nn as fnn

def build():
    width = Layout.regular(flop, 16)
    head = fnn.InvariantHead(width, num_classes=3)
    return fnn.Sequential(fnn.PatchEmbed(width, img_size=64, patch_size=16), head)
"""
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OUTPUTS = ("-o", "--out", "--output", "--report", "--html")
SPLITS = {"train": {"cat": 4, "dog": 4}, "val": {"cat": 26, "dog": 26}}
"""How many images there are in folders; probe needs some."""


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
    """What came of a line; `whole` where nothing was made smaller, so that the output is that of the page."""

    code: int
    out: str
    whole: bool = True


@dataclass
class Room:
    """The folder in which the lines of a page run, one after another."""

    folder: Path

    def run(self, command: Command) -> Ran:
        words = [word.replace("/shared/", f"{self.folder}/shared/") for word in command.words]
        target = None
        if ">" in words:
            words, (_, target) = words[: words.index(">")], words[words.index(">") :]
        given = b""
        if "|" in words:
            before, words = words[: words.index("|")], words[words.index("|") + 1 :]
            self.furnish(before[1:])
            # find, ls, cat: a program of the system
            given = subprocess.run(before, capture_output=True, check=True, cwd=self.folder).stdout
        if words[0] not in HANDLERS:
            raise AssertionError(f"{command.place}: no rule for {words[0]!r} in tests/doc_commands.py: {command.text}")
        ran = HANDLERS[words[0]](self, words, given)
        if target is not None:
            (self.folder / target).write_text(ran.out, encoding="utf-8")
        return ran

    def furnish(self, words: Sequence[str]) -> list[str]:
        """Make what a line names and isn't there, unless it is the line's own result; wildcards become files."""
        found: list[str] = []
        for before, word in zip(["", *words], words, strict=False):
            path = self.folder / word.replace("**", "some")
            there = path.with_name(path.name.partition(":")[0]).exists() or (
                "*" in word and any(self.folder.glob(word))
            )
            if before not in OUTPUTS and not there:
                for pattern, make in FURNITURE.items():
                    if fnmatch(word.rstrip("/"), pattern):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        make(self, path.with_name(path.name.replace("*", "some")))
                        break
            elif before in OUTPUTS:
                path.parent.mkdir(parents=True, exist_ok=True)
            files = sorted(self.folder.glob(word)) if "*" in word and not Path(word).is_absolute() else []
            found += [str(file.relative_to(self.folder)) for file in files] or [word]
        return found


def flopping(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """A command of ours, in this process."""
    name = words[1]
    if name.startswith("--"):
        return _called(words[1:], given)
    assert name in COMMANDS, f"no command is called {name!r}; there are {', '.join(COMMANDS)}"
    small: tuple[str, ...] = SMALL.get(name, ())
    if name not in SMALL and name not in AS_IT_IS:
        raise AssertionError(f"no rule for 'flopping {name}' in tests/doc_commands.py")
    asked = room.furnish(words[1:])
    if (name == "models" and len(asked) > 1) or (name == "show" and "--model" in asked):
        small = ()
    if name in ("train", "bench-loader"):
        small = _training(room, asked, small)
        keys = {word.partition("=")[0] for word in small if "=" in word}
        asked = [word for word in asked if word.partition("=")[0] not in keys]
    if name == "bench-export" or (name == "bench" and sum(map(is_network, asked)) != 1):
        return _planned(room, asked)
    large = name != "count" and "fashion-mnist" not in asked  # these have become small already, or needn't
    small_enough = [twin(word) if large and is_network(word) else word for word in asked]
    done = [*small_enough, *small]
    with ExitStack() as stack:
        if name == "report":  # counting the paper's 28 networks takes half a minute
            stack.enter_context(patch("flopping.bench.figures.paper_costs", lambda progress: COSTS))
        return replace(_called(done, given, curves=name in DRAWING), whole=done == list(words[1:]))


def _called(words: Sequence[str], given: bytes, curves: bool = True) -> Ran:
    ended = call(*words, curves=curves, stdin=given)
    return Ran(ended.code, f"{ended.out}\n{ended.err}")


def _training(room: Room, asked: Sequence[str], small: tuple[str, ...]) -> tuple[str, ...]:
    """What a run has to be to take a second; one that a page starts again, in another way, finds no folder."""
    parse(["flopping", *asked])
    folder = next((word for before, word in pairwise(asked) if before in OUTPUTS), None)
    if folder is not None and (room.folder / folder).exists() and "--resume" not in asked:
        (room.folder / folder).rename(room.folder / f"{folder}.{len(list(room.folder.rglob('run.json')))}")
    return (*FASHION, *small) if "fashion-mnist" in asked else ("batch_size=4", "img_size=32", *small)


def _planned(room: Room, asked: Sequence[str]) -> Ran:
    """Measurements of many networks, an hour's work: all is done but the measuring, which has to have something to do.

    A file for the records gets some of a test's, for the lines that follow.
    """
    planned: list[object] = []

    def measured(self: Session, groups: Sequence[Sequence[object]]) -> None:
        planned.extend(chain(*groups))
        self.sink(many()[0])  # something was measured, else the command would rightly complain

    with ExitStack() as stack:
        if asked[0] == "bench":
            measure = patch.object(Session, "measure", measured)
        else:
            measure = patch("flopping.bench.exported.compared", lambda pairs, **_: planned.extend(pairs) or [])
        stack.enter_context(measure)
        ended = call(*asked)
    assert planned, f"nothing would be measured: {ended.err}"
    for before, word in pairwise(asked):
        if before in OUTPUTS:
            _records(room, room.folder / word)
    return Ran(ended.code, ended.out, whole=False)


def torchrun(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """torch's own parser takes its options; the command runs in one process, which can't share a network."""
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(list(words[1:]))
    assert parsed.module, f"torchrun starts a module with -m: {words}"
    assert parsed.training_script == "flopping"
    return _alone(room, parsed.training_script_args)


def sbatch(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """The script is one of bash, and its arguments are those of `flopping train`."""
    checked = subprocess.run(["bash", "-n", str(ROOT / words[1])], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return _alone(room, ["train", *words[2:], "--resume"])


def _alone(room: Room, words: Sequence[str]) -> Ran:
    """What many processes would do, done by one; it knows all options, but has nobody to share a network with."""
    parse(["flopping", *words])
    return replace(flopping(room, ["flopping", *(word for word in words if word != "--shard")]), whole=False)


def make(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """The target is there, and make knows how to reach it."""
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    targets = [word for word in words[1:] if "=" not in word]
    assert set(targets) <= set(known), f"no target is called {' '.join(targets)}; there are {', '.join(known)}"
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout + done.stderr, whole=False)


def pip(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """What it would install is this project, with extras that it has."""
    assert words[1] == "install", words
    extras = metadata("flopping").get_all("Provides-Extra") or []
    for word in (word for word in words[2:] if not word.startswith("-")):
        found = re.fullmatch(r"(?:flopping|\.)(?:\[([\w,]+)\])?", word)
        assert found is not None, f"{word!r} is not this project"
        missing = set((found[1] or "").split(",")) - {"", *extras}
        assert not missing, f"there is no extra {missing}"
    return Ran(0, "", whole=False)


def python(room: Room, words: Sequence[str], given: bytes = b"") -> Ran:
    """A line of Python (-c), `-m flopping`, an example of ours with few steps, or a tool of ours, which is compiled."""
    said = io.StringIO()
    if words[1] == "-c":
        room.furnish(re.findall(r"runs/\w+", words[2]))
        with redirect_stdout(said):
            exec(compile(words[2], "a line of the docs", "exec"), {})
        return Ran(0, said.getvalue())
    if words[1:3] == ["-m", "flopping"]:
        return flopping(room, words[2:], given)
    assert (ROOT / words[1]).is_file(), f"no file {words[1]!r}"
    if words[1] != "examples/segmentation.py":
        compile((ROOT / words[1]).read_text(encoding="utf-8"), words[1], "exec")
        return Ran(0, "", whole=False)
    with redirect_stdout(said):
        load_example("segmentation").main(steps=2, batch=2, held_out=4)
    return Ran(0, said.getvalue())


HANDLERS: dict[str, Callable[[Room, Sequence[str], bytes], Ran]] = {
    "flopping": flopping,
    "torchrun": torchrun,
    "sbatch": sbatch,
    "make": make,
    "pip": pip,
    "python": python,
}


def _run(room: Room, path: Path) -> None:
    """A run that has come to its end."""
    room.furnish(["photos"])
    folder = path if path.name not in ("last", "best") or path.parent.name == "runs" else path.parent
    words = ["train", "deit3_small", "--model", "E(ViT-S)", "--data", "photos", "-o", str(folder)]
    ran = flopping(room, ["flopping", *words])
    assert ran.code == 0, ran.out


def _records(room: Room, path: Path) -> None:
    append(path, many())


def _checkpoint(room: Room, path: Path) -> None:
    torch.save(to_reference(VisionTransformer(img_size=64, embed_dim=384, depth=1, num_heads=6, num_classes=3)), path)


FURNITURE: dict[str, Callable[[Room, Path], object]] = {
    "*runs/*": _run,
    "*imagenet": lambda room, path: image_folder(path, SPLITS),
    "photos": lambda room, path: image_folder(path, SPLITS),
    "flowers": lambda room, path: image_folder(path, {"train": {"rose": 4, "lily": 4}, "val": {"rose": 2, "lily": 2}}),
    "shards": lambda room, path: web_dataset(path, {"train": [8], "validation": [4]}),
    "*.jsonl": _records,
    "*.pth": _checkpoint,
    "my_net.py:*": lambda room, path: path.with_name("my_net.py").write_text(MY_NET, encoding="utf-8"),
    "*.jpg": lambda room, path: picture(1, size=(80, 60)).save(path),
    "*.png": lambda room, path: picture(1, size=(80, 60)).save(path),
}
"""What pages speak of and a reader would have, by its name."""


def parse(words: Sequence[str]) -> None:
    """A command of ours that is not run: its options are known, its recipe and the fields that it changes too."""
    COMMANDS[words[1]].make_context(words[1], list(words[2:]))
    if words[1] in ("train", "bench-loader"):
        load_recipe(words[2]).override([word for word in words[3:] if re.match(r"[\w.]+=", word)])


def masked(text: str) -> str:
    """Text without its numbers and the frames of tables, to compare what a page shows with what was said.

    >>> masked("│ 2  │ Wrong │ 1.3e+00 │"), masked("top-1 80.69 %")
    ('# Wrong #', 'top# # %')
    """
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", re.sub(r"[│┃─━┌┐└┘├┤]", " ", text)).split())
