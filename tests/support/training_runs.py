"""Small runs for tests of training: images, recipes with all that is random, and processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

from flopping.data import fashion
from flopping.training.checkpoint import AVERAGE, CONFIG, TRAINING, WEIGHTS, CheckpointManager
from flopping.training.run_log import read_log
from flopping_cli import app
from support.forked_python import ForkedPython, ask

TIMING = ("images_per_s", "waiting", "seconds")
"""What a log says about speed, and no two runs have in common."""
RANDAUGMENT = {"augment": "rand-m9-mstd0.5-inc1"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": (
        "deit3_flop_test_patch16_64",
        {
            "model_args": {"embed_dim": 32, "depth": 2, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1},
            "optimizer": "lamb",
            "augment": "3a",
            "repeats": 3,
            "loss": "bce",
            "label_smoothing": 0.0,
        },
    ),
    "ResMLP": (
        "resmlp_flop_test_64",
        {"model_args": {"embed_dim": 32, "depth": 2, "proj_drop_rate": 0.1}, "optimizer": "lamb", **RANDAUGMENT},
    ),
    "ConvNeXt": (
        "convnext_flop_iso_test",
        {"model_args": {"dims": [16], "depths": [2]}, "optimizer": "adamw", "drop_path_rises": True, **RANDAUGMENT},
    ),
}
"""A small network of each, and what its recipes have of their own."""
EVERYTHING = {
    "epochs": 2,
    "batch_size": 12,
    "lr": 3e-3,
    "warmup_epochs": 1,
    "weight_decay": 0.05,
    "clip_grad": 1.0,
    "ema": 0.9,
    "drop_path": 0.2,
    "dropout": 0.2,
    "label_smoothing": 0.1,
    "color_jitter": 0.3,
    "crop_scale": 0.5,
    "erase": 0.5,
    "mixup": 0.8,
    "cutmix": 1.0,
}
"""All that is random or has a state."""
PAUSE = ("open", "/.new-step-", 8, int(signal.SIGSTOP))
"""A strike: the process pauses before it writes the weights of its second checkpoint."""
STEPS = 4
"""Steps of an epoch of everything: 48 images in batches of 12."""
LAST = 2 * STEPS
"""And of two epochs."""
SAVED = ("--micro-batch", "6", "--workers", "1", "--save-steps", "1", "--resume")
ANIMALS = {"train": {"cat": 4, "dog": 4}, "val": {"cat": 1, "dog": 1}}
"""Numbers of images for `pictures.image_folder`."""
TINY = ["model_args.embed_dim=16", "model_args.depth=1", "in_chans=3", "mean=null", "std=null", "batch_size=4"]
"""Changes of the recipe fashion_vit."""
ABOUT = {"source": "tests", "command": "none", "cost": "none"}
Strikes: TypeAlias = Sequence[tuple[str, str, int, int]]


def image_folder(root: Path, train: int, test: int, classes: int = 3, size: int = 65) -> Path:
    """So many images of each class: noise around a colour. Those of 64 x 64 and fewer pixels are opened once."""
    numbers = np.random.default_rng(0)
    for split, count in (("train", train), ("val", test)):
        for label in range(classes):
            folder = root / split / f"class-{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(0, 128, (size, size, 3)) + 127 * (np.arange(3) == label % 3)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03d}.png")
    return root


def recipe_file(path: Path, family: str, **fields: Any) -> Path:
    """A recipe; JSON is YAML."""
    path.write_text(json.dumps({"family": family, "about": ABOUT, "img_size": 32, **fields}), encoding="utf-8")
    return path


def command(recipe: Path, data: Path, run: Path, model: str, *more: str) -> list[str]:
    """A run on one core that does everything often: it logs every step, and works on two micro-batches of a batch."""
    options = ["--data", str(data), "-o", str(run), "--device", "cpu", "--log-steps", "1", "--json"]
    options += ["--model", model] if model else []
    return ["train", str(recipe), *options, *([] if "--compile" in more else ["--no-compile"]), *more]


def run_of(family: str, images: Path, folder: Path, *more: str) -> list[str]:
    """A run with everything, in two micro-batches per step, which saves every step and may be resumed."""
    model, fields = FAMILIES[family]
    folder.parent.mkdir(exist_ok=True)
    recipe = recipe_file(folder.parent / f"{family}.yaml", family, **{**EVERYTHING, **fields})
    return command(recipe, images, folder, model, *SAVED, *more)


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said, with single spaces."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@contextmanager
def without_matplotlib() -> Iterator[None]:
    """As if it weren't installed. What else is imported meanwhile stays, as torch's registries want it."""
    kept = {name: module for name, module in sys.modules.items() if name == "matplotlib"}
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["matplotlib"]
        sys.modules.update(kept)


def call(*arguments: str, curves: bool = False, stdin: str | bytes | None = None) -> Ended:
    """A command in this process; without matplotlib, which takes longer than a run, but for curves."""
    with nullcontext() if curves else without_matplotlib():
        found = CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "1000"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Ended(found.exit_code, found.stdout, " ".join(found.stderr.split()))


def few_training_images(count: int = 400) -> AbstractContextManager[object]:
    """Within it, Fashion-MNIST has no more training images."""
    read = fashion.read_subset

    def read_few(train: bool) -> fashion.Labelled:
        images, labels = read(train)
        return (images[:count], labels[:count]) if train else (images, labels)

    return patch.object(fashion, "read_subset", read_few)


def train_tiny(data: str | Path, run: Path, *more: str) -> Ended:
    """Train E(ViT-S), made tiny, for an epoch."""
    options = ["--data", str(data), "-o", str(run), "--device", "cpu", "--workers", "0", "--no-compile"]
    return call("train", "fashion_vit", *TINY, "epochs=1", "warmup_epochs=0", *options, *more)


def flopping(*arguments: str) -> None:
    """A command that ends this process."""
    app(arguments, prog_name="flopping")


def flopping_while_it_compiles(number: int, *arguments: str) -> None:
    """A command that is asked to stop while a network is compiled: its whole group is signalled, as by a terminal.

    What compiles it is a process that does nothing else, and has to end well, as a C++ compiler has to.
    """
    left = [number]

    def compiled(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiler = subprocess.Popen(["sleep", "0.3"])
        while left:  # by another process: readers of images take it for their end if it comes from this one
            group = f"-{os.getpgrp()}"
            subprocess.run(["kill", f"-{left.pop()}", "--", group], check=True, start_new_session=True)
        if compiler.wait():
            raise RuntimeError("the compiler failed")
        return graph.forward

    torch.compiler.set_default_backend(compiled)
    flopping(*arguments)


def write_checkpoint(run: str | Path, step: int, score: float | None = None, size: int = 8) -> Path:
    """A checkpoint in which every number is its step."""
    weights = {"weight": torch.full((size,), float(step))}
    parts = {CONFIG: f'{{"step": {step}}}', WEIGHTS: weights, AVERAGE: weights, TRAINING: {"step": step}}
    return CheckpointManager(Path(run)).save(step, score, parts.items())


class Process:
    """A command in a process, and a process group, of its own."""

    def __init__(self, server: socket.socket, out: Path, err: Path) -> None:
        self.server, self.answers, self.out, self.err = server, server.makefile(), out, err
        self.number = int(self.answers.readline())

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.number, number)

    def wait_until_it_pauses(self) -> None:
        """Until a strike of SIGSTOP has met it; SIGCONT lets it go on."""
        assert self.answers.readline() == "stopped\n"

    def wait_for_code(self) -> int:
        with self.server, self.answers:
            return int(self.answers.read().split()[-1])

    def wait(self, *, tidy: bool = True) -> Ended:
        """Its end; processes that it leaves behind are ended, too."""
        code = self.wait_for_code()
        if tidy:
            with suppress(ProcessLookupError):
                os.killpg(self.number, signal.SIGKILL)
        return Ended(code, self.out.read_text(encoding="utf-8"), self.err.read_text(encoding="utf-8"))


class Launcher:
    """Starts commands without waiting for torch to be imported."""

    def __init__(self, forks: ForkedPython) -> None:
        self.forks = forks

    def start(
        self,
        place: Path,
        *arguments: Any,
        limit: int | None = None,
        strikes: Strikes = (),
        curves: bool = False,
        function: Callable[..., object] = flopping,
    ) -> Process:
        """Start a command; what it says goes to files in `place`. Without `curves`, it has no matplotlib.

        No file it writes may be larger than `limit` bytes, as if the disk were full. `strikes` are the moments at which
        it sends a signal to itself: see `forked_python.strike`.
        """
        out, err = place / "out.txt", place / "err.txt"
        order = {"function": function.__name__, "arguments": arguments, "limit": limit, "strikes": strikes}
        order |= {"curves": curves, "handles": [0], "out": str(out), "err": str(err)}
        order |= {"folder": os.getcwd(), "environment": dict(os.environ)}
        with open(os.devnull) as nothing:
            return Process(ask(self.forks.address, [nothing.fileno()], order), out, err)

    def run(self, place: Path, *arguments: Any, **more: Any) -> Ended:
        """Start a command, and wait for its end."""
        return self.start(place, *arguments, **more).wait()


def events(run: Path) -> list[dict[str, Any]]:
    """The log of a run without what speed decides."""
    return [{name: value for name, value in event.items() if name not in TIMING} for event in read_log(run)]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a folder with the times of their last change, to see that nothing was touched."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same(one: Any, other: Any) -> bool:
    """The same to the last bit, whatever tensors lie in."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def assert_same(run: Path, whole: Path) -> None:
    """Weights, averaged weights, the state of the optimiser and the log."""
    for name in (WEIGHTS, AVERAGE):
        assert (run / "last" / name).read_bytes() == (whole / "last" / name).read_bytes(), name
    mine, theirs = (torch.load(path / "last" / TRAINING, weights_only=True) for path in (run, whole))
    assert same(mine["optimizer"], theirs["optimizer"])
    assert events(run) == events(whole)
    assert (run / "best").readlink() == (whole / "best").readlink()
    assert sorted(os.listdir(run)) == sorted(os.listdir(whole))
    assert sorted(os.listdir(run / "checkpoints")) == sorted(os.listdir(whole / "checkpoints"))


def newest(run: Path) -> int:
    return max((checkpoint.step for checkpoint in CheckpointManager(run).checkpoints()), default=0)


def wait_for_a_step(run: Path) -> None:
    """Until the run has done a step more than now, so that it is training and not only starting."""
    before, end = newest(run), monotonic() + 100
    while newest(run) == before:
        assert monotonic() < end, "no step was done"
        sleep(0.005)


def children_of(process: int) -> list[int]:
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, found.splitlines()) if int(parent) == process]
