"""Runs that are killed, stopped and resumed end with the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.training_runs import (
    FAMILIES,
    LAST,
    PAUSE,
    STEPS,
    Ended,
    Launcher,
    assert_same,
    call,
    children_of,
    command,
    contents,
    events,
    flopping_while_it_compiles,
    image_folder,
    newest,
    recipe_file,
    run_of,
)

from flopping.training.checkpoint import WEIGHTS, CheckpointManager


@pytest.fixture(scope="module")
def whole(launcher: Launcher, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of a family that nobody interrupts, and what it said."""

    @cache
    def made(family: str) -> tuple[Path, Ended]:
        place = tmp_path_factory.mktemp(family)
        ended = launcher.run(place, *run_of(family, images, place / "run"))
        assert ended.code == 0, ended.err
        return place / "run", ended

    return made


def test_the_log_of_a_run_has_every_step_once(whole: Any) -> None:
    """What the other tests compare with is as it should be, and all that is random is on."""
    run, _ = whole("ViT")
    log = events(run)
    assert [event["step"] for event in log if event["kind"] == "step"] == list(range(1, LAST + 1))
    assert [event["step"] for event in log if event["kind"] == "epoch"] == [STEPS, LAST]
    assert log[-1]["kind"] == "end"
    assert log[-1]["result"]["top1"] == log[-2]["top1"]
    assert {"ema_top1", "moved", "changed"} <= log[-2].keys()
    assert len({event["loss"] for event in log if event["kind"] == "step"}) == LAST


KILLS = [
    ("open", "/.new-step-", 8, signal.SIGKILL),  # before the weights of its second checkpoint are written
    ("os.rename", "/.new-step-", 2, signal.SIGKILL),  # before that has its name
]


@pytest.mark.parametrize("family", ["ViT", *(pytest.param(f, marks=pytest.mark.long) for f in FAMILIES if f != "ViT")])
def test_killed_in_the_middle_of_a_checkpoint(
    family: str, tmp_path: Path, launcher: Launcher, images: Path, whole: Any
) -> None:
    """Twice; test_resume_long.py does it at random moments."""
    run = tmp_path / "run"
    arguments = run_of(family, images, run)
    kills = []
    for strike in KILLS:
        ended = launcher.run(tmp_path, *arguments, strikes=[strike])
        assert ended.code == -signal.SIGKILL, f"killed after {kills}: {ended.code} {ended.err}"
        kills.append(newest(run))
    assert kills == sorted(set(kills)), "each of them got further"
    assert kills[-1] < LAST
    ended = launcher.run(tmp_path, *arguments)
    assert ended.code == 0, ended.err
    assert_same(run, whole(family)[0])
    assert {**ended.result, "run": ""} == {**whole(family)[1].result, "run": ""}


def test_asked_to_stop(tmp_path: Path, launcher: Launcher, images: Path, whole: Any) -> None:
    """Terminals and batch systems signal all processes, those that read images too."""
    run = tmp_path / "run"
    process = launcher.start(tmp_path, *run_of("ViT", images, run), strikes=[PAUSE])
    process.wait_until_it_pauses()
    process.send(signal.SIGINT, group=True)
    process.send(signal.SIGCONT, group=True)
    ended = process.wait()
    assert ended.code == 3, ended.err
    assert "Traceback" not in ended.err
    assert "SIGINT: ending the step and saving; once more to end at once" in ended.err
    stopped = newest(run)
    assert (
        f"stopped after step {stopped} of {LAST}; all is kept in {str(CheckpointManager(run).step_folder(stopped))!r}"
        in ended.err
    )
    assert events(run)[-1]["step"] == stopped == 3, "not one step more"
    ended = launcher.run(tmp_path, *run_of("ViT", images, run))
    assert ended.code == 0, ended.err
    assert f"Resumed after step {stopped} of {LAST}" in ended.err
    assert_same(run, whole("ViT")[0])


def test_asked_to_stop_while_the_network_is_compiled(tmp_path: Path, launcher: Launcher, images: Path) -> None:
    """What compiles it is signalled, too, and takes no notice; so the step comes to its end."""
    run = tmp_path / "run"
    arguments = run_of("ViT", images, run, "--compile")
    ended = launcher.run(tmp_path, int(signal.SIGINT), *arguments, function=flopping_while_it_compiles)
    assert ended.code == 3, ended.err
    assert "Traceback" not in ended.err
    assert "SIGINT: ending the step and saving; once more to end at once" in ended.err
    assert newest(run) == 1


def test_asked_to_stop_before_the_first_step(tmp_path: Path, launcher: Launcher, images: Path) -> None:
    """To look for images takes minutes on some file systems."""
    run = tmp_path / "run"
    arguments = run_of("ViT", images, run)
    ended = launcher.run(tmp_path, *arguments, strikes=[("os.scandir", "/val/class-1", 1, signal.SIGTERM)])
    assert ended.code == 3, ended.err
    assert "SIGTERM: ending before the first step; once more to end at once" in ended.err
    assert "stopped before the first step" in ended.err
    assert not run.exists()


