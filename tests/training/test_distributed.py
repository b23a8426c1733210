"""One process, two, and two that share a network learn the same, and their checkpoints are the same.

Processes are real ones that torchrun starts; most of what they do is one plan for one start, because starting takes
longer than the runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from support.forked_python import ForkedPython
from support.training_runs import call, events, image_folder
from support.two_ranks import (
    MORE,
    STEPS,
    WAYS,
    Room,
    Session,
    assert_same_run,
    end_of,
    environment,
    everyday,
    forget_last,
    longer,
    played,
    torchrun,
)

from flopping.errors import UsageError
from flopping.models.blocks import find_blocks
from flopping.models.zoo import ZOO
from flopping.training.checkpoint import CheckpointManager, read_manifest
from flopping.training.distributed import compile_network, init_world, resolve_device
from flopping.training.job import Job

# torch hides this warning of its compiler from users, but not from pytest
LEAVES = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(scope="module")
def session(forks: ForkedPython, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("everyday", everyday, forks, tmp_path_factory, worker_id)


@pytest.fixture(scope="module")
def longer_session(forks: ForkedPython, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("longer", longer, forks, tmp_path_factory, worker_id)


@pytest.mark.parametrize(
    "given", ["RANK=x", "RANK=1", "RANK=2 WORLD_SIZE=2", "WORLD_SIZE=two", "WORLD_SIZE=0", "LOCAL_RANK=-1"]
)
def test_numbers_of_processes_that_are_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process would wait for others that never come, or leave the report to a rank 0 that isn't there."""
    for text in given.split():
        monkeypatch.setenv(*text.split("="))
    with pytest.raises(UsageError, match=given.replace(" ", ", ")), init_world("cpu"):
        pass


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert resolve_device("cuda:1").index == 1
    with pytest.raises(UsageError, match=r"2 CUDA devices.*'cuda:2'"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("way", WAYS)
def test_the_number_of_processes_changes_nothing(session: Session, way: str) -> None:
    assert [result["code"] for result in session.of(way)] == [0, 0]
    assert_same_run(session.path / "vit" / way, session.path / "vit" / "alone")


@pytest.mark.parametrize(("name", "run"), [("resumed", "vit/then-sharded"), ("uneven", "uneven/then-both")])
def test_a_run_of_one_process_goes_on_with_two(session: Session, name: str, run: str) -> None:
    """Also on shards, and if a batch is shared unevenly: a rank without a micro-batch of its own counts for nothing."""
    results = session.of(name)
    assert [result["code"] for result in results] == [0, 0]
    assert f"Resumed after step {STEPS - 1}" in results[0]["stderr"]
    assert ("over 2 processes, unevenly: 1 of 4 turns are idle" in results[0]["stderr"]) == (name == "uneven")
    assert_same_run(session.path / run, (session.path / run).with_name("alone"))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_two_processes_goes_on_with_one(session: Session, way: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(session.path / "vit" / way, run, symlinks=True)
    forget_last(run)
    Room(session.path, {}).alone("vit", run, "--resume")
    assert_same_run(run, session.path / "vit" / "alone")


def test_runs_learn_something(session: Session) -> None:
    """Else all of them would be equal for nothing: weights move, and the average lags behind."""
    manager = CheckpointManager(session.path / "vit" / "alone")
    before, after = (read_manifest(manager.step_folder(step)) for step in (STEPS - 1, STEPS))
    weights, average = after.weights(), after.average()
    assert average is not None
    for name, weight in weights.items():
        assert weight.dtype == torch.float64
        assert not torch.equal(weight, before.weights()[name]), name
        assert not torch.equal(weight, average[name]), name


def test_the_micro_batch_is_stored_with_the_run(session: Session) -> None:
    """It is part of the result, so a run is the same however many ranks it has."""
    jobs = [Job.read(session.path / "vit" / way) for way in ("alone", *WAYS)]
    assert jobs[0].micro_batch == 2
    assert jobs[0] == jobs[1] == jobs[2]


@pytest.mark.long
def test_mixed_precision_of_a_sharded_network(longer_session: Session) -> None:
    """Weights are gathered in bfloat16 and stored in float32; the losses are those of one process, but for rounding."""
    assert [result["code"] for result in longer_session.of("bfloat16")] == [0, 0]
    runs = [longer_session.path / "bfloat16" / name for name in ("alone", "sharded")]
    losses = [[event["loss"] for event in events(run) if event["kind"] == "step"] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    assert {value.dtype for value in end_of(runs[1]).weights().values()} == {torch.float32}


def test_a_sharded_network_is_never_whole_on_all_ranks(session: Session) -> None:
    """It is built without memory; only rank 0 has a second one, in the memory of the CPU, to take weights from."""
    first, second = session.of("sharded memory")
    assert (first["devices"], second["devices"]) == (["meta", "cpu"], ["meta"])
    for parts in zip(first["parts"], second["parts"], strict=True):
        assert sum(parts) == 1
        assert max(parts) < 0.6


def test_eval_on_two_ranks(session: Session) -> None:
    """The figures of one process; rank 0 alone reports them."""
    first, second = session.of("eval")
    assert (first["code"], second["code"], second["stdout"]) == (0, 0, "")
    alone = call("eval", str(session.path / "vit/alone"), "--data", str(session.path / "many"), "--json", "--average")
    assert json.loads(first["stdout"]) == {**alone.result, "loss": pytest.approx(alone.result["loss"])}
    assert alone.result["images"] == 210


def test_an_error_of_one_rank_is_raised_on_all(session: Session) -> None:
    """A refusal with its cause; a bug as it is, and as the end of the run elsewhere."""
    first, second = (found["found"] for found in session.of("shared errors"))
    shared = ["SharedUsageError", "rank 1 of 2: bad value 7"]
    assert first == [[*shared, "NoneType"], ["RunStoppedError", "rank 1 of 2: bad value 7", "NoneType"]]
    assert second == [[*shared, "UsageError"], ["ZeroDivisionError", "bad value 7", "NoneType"]]


def test_a_lost_rank_is_told_from_an_error_of_ones_own(session: Session) -> None:
    first, second = session.of("lost peer")
    assert first["own"] == second["own"] == "train/igloo/7.jpg"
    assert "rank 0 lost the connection" in first["error"]
    assert first["error"].endswith("Kept. ")
    assert first["cause"] == "RuntimeError"


def test_an_infinite_gradient_in_one_process_stops_the_step_of_all(session: Session) -> None:
    for found in session.of("infinite gradient"):
        for way in WAYS:
            assert found[way] == {"moved": [False, True], "scale": 2.0}


def test_a_sharded_network_notices_other_weights(session: Session) -> None:
    """As when the averaged weights take the place of the others for a test, and give it back."""
    for found in session.of("other weights"):
        assert found["sums"] == [sum_of(1), sum_of(2)]


def sum_of(weight: int) -> float:
    """What two linear layers, of 5 and 3 outputs, make of four ones if all their weights and shifts are the same."""
    return 3.0 * (5 * weight * (4 * weight + weight) + weight)


@pytest.mark.long
@pytest.mark.parametrize("way", [*WAYS, *(f"{way} compiled" for way in WAYS)])
@pytest.mark.parametrize("case", [*MORE])
def test_the_number_of_processes_changes_nothing_for_any_network(longer_session: Session, case: str, way: str) -> None:
    assert [result["code"] for result in longer_session.of(f"{case} {way}")] == [0, 0]
    assert_same_run(longer_session.path / case / way, longer_session.path / case / "alone")


@pytest.mark.long
@LEAVES
@pytest.mark.parametrize("way", [*WAYS])
def test_generated_code_in_two_processes(way: str, tmp_path: Path) -> None:
    """The command line as people use it, with the compiler's default, which draws random numbers of its own."""
    image_folder(tmp_path / "data", train=6, test=3)
    room = Room(tmp_path, {})
    room.recipe("vit", "ViT")
    room.alone("vit", "alone", "--compile")
    command = room.command("vit", "data", "both", "--compile", *WAYS[way])
    done = subprocess.run(torchrun("-m", "flopping", *command), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "both", tmp_path / "alone")


@pytest.mark.long
@LEAVES
def test_all_blocks_are_compiled_however_many_differ() -> None:
    """Stochastic depth rises, so that each block has a graph of its own: torch's limit would be 8."""
    model = timm.create_model("convnext_flop_iso_test", depths=[12], dims=[8], kernel_size=3, drop_path_rate=0.3)
    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch.compiler.reset()
    torch.compiler.set_default_backend(counted)
    try:
        compile_network(model, shard=True)
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            model.train()(torch.randn(2, 3, 32, 32)).sum().backward()
            model.eval()(torch.randn(2, 3, 32, 32))
    finally:
        torch.compiler.set_default_backend(None)
        torch.compiler.reset()
    assert 12 < graphs <= 24


def test_blocks_of_every_family_are_found() -> None:
    """What is gathered, used and freed together; no block is left out."""
    ordinary: dict[str, tuple[dict[str, Any], int]] = {
        "deit3_small_patch16_224": ({"embed_dim": 32, "depth": 3, "num_heads": 2}, 3),
        "resmlp_12_224": ({}, 12),
        "convnext_tiny": ({"dims": (8, 16, 32, 64), "depths": (1, 1, 2, 1)}, 5),
    }
    ours = {name: ({}, depth_of(entry.args)) for name, entry in ZOO.items() if "test" in name}
    for name, (arguments, depth) in {**ordinary, **ours}.items():
        blocks = find_blocks(timm.create_model(name, **arguments))
        assert len(blocks) == len(set(map(id, blocks))) == depth, name
        assert len({type(block) for block in blocks}) == 1, name


def depth_of(arguments: Mapping[str, Any]) -> int:
    return int(arguments["depth"]) if "depth" in arguments else sum(arguments["depths"])
