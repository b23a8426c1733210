"""Runs on two ranks for tests: one start of torchrun for all of them, and when two runs are the same."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from flopping.data.order import MicroBatchSampler, Order
from flopping.training.checkpoint import Checkpoint, CheckpointManager, read_manifest
from support.forked_python import ForkedPython
from support.image_files import web_dataset
from support.training_runs import EVERYTHING, FAMILIES, Strikes, call, command, events, image_folder, recipe_file

TESTS = Path(__file__).parents[1]
STEPS = 4
CLOSE = 1e-9
"""Sums in another order, in float64. What was asked for is 1e-5."""
WAYS = {"copied": [], "sharded": ["--shard"]}

# Every random part is on, and clipping binds. 18 images in batches of 8: an epoch has two steps.
SHORT = {**EVERYTHING, "epochs": 2, "batch_size": 8, "lr": 0.02, "clip_grad": 0.1, "ema": 0.8, "precision": "float64"}
Fields = dict[str, Any]
SLOWER: Fields = {"lr": 0.003, "warmup_lr": 0.001}
MORE: dict[str, tuple[str, Fields]] = {
    "invariant": ("ViT", {"model": "deit3_flop_invariant_test_patch16_64", "model_args": {"embed_dim": 32}}),
    "hybrid": ("ViT", {"model": "deit3_flop_hybrid_test_patch16_64", "model_args": {"embed_dim": 32}}),
    "resmlp": ("ResMLP", {}),
    "isotropic": ("ConvNeXt", SLOWER),
    "stages": (
        "ConvNeXt",
        {"model": "convnext_flop_test", "model_args": {"depths": [1, 1], "dims": [8, 16]}} | SLOWER,
    ),
    "ordinary vit": (
        "ViT",
        {"model": "deit3_small_patch16_224", "model_args": {"embed_dim": 32, "depth": 2, "num_heads": 2}},
    ),
    "ordinary resmlp": ("ResMLP", {"model": "resmlp_test_64"}),
    "ordinary convnext": (
        "ConvNeXt",
        {"model": "convnext_tiny", "model_args": {"depths": [1] * 4, "dims": [8, 16, 16, 16]}} | SLOWER,
    ),
}
"""The longer suite: all kinds of networks, timm's own among them, also compiled."""


