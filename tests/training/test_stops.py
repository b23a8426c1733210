"""Runs that can't go on say why, where they stand and what helps; nothing that was good is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.training_runs import FAMILIES, Launcher, call, command, contents, events, image_folder, recipe_file

from flopping.training import initial_weights, learner, run, run_log, trainer
from flopping.training.checkpoint import CONFIG, TRAINING, WEIGHTS, CheckpointManager
from flopping.training.networks import build, open_checkpoint

END_OF_FIRST = ("os.rename", "/.new-step-00000004", 1, signal.SIGTERM)
"""A strike: asked to stop when the first epoch was tested, and is about to be saved."""


@pytest.fixture
def started(tmp_path: Path, images: Path) -> Callable[..., list[str]]:
    """The command of a run of two epochs of four steps, with other fields."""

    def made(*more: str, family: str = "ViT", data: Path = images, **fields: Any) -> list[str]:
        size = FAMILIES[family][1]["model_args"]
        fields = {"epochs": 2, "batch_size": 12, "optimizer": "adamw", "lr": 1e-3, "model_args": size, **fields}
        recipe = recipe_file(tmp_path / "recipe.yaml", family, **fields)
        return command(
            recipe, data, tmp_path / "run", FAMILIES[family][0], "--workers", "0", "--micro-batch", "12", *more
        )

    return made


def finite(run: Path) -> bool:
    """Whether all that the checkpoints hold is."""

    def of(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(of, value.values()))
        if isinstance(value, torch.Tensor):
            return bool(value.isfinite().all())
        return value == value

    return all(
        of(c.weights()) and of(c.average() or {}) and of(c.training()) for c in CheckpointManager(run).checkpoints()
    )


# -- numbers that are none


def test_a_loss_that_is_not_finite(tmp_path: Path, started: Callable[..., list[str]]) -> None:
    ended = call(*started("--save-steps", "1", lr=1e30))
    assert ended.code == 1, ended.err
    good = CheckpointManager(tmp_path / "run").checkpoints()[0]
    assert f"The run stopped: the loss is nan in step {good.step + 1}. The last good checkpoint is" in ended.err
    assert repr(str(good.folder)) in ended.err
    assert "a lower lr (it was 1e+30), longer warm-up, or clip_grad=1.0; --init takes weights along" in ended.err
    assert finite(tmp_path / "run")
    assert [event["step"] for event in events(tmp_path / "run")] == list(range(1, good.step + 1))


def test_a_loss_that_is_not_finite_in_the_first_step(tmp_path: Path, started: Callable[..., list[str]]) -> None:
    ended = call(*started(family="ResMLP", std=[1e-44] * 3))
    assert ended.code == 1, ended.err
    assert re.search("The run stopped: the loss is (nan|inf) in step 1. There is no checkpoint yet. Start", ended.err)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("save", ["--save-steps", "--test-epochs"], ids=["in an epoch", "at its end"])
def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, started: Callable[..., list[str]], save: str
) -> None:
    """The step that ruins them still has a finite loss: an epoch of one step ends before a loss could show it."""
    batch = 12 if save == "--save-steps" else 48
    ended = call(*started(save, "1", family="ResMLP", optimizer="sgd", lr=1e20, std=[1e-25] * 3, batch_size=batch))
    assert ended.code == 1, ended.err
    assert "The run stopped: NaN or infinite values in the weights" in ended.err
    assert "after step 1. There is no checkpoint yet. Start again" in ended.err
    (step,) = events(tmp_path / "run")
    assert step["step"] == 1
    assert 0 < step["loss"] < float("inf")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_gradients_that_overflow_float16_for_ever(
    tmp_path: Path, started: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is finite, and every step is left out: a run would go on to its end and have learned nothing.

    float16 itself is for GPUs; here the numbers are float32, and what scales them is the same.
    """

    def broken(*arguments: Any) -> torch.nn.Module:
        network = build(*arguments)
        parameter = next(iter(network.parameters()))
        parameter.register_hook(lambda gradient: gradient + float("inf"))
        return network

    monkeypatch.setattr(run, "usable_precision", lambda precision, device: (precision, ""))
    monkeypatch.setattr(initial_weights, "build", broken)
    monkeypatch.setattr(learner.Learner, "autocast", lambda self: nullcontext())
    ended = call(*started("--save-steps", "20", "--test-epochs", "100", epochs=10, precision="float16"))
    assert ended.code == 1, ended.err
    first = 16 + 15  # a scale of 2^16 is halved until it is below 2^-14
    assert f"The run stopped: gradients overflow float16 at any scale: step {first} and those before it" in ended.err
    assert "The last good checkpoint is" in ended.err
    assert "or clip_grad=1.0, or precision=bfloat16; --init takes weights along" in ended.err
    losses = [event["loss"] for event in events(tmp_path / "run") if event["kind"] == "step"]
    assert len(losses) == first - 1
    assert all(0 < loss < 10 for loss in losses)