def test_stopped_in_the_last_step_of_an_epoch(tmp_path: Path, launcher: Launcher, images: Path, whole: Any) -> None:
    """The test that was still to come comes after resuming, and is in the log once, even if that is killed again."""
    run = tmp_path / "run"
    arguments = run_of("ViT", images, run, "--workers", "0")
    asked = ("open", "/train/class-", 12 * STEPS - 3, signal.SIGTERM)
    assert launcher.run(tmp_path, *arguments, strikes=[asked]).code == 3
    assert newest(run) == STEPS
    assert [event["kind"] for event in events(run)] == ["step"] * STEPS
    killed = ("os.rename", "/.new-step-00000004", 1, signal.SIGKILL)
    assert launcher.run(tmp_path, *arguments, strikes=[killed]).code == -signal.SIGKILL
    assert events(run)[-1]["kind"] == "epoch"
    ended = launcher.run(tmp_path, *arguments)
    assert ended.code == 0, ended.err
    assert_same(run, whole("ViT")[0])


def test_a_long_test_is_not_waited_for(tmp_path: Path, launcher: Launcher) -> None:
    """It ends between two batches, here of the averaged weights, and is repeated after resuming."""
    data = image_folder(tmp_path / "data", train=16, test=67)  # 201 test images, in batches of 100
    whole, run = tmp_path / "whole", tmp_path / "run"
    short = ("--workers", "0", "epochs=1", "warmup_epochs=0")
    assert launcher.run(tmp_path, *run_of("ViT", data, whole), *short).code == 0
    asked = ("open", "/val/class-", 201 + 150, signal.SIGTERM)
    ended = launcher.run(tmp_path, *run_of("ViT", data, run), *short, strikes=[asked])
    assert ended.code == 3, ended.err
    assert newest(run) == STEPS
    assert events(run)[-1]["kind"] == "step", "the test is not in the log"
    assert launcher.run(tmp_path, *run_of("ViT", data, run), *short).code == 0
    assert_same(run, whole)


def test_a_killed_reader_of_images(tmp_path: Path, launcher: Launcher, images: Path) -> None:
    """As by a system whose memory is short: the run says so, and goes on with --resume."""
    run = tmp_path / "run"
    process = launcher.start(tmp_path, *run_of("ViT", images, run), strikes=[PAUSE])
    process.wait_until_it_pauses()
    readers = children_of(process.number)
    assert readers
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
    process.send(signal.SIGCONT)
    ended = process.wait()
    assert ended.code == 1, ended.err
    said = " ".join(ended.err.split())
    assert "Traceback" not in said
    assert "The run stopped: a process that reads images has ended (signal 9" in said
    assert f"The last good checkpoint is {str(CheckpointManager(run).checkpoints()[0].folder)!r}" in said


def test_asked_twice_it_ends_at_once(tmp_path: Path, launcher: Launcher, images: Path) -> None:
    run = tmp_path / "run"
    twice = [("open", "/train/class-", 12 + place, signal.SIGTERM) for place in (3, 5)]
    ended = launcher.run(tmp_path, *run_of("ViT", images, run, "--workers", "0"), strikes=twice)
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert f"Ended at once; what was saved before is in {str(run)!r}" in ended.err
    assert newest(run) == 1


# -- the run's folder


@pytest.fixture
def small(tmp_path: Path, images: Path) -> list[str]:
    """A run of two epochs of two steps without anything special."""
    model, fields = FAMILIES["ViT"]
    plain = {"epochs": 2, "batch_size": 24, "optimizer": "adamw", "lr": 1e-3, "model_args": fields["model_args"]}
    recipe = recipe_file(tmp_path / "small.yaml", "ViT", **plain)
    return command(recipe, images, tmp_path / "run", model, "--workers", "0", "--micro-batch", "24")


def test_a_finished_run_gives_its_result_and_changes_nothing(tmp_path: Path, small: list[str]) -> None:
    first = call(*small)
    assert first.code == 0, first.err
    before = contents(tmp_path / "run")
    again = call(*small, "--resume")
    assert again.code == 0, again.err
    assert again.result == first.result
    assert "The run is already complete" in again.err
    after = contents(tmp_path / "run")
    assert {name: after[name] for name in after if name != ".lock"} == {n: before[n] for n in before if n != ".lock"}
    # Without its last checkpoint it is not finished: it does the last epoch once more.
    (tmp_path / "run" / "last" / WEIGHTS).write_bytes(b"damaged")
    mended = call(*small, "--resume")
    assert mended.code == 0, mended.err
    assert "Warning: checkpoint" in mended.err
    assert "is corrupted; the one of step 2 is used" in mended.err
    assert mended.result == first.result
    assert events(tmp_path / "run")[-1]["kind"] == "end"
    assert [event["step"] for event in events(tmp_path / "run")] == [1, 2, 2, 3, 4, 4, 4]


