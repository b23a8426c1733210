"""One process, two, and two that share a network learn the same, and their checkpoints are the same.

Processes are real ones that torchrun starts; most of what they do is one plan for one start, because starting takes
longer than the runs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from spread_plans import CASES, MORE, RESUMED, everyday, longer
from spread_runs import STEPS, WAYS, Room, Session, assert_same_run, environment, forget_last, played, torchrun
from training_runs import image_folder

from flopping.models.zoo import ZOO
from flopping.training.checkpoint import Keeper, read_manifest
from flopping.training.job import Job
from flopping.training.processes import blocks_of, compile_

# torch hides this warning of its compiler from users, but not from pytest
LEAVES = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("everyday", everyday, tmp_path_factory, worker_id)


@pytest.fixture(scope="module")
def longer_session(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("longer", longer, tmp_path_factory, worker_id)


@pytest.mark.parametrize("way", [*WAYS])
@pytest.mark.parametrize("case", [*CASES])
def test_the_number_of_processes_changes_nothing(session: Session, case: str, way: str) -> None:
    assert [result["code"] for result in session.of(f"{case} {way}")] == [0, 0]
    assert_same_run(session.path / case / way, session.path / case / "alone")


@pytest.mark.parametrize(("case", "way"), RESUMED)
def test_a_run_of_one_process_goes_on_with_two(session: Session, case: str, way: str) -> None:
    results = session.of(f"{case} resumed {way}")
    assert [result["code"] for result in results] == [0, 0]
    assert f"Resumed after step {STEPS - 1}" in results[0]["stderr"]
    assert_same_run(session.path / case / f"alone-then-{way}", session.path / case / "alone")


@pytest.mark.parametrize(("case", "turns"), [("three chunks", 4), ("one chunk", 2)])
def test_more_processes_than_chunks_to_share(session: Session, case: str, turns: int) -> None:
    """A process without a chunk of its own joins in, and counts for nothing."""
    results = session.of(case)
    assert [result["code"] for result in results] == [0, 0]
    assert f"Resumed after step {STEPS - 1}" in results[0]["stderr"]
    assert f"over 2 processes, unevenly: 1 of {turns} turns are idle" in results[0]["stderr"]
    assert_same_run(session.path / case / "then-both", session.path / case / "alone")


@pytest.mark.parametrize(("case", "way"), RESUMED)
def test_a_run_of_two_processes_goes_on_with_one(session: Session, case: str, way: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(session.path / case / way, run, symlinks=True)
    forget_last(run)
    Room(session.path, {}).alone(case, run, "--resume")
    assert_same_run(run, session.path / case / "alone")


def test_runs_learn_something(session: Session) -> None:
    """Else all of them would be equal for nothing: weights move, and the average lags behind."""
    for case in CASES:
        before, after = (read_manifest(Keeper(session.path / case / "alone").place(n)) for n in (STEPS - 1, STEPS))
        weights, average = after.weights(), after.average()
        assert average is not None
        # the odd outputs of ConvNeXt's last block serve those who take the map; its classifier ignores them
        moved = {name for name in weights if not (case == "convnext" and "stages.1" in name and "odd" in name)}
        for name in moved:
            assert weights[name].dtype == torch.float64
            assert not torch.equal(weights[name], before.weights()[name]), name
            assert not torch.equal(weights[name], average[name]), name


def test_chunks_are_kept_with_the_run(session: Session) -> None:
    """They are part of the result, so a run is the same however many processes it has."""
    jobs = [Job.read(session.path / "vit" / way) for way in ("alone", *WAYS)]
    assert jobs[0].chunk == 2
    assert jobs[0] == jobs[1] == jobs[2]


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
        compile_(model, shard=True)
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
        blocks = blocks_of(timm.create_model(name, **arguments))
        assert len(blocks) == len(set(map(id, blocks))) == depth, name
        assert len({type(block) for block in blocks}) == 1, name


def depth_of(arguments: Mapping[str, Any]) -> int:
    return int(arguments["depth"]) if "depth" in arguments else sum(arguments["depths"])