# -- a device that is not waited for after every step


def test_steps_are_looked_at_once_a_second(
    tmp_path: Path, started: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's, that is; here a CPU's. The log doesn't depend on it, and a run that is asked to stop does so at once."""
    looks: list[int] = []
    steps: list[int] = []
    look, step = trainer.Trainer._process, learner.Learner.step
    asked_in = 1000

    def noted_look(self: trainer.Trainer, losses: list[float], *times: float) -> None:
        looks.append(len(losses))
        look(self, losses, *times)

    def noted_step(self: learner.Learner, *place: Any) -> torch.Tensor:
        steps.append(len(steps) + 1)
        if steps[-1] == asked_in:
            os.kill(os.getpid(), signal.SIGTERM)
            sleep(0.05)  # a thread takes note of it
        return step(self, *place)

    monkeypatch.setattr(trainer.Trainer, "_process", noted_look)
    monkeypatch.setattr(learner.Learner, "step", noted_step)
    monkeypatch.setitem(trainer.MAX_STEPS_PER_SYNC, "cpu", 5)
    arguments = started("--micro-batch", "4", "--log-steps", "7", epochs=1, batch_size=4)
    logs = []
    for seconds, expected in ((0.0, [1] * 12), (1e9, [1, 5, 1, 5])):  # every step takes longer, or none does
        monkeypatch.setattr(run_log, "SECONDS", seconds)
        run = tmp_path / f"{seconds}"
        ended = call(*arguments, "-o", str(run))
        assert ended.code == 0, ended.err
        assert looks == expected
        logs.append(events(run))
        looks.clear()
    assert logs[0] == logs[1]
    steps.clear()
    asked_in = 9
    ended = call(*arguments)
    assert ended.code == 3, ended.err
    assert looks == [1, 5, 1, 2]
    assert [checkpoint.step for checkpoint in CheckpointManager(tmp_path / "run").checkpoints()] == [9]


@pytest.mark.parametrize("options", [[], ["--deterministic"]])
def test_deterministic(started: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    found: list[bool] = []
    step = learner.Learner.step

    def noted_step(self: learner.Learner, *place: Any) -> torch.Tensor:
        found.append(torch.are_deterministic_algorithms_enabled())
        return step(self, *place)

    monkeypatch.setattr(learner.Learner, "step", noted_step)
    assert call(*started(*options, epochs=1)).code == 0
    assert found == [bool(options)] * 4
    assert not torch.are_deterministic_algorithms_enabled()


# -- images that can't be read


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """48 images for training, of which 3 can't be read, and 12 for testing, one of which can't."""
    data = image_folder(tmp_path / "[data]", train=16, test=4)  # a name that means colours to a terminal's library
    first = data / "train" / "class-1"
    (first / "003.png").write_bytes(b"")
    (first / "004.png").write_text("not an image")
    (data / "train" / "class-2" / "015.png").write_bytes((data / "train" / "class-2" / "014.png").read_bytes()[:200])
    (data / "val" / "class-0" / "002.png").write_bytes(b"\x89PNG\r\n")
    return data


BROKEN = ["train/class-1/003.png", "train/class-1/004.png", "train/class-2/015.png", "val/class-0/002.png"]


def test_images_that_cannot_be_read_are_listed(tmp_path: Path, started: Callable[..., list[str]], broken: Path) -> None:
    ended = call(*started("--unreadable-share", "0.07", "--workers", "1", data=broken))
    assert ended.code == 0, ended.err
    paths = [str(broken / name) for name in BROKEN]
    assert f"3 training images could not be read, replaced by other images: {', '.join(paths[:3])}." in ended.err
    assert f"1 validation image could not be read, left out: {paths[3]}. Put good images there" in ended.err
    assert events(tmp_path / "run")[-1]["unreadable"] == paths
    assert ended.result["images"] == 11
    tested = call("eval", str(tmp_path / "run"), "--data", str(broken), "--workers", "1")
    assert tested.code == 1, tested.err
    assert f"1 image could not be read and was left out: {paths[3]}. Replace it" in tested.err
    assert "on 11 images" in tested.out


def test_too_many_of_them_stop_a_run(started: Callable[..., list[str]], broken: Path) -> None:
    ended = call(*started("--unreadable-share", "0.05", data=broken))
    assert ended.code == 1, ended.err
    assert "The run stopped: 3 of 48 training images can't be read, more than --unreadable-share 0.05" in ended.err
    assert all(str(broken / name) in ended.err for name in BROKEN[:3])
    for name in BROKEN[:3]:
        (broken / name).write_bytes((broken / "train" / "class-0" / "000.png").read_bytes())
    ended = call(*started("--unreadable-share", "0", "--resume", data=broken))
    assert ended.code == 0, ended.err
    assert "training images could not be read" not in ended.err


def test_those_seen_before_a_stop_count_after_it(
    tmp_path: Path, started: Callable[..., list[str]], broken: Path, launcher: Launcher
) -> None:
    """Stopped after its first epoch, a run has seen all; the second finds nothing new, and all are listed."""
    arguments = started("--unreadable-share", "0.07", "--resume", data=broken)
    assert launcher.run(tmp_path, *arguments, strikes=[END_OF_FIRST]).code == 3
    good = (broken / "train" / "class-0" / "000.png").read_bytes()
    (broken / BROKEN[0]).write_bytes(good)
    (broken / "train" / "class-0" / "007.png").write_bytes(b"")
    refused = call(*arguments)
    assert refused.code == 1, refused.err
    assert "4 of 48 training images can't be read" in refused.err
    (broken / "train" / "class-0" / "007.png").write_bytes(good)
    ended = call(*arguments)
    assert ended.code == 0, ended.err
    assert events(tmp_path / "run")[-1]["unreadable"] == [str(broken / name) for name in BROKEN]


def test_nothing_but_files_that_are_no_images(tmp_path: Path, started: Callable[..., list[str]], broken: Path) -> None:
    assert call(*started("--unreadable-share", "1", data=broken)).code == 0
    for path in broken.rglob("*.png"):
        path.write_text("no image")
    message = "50 images in a row can't be read, from"
    ended = call(*started("--unreadable-share", "1", "--workers", "1", data=broken), "-o", str(tmp_path / "other"))
    assert ended.code == 1, ended.err
    assert f"The run stopped: {message} {broken / 'train'}" in ended.err
    assert "Traceback" not in ended.err
    tested = call("eval", str(tmp_path / "run"), "--data", str(broken), "--workers", "1")
    assert tested.code == 1
    assert f"Nothing was tested: {message} {broken / 'val' / 'class-0' / '000.png'} on" in tested.err
    assert "Traceback" not in tested.err


# -- a full disk


def test_a_full_disk(tmp_path: Path, started: Callable[..., list[str]], launcher: Launcher) -> None:
    """A limit on the size of files stops a write midway, as a full disk does: of a checkpoint, then of the log."""
    run = tmp_path / "run"
    arguments = started("--resume")
    assert launcher.run(tmp_path, *arguments, strikes=[END_OF_FIRST]).code == 3
    before = contents(run / "checkpoints")
    log = len(b"".join((run / "log.jsonl").read_bytes().splitlines(keepends=True)[:5]))  # four steps and their epoch
    for limit, message in (
        (50_000, "checkpoint of step 8 was not written"),
        (log + 20, f"the log {str(run / 'log.jsonl')!r} could not be written (No space"),
    ):
        full = launcher.run(tmp_path, *arguments, limit=limit)
        assert full.code == 1, full.err
        assert message in full.err
        assert "Free some space, then go on with --resume" in full.err
        assert contents(run / "checkpoints") == before


# -- tests of what was trained


def test_a_run_may_be_tested_while_it_goes_on(tmp_path: Path, started: Callable[..., list[str]]) -> None:
    """The best checkpoint is read again and again, while better ones push it out."""
    assert call(*started(epochs=1)).code == 0
    manager = CheckpointManager(tmp_path / "run")
    (first,) = manager.checkpoints()
    assert first.score is not None
    parts = {CONFIG: (first.folder / CONFIG).read_text(), WEIGHTS: first.weights(), TRAINING: {}}
    read: list[Path] = []
    done = Event()

    def read_on() -> None:
        while not done.is_set():
            read.append(open_checkpoint(manager.run)[0])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read_on)
        for number in range(1, 200):
            manager.save(first.step + number, first.score + number, parts.items())
            if len(set(read)) > 5 or reader.done():
                break
        done.set()
        reader.result()
    assert len(set(read)) > 1


def test_a_damaged_checkpoint_is_not_tested(tmp_path: Path, started: Callable[..., list[str]], images: Path) -> None:
    assert call(*started(epochs=1)).code == 0
    weights = tmp_path / "run" / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = call("eval", str(tmp_path / "run"), "--data", str(images))
    assert ended.code == 2, ended.err
    assert "model.safetensors is corrupted" in ended.err


@pytest.fixture(scope="module")
def saved(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as timm saves it: without checksums."""
    folder = tmp_path_factory.mktemp("saved")
    for name in (CONFIG, WEIGHTS):
        (folder / name).write_bytes((small_run / "last" / name).read_bytes())
    return folder


def test_complex_weights_are_refused(saved: Path, images: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "saved")
    weights = load_file(folder / WEIGHTS)
    save_file({**weights, "head.weight": weights["head.weight"] + 1j}, folder / WEIGHTS)
    ended = call("eval", str(folder), "--data", str(images))
    assert ended.code == 2, ended.err
    assert "complex weights (head.weight)" in ended.err