def test_damaged_log_and_checkpoints(tmp_path: Path, small: list[str]) -> None:
    """A damaged line of the log is left out; a run is started anew only if that is asked for."""
    first = call(*small)
    run = tmp_path / "run"
    lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    end = b'{"kind": "end", "step": 4, "result": "damaged"}\n'
    (run / "log.jsonl").write_bytes(b"".join([lines[0], b"\xff damaged\n", *lines[2:-1], end]))
    again = call(*small, "--resume")
    assert again.code == 0, again.err
    assert again.result == first.result
    assert [event["step"] for event in events(run)] == [1, 2, 3, 4, 4, 4]
    for step in (2, 4):
        (CheckpointManager(run).step_folder(step) / WEIGHTS).write_bytes(b"damaged")
    before = contents(run / "checkpoints")
    for _ in range(2):
        refused = call(*small, "--resume")
        assert refused.code == 2, refused.err
        assert all(f"step-0000000{step}" in refused.err for step in (2, 4))
        assert contents(run / "checkpoints") == before
    restarted = call(*small, "--resume", "--restart")
    assert restarted.code == 0, restarted.err
    assert restarted.result == first.result


def test_killed_after_its_last_checkpoint(tmp_path: Path, launcher: Launcher, small: list[str]) -> None:
    """Before it said so, or before its curves were drawn."""
    drawing = ("os.rename", "/.curves.png", 1, signal.SIGKILL)
    assert launcher.run(tmp_path, *small, strikes=[drawing], curves=True).code == -signal.SIGKILL
    assert not (tmp_path / "run" / "curves.png").exists()
    done = contents(tmp_path / "run")
    again = call(*small, "--resume", curves=True)
    assert again.code == 0, again.err
    assert (tmp_path / "run" / "curves.png").exists()
    assert done["log.jsonl"] == contents(tmp_path / "run")["log.jsonl"]
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed within the last line
    again = call(*small, "--resume")
    assert again.code == 0, again.err
    assert log.read_text().splitlines(keepends=True) == lines


def test_a_run_is_not_overwritten(tmp_path: Path, small: list[str]) -> None:
    assert call(*small).code == 0
    before = contents(tmp_path / "run")
    for refused, message in (
        (small, f"there is a run in {str(tmp_path / 'run')!r}: --resume goes on with it"),
        ([*small, "--resume", "lr=2e-3"], "was started with other settings: lr=0.002 (was 0.001)"),
        ([*small, "--resume", "--micro-batch", "12"], "was started with other settings: micro_batch=12 (was 24)"),
        ([*small, "--resume", "--model", "E(ViT-S)"], "model=E(ViT-S) (was deit3_flop_test_patch16_64)"),
    ):
        ended = call(*refused)
        assert ended.code == 2, ended.err
        assert message in ended.err
    assert contents(tmp_path / "run") == before


def test_a_run_whose_precision_the_machine_chose_is_resumed(tmp_path: Path, small: list[str]) -> None:
    """float16 is for GPUs; a CPU takes float32, also the second time. Where there is no run yet, one is started."""
    (tmp_path / "run" / ".run.json.abc").mkdir(parents=True)  # of one that was killed as it began
    first = call(*small, "precision=float16", "--resume")
    assert first.code == 0, first.err
    assert {*os.listdir(tmp_path / "run")} == {".lock", "best", "checkpoints", "last", "log.jsonl", "run.json"}
    assert "precision: float32" in json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    again = call(*small, "precision=float16", "--resume")
    assert again.code == 0, again.err
    assert again.result == first.result


def test_killed_before_the_first_checkpoint(tmp_path: Path, launcher: Launcher, small: list[str]) -> None:
    assert launcher.run(tmp_path, *small, strikes=[("open", "/train/class-", 9, signal.SIGKILL)]).code == -9
    assert {*os.listdir(tmp_path / "run")} == {".lock", "log.jsonl", "run.json"}
    ended = call(*small, "--resume")
    assert ended.code == 0, ended.err
    assert "No checkpoint was written yet: the run starts from the beginning" in ended.err


def test_two_at_once_are_refused(tmp_path: Path, launcher: Launcher, images: Path, whole: Any) -> None:
    """The lock ends with the process that trains, though those that read images live on for a moment."""
    run = tmp_path / "run"
    arguments = run_of("ViT", images, run)
    process = launcher.start(tmp_path, *arguments, strikes=[PAUSE])
    process.wait_until_it_pauses()
    second = call(*arguments)
    process.send(signal.SIGKILL)
    process.wait(tidy=False)
    assert second.code == 2
    assert f"another process ({process.number} on {os.uname().nodename}) trains in {str(run)!r}" in second.err
    third = call(*arguments)
    assert third.code == 0, third.err
    assert_same(run, whole("ViT")[0])


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path, small: list[str], images: Path) -> None:
    assert call(*small).code == 0
    other = [argument.replace(str(tmp_path / "run"), str(tmp_path / "other")) for argument in small]
    assert call(*other, "model_args.embed_dim=16").code == 0
    for name in ("last", "best", "log.jsonl"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "own")
    (tmp_path / "other" / "checkpoints").rename(tmp_path / "run" / "checkpoints")
    ended = call(*small, "--resume")
    assert ended.code == 2, ended.err
    assert "step-00000004' is not of this run" in ended.err
    assert "(deit3_flop_test_patch16_64)" in ended.err