def torchrun(*arguments: str | Path, python: str | Path = sys.executable) -> list[str]:
    """Two processes; the launcher looks for a free port, so that tests don't get in each other's way."""
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Of processes that tests start: the library of this folder, one thread each."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass
class Room:
    """A folder with data, recipes and runs, and a plan of what two processes do there."""

    path: Path
    plan: dict[str, list[Any]]

    def recipe(self, name: str, family: str, **fields: Any) -> None:
        """A recipe, for a family's network or another one."""
        fields = {**SHORT, **FAMILIES[family][1], "model": FAMILIES[family][0], **fields}
        recipe_file(self.path / f"{name}.yaml", family, **fields)

    def command(self, recipe: str, data: str, run: str | Path, *more: str) -> list[str]:
        """A run that saves in the middle of its last epoch, too."""
        options = ["--workers", "0", "--micro-batch", "2", "--save-steps", str(STEPS - 1)]
        return command(self.path / f"{recipe}.yaml", self.path / data, self.path / run, "", *options, *more)

    def alone(self, recipe: str, run: str | Path, *more: str, data: str = "data") -> None:
        """A run in this process."""
        ended = call(*self.command(recipe, data, run, *more))
        assert ended.code == 0, ended.err

    def both(
        self, name: str, recipe: str, data: str, run: str | Path, *more: str, tries: int = 50, strikes: Strikes = ()
    ) -> None:
        """A run on two ranks, for the plan; the second one may be struck, see `forked_python.strike`."""
        self.plan[name] = [{"tries": tries, "strikes": strikes}, *self.command(recipe, data, run, *more)]

    def resume(self, name: str, recipe: str, run: str, *more: str) -> None:
        """A run of one process whose last step is done once more by two, for the plan."""
        shutil.copytree(self.path / recipe / "alone", self.path / recipe / run, symlinks=True)
        forget_last(self.path / recipe / run)
        self.both(name, recipe, "data", f"{recipe}/{run}", "--resume", *more)

    def play(self, python: Path) -> None:
        """Do what is planned, and keep what each process did."""
        plan = self.path / "plan.json"
        plan.write_text(json.dumps(list(self.plan.values())), encoding="utf-8")
        launched = torchrun("-m", "support.two_processes", plan, self.path, python=python)
        done = subprocess.run(launched, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results = [json.loads((self.path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
        named = [dict(zip(self.plan, result, strict=True)) for result in results]
        (self.path / "results.json").write_text(json.dumps(named), encoding="utf-8")


@dataclass
class Session:
    """What two processes did with a plan."""

    path: Path
    results: list[dict[str, dict[str, Any]]]

    def of(self, name: str) -> list[dict[str, Any]]:
        """What a command did, in each process."""
        return [result[name] for result in self.results]


def played(
    name: str,
    make: Callable[[Room], None],
    forks: ForkedPython,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
) -> Session:
    """A plan that is made and played once, also if pytest runs in several processes: by the first one to come."""
    base = tmp_path_factory.getbasetemp()
    path = (base if worker_id == "master" else base.parent) / name
    path.mkdir(exist_ok=True)
    with open(path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "results.json").exists():
            assert not (path / "data").exists(), "the plan failed in another process of pytest"
            image_folder(path / "data", train=6, test=3)
            room = Room(path, {})
            make(room)
            room.play(forks.executable)
    return Session(path, json.loads((path / "results.json").read_text(encoding="utf-8")))


def everyday(room: Room) -> None:
    """Alone, copied, sharded; resumed otherwise than they began; and all ways to end."""
    from support.two_processes import CHECKS

    room.recipe("vit", "ViT")
    room.alone("vit", "vit/alone")
    for way, options in WAYS.items():
        room.both(way, "vit", "data", f"vit/{way}", *options)
    room.resume("resumed", "vit", "then-sharded", "--shard")
    room.recipe("uneven", "ViT", batch_size=9, mixup=0.0, cutmix=0.0)  # three micro-batches for two ranks
    web_dataset(room.path / "shards", {"train": (10, 8), "validation": (4, 5)})
    shards = ("--data", "wds/it", "--root", str(room.path / "shards"))
    room.alone("uneven", "uneven/alone", "--micro-batch", "3", *shards)
    room.resume("uneven", "uneven", "then-both", "--micro-batch", "3", *shards)

    room.recipe("plain", "ViT", repeats=1, epochs=1, warmup_epochs=0, ema=None)
    image_folder(room.path / "many", train=6, test=70)  # 105 test images for each, in batches of 100
    asked = [("open", "/val/class-", count, int(signal.SIGTERM)) for count in (101, 103)]
    room.both("asked in a test", "plain", "many", "asked", strikes=asked)
    evaluated = ["eval", str(room.path / "vit/alone"), "--data", str(room.path / "many"), "--workers", "0", "--json"]
    room.plan["eval"] = [{"tries": 50, "strikes": ()}, *evaluated, "--average"]
    break_images(image_folder(room.path / "few", train=6, test=3), 2)
    room.both("unreadable", "plain", "few", "unreadable")
    break_images(image_folder(room.path / "one", train=6, test=3), 1)
    room.both("no images", "plain", "one", "no-images", "--shard", tries=1)
    (image_folder(room.path / "tests", train=6, test=3) / "val" / "class-0" / "001.png").write_bytes(b"no image")
    room.both("no test images", "plain", "tests", "no-test-images", tries=1)
    for name, train in (("view0", 6), ("other0", 6), ("other1", 7)):
        image_folder(room.path / name, train=train, test=3)
    room.both("one is blind", "plain", "view{rank}", "blind")
    room.both("views differ", "plain", "other{rank}", "views")
    shutil.copytree(room.path / "vit" / "alone", room.path / "output0", symlinks=True)
    room.both("runs differ", "vit", "data", "output{rank}", "--resume")
    room.plan |= {check: [check] for check in CHECKS}


def longer(room: Room) -> None:
    """Every kind of network, also compiled; and mixed precision."""
    for case, (family, fields) in MORE.items():
        room.recipe(case, family, **fields)
        room.alone(case, f"{case}/alone")
        for way, options in WAYS.items():
            room.both(f"{case} {way}", case, "data", f"{case}/{way}", *options)
            room.both(f"{case} {way} compiled", case, "data", f"{case}/{way} compiled", "--compile", *options)
    room.recipe("bfloat16", "ViT", precision="bfloat16")
    room.alone("bfloat16", "bfloat16/alone")
    room.both("bfloat16", "bfloat16", "data", "bfloat16/sharded", "--shard")


def break_images(data: Path, images: int) -> None:
    """Damage images that rank 1 reads in the first step, and rank 0 doesn't."""
    order = Order(18, 8, 2, 1, 0)
    sampler = MicroBatchSampler(order, 1, 2)
    second = [index for keys in list(sampler)[: order.micro_batches // 2] for index, _ in keys]
    files = sorted((data / "train").glob("*/*.png"))
    for index in second[:images]:
        files[index].write_bytes(b"no image")


def forget_last(run: Path) -> None:
    """Leave a finished run as it was one step before its end."""
    shutil.rmtree(CheckpointManager(run).step_folder(STEPS))
    for link in ("last", "best"):
        (run / link).unlink(missing_ok=True)


def end_of(run: Path) -> Checkpoint:
    return read_manifest(CheckpointManager(run).step_folder(STEPS))


def assert_same_run(found: Path, expected: Path) -> None:
    """The same loss in every step, the same tests, and the same checkpoint at the end."""
    logs = events(found), events(expected)
    assert [sorted(event) for event in logs[0]] == [sorted(event) for event in logs[1]]
    assert [event["kind"] for event in logs[0]].count("step") == STEPS
    for event, other in zip(*logs, strict=True):
        for name, value in event.items():
            assert value == _close_to(other[name]), name
    assert_same_checkpoint(end_of(found), end_of(expected))


def _close_to(value: Any) -> Any:
    """What equals a value of a log, but for rounding."""
    if isinstance(value, dict):
        return {name: _close_to(each) for name, each in value.items()}
    return pytest.approx(value, abs=CLOSE) if isinstance(value, float) else value


def assert_same_checkpoint(found: Checkpoint, expected: Checkpoint) -> None:
    """The same files with the same contents: names, shapes and numbers equal, tensors close."""
    assert sorted(found.files) == sorted(expected.files)
    assert (found.folder / "config.json").read_text() == (expected.folder / "config.json").read_text()
    assert found.score == expected.score
    parts = [[c.weights(), c.average(), c.training()] for c in (found, expected)]
    for _, _, training in parts:
        training["progress"] = {  # type: ignore[index]
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in training["progress"].items()  # type: ignore[index]
            if not name.startswith("timed")
        }
    assert _plain(parts[0]) == _plain(parts[1])
    compared = 0
    for mine, other in zip(parts[0], parts[1], strict=True):
        others = dict(_tensors(other))
        for name, tensor in _tensors(mine):
            torch.testing.assert_close(tensor, others[name], rtol=CLOSE, atol=CLOSE, msg=lambda t, n=name: f"{n}: {t}")
            compared += 1
    assert compared > 50


def _plain(values: object) -> object:
    """Nested values with shapes in place of tensors."""
    if isinstance(values, Mapping):
        return {key: _plain(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_plain(value) for value in values]
    return tuple(values.shape) if isinstance(values, torch.Tensor) else values


def _tensors(values: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _tensors(value, f"{name}.{key}")
    elif isinstance(values, (list, tuple)):
        for number, value in enumerate(values):
            yield from _tensors(value, f"{name}.{number}")
    elif isinstance(values, torch.Tensor):
        yield name, values
