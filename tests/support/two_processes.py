"""The script that tests run on two ranks: commands one after another, each on both of them.

    torchrun ... -m support.two_processes PLAN OUTPUT

PLAN is a JSON list of commands: how many unreadable images in a row a reader takes and at which moments rank 1 gets
signals, then arguments of the command line, in which {rank} stands for the rank. OUTPUT gets a file per rank with what
each command did there.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import socket
import sys
from pathlib import Path
from time import sleep
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from rich.console import Console
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from flopping.data import batches
from flopping.data.images import ArrayDataset
from flopping.errors import PeerLostError, UsageError
from flopping.files import atomic_write
from flopping.training import initial_weights, trainer
from flopping.training.distributed import ParallelModel, World, broadcast_network, init_world, shard_network
from flopping.training.job import Job, RunOptions
from flopping.training.networks import build
from flopping.training.recipe import load
from flopping_cli import app, common
from support.forked_python import strike

RANK = os.environ.get("RANK", "0")


def meet_anew(place: Path) -> None:
    """Let the next group of processes meet elsewhere than the last one did; the first process says where."""
    if RANK == "0":
        with socket.socket() as found, atomic_write(place) as new:
            found.bind(("localhost", 0))
            new.write_text(str(found.getsockname()[1]), encoding="utf-8")
    while not place.exists():
        sleep(0.01)
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "localhost"}
    os.environ["MASTER_PORT"] = place.read_text(encoding="utf-8")


def command(about: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """A command, with an error as the command line would show it."""
    batches.TRIES = about["tries"]
    for moment in about["strikes"] if RANK == "1" else ():
        strike(*moment)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            code = app([part.replace("{rank}", RANK) for part in arguments], standalone_mode=False)
        except typer.BadParameter as error:
            code = error.exit_code
            error.show()
    return {"code": code or 0, "stderr": errors.getvalue(), "stdout": output.getvalue()}


def make_network(world: World, *, shard: bool) -> tuple[nn.Module, ParallelModel]:
    """Two layers whose rows two ranks share unevenly."""
    torch.manual_seed(0)
    network = source = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    if shard:
        network = copy.deepcopy(source).to("meta")
        shard_network(network, world)
        broadcast_network(network, source if world.is_main else None, world)
    return network, ParallelModel(network, world, sharded=shard)


def infinite_gradient() -> dict[str, Any]:
    """One rank has an infinite gradient, and then none has; whether weights move, and the scale of losses after."""
    found = {}
    with init_world("cpu") as world:
        for shard in (False, True):
            network, parallel = make_network(world, shard=shard)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            full = StateDictOptions(full_state_dict=True)
            before = copy.deepcopy(get_model_state_dict(network, options=full))
            moved = []
            for size in (float("inf"), 1.0):
                images = torch.ones(2, 4) * (size if world.rank == 1 else 1.0)
                with parallel.accumulate_gradients(sync=True):
                    scaler.scale(parallel(images).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                after = get_model_state_dict(network, options=full)
                moved.append(any(not torch.equal(after[name], before[name]) for name in before))
            found["sharded" if shard else "copied"] = {"moved": moved, "scale": scaler.get_scale()}
    return found


def other_weights() -> dict[str, Any]:
    """A sharded network runs without a backward pass, then with other weights; whether it uses them."""
    with init_world("cpu") as world:
        network, parallel = make_network(world, shard=True)
        own, found = network.state_dict(), []
        with torch.no_grad():
            for value in (1.0, 2.0):
                for tensor in own.values():
                    tensor.fill_(value)
                found.append(float(network(torch.ones(1, 4)).sum()))
                parallel.reshard()
    return {"sums": found}


def shared_errors() -> dict[str, Any]:
    """One rank refuses a value, then it has a bug; what both ranks raise, and the cause."""
    found = []
    with init_world("cpu") as world:
        for kind in (UsageError, ZeroDivisionError):
            try:
                with world.raise_on_all_ranks():
                    if world.rank == 1:
                        raise kind("bad value 7")
            except Exception as error:
                found.append([type(error).__name__, str(error), type(error.__cause__).__name__])
    return {"found": found}


def sharded_memory() -> dict[str, Any]:
    """On which devices a network is built that is to be sharded, and which part of it and its average a rank holds."""
    devices = []

    def recorded_build(*arguments: Any) -> nn.Module:
        network = build(*arguments)
        devices.append(next(network.parameters()).device.type)
        return network

    size = ["img_size=32", "model_args={embed_dim: 32, depth: 2}", "batch_size=4", "repeats=1", "precision=float32"]
    recipe = load("deit3_base").override([*size, "ema=0.9", "model=deit3_flop_test_patch16_64"])
    images = ArrayDataset("noise", np.zeros((8, 32, 32, 3), np.uint8), np.zeros(8, np.int64), ["a", "b"])
    options = RunOptions(device="cpu", workers=0, compile=False, shard=True)
    with init_world("cpu") as world, mock.patch.object(initial_weights, "build", recorded_build):
        job = Job(recipe, recipe.model, "noise", micro_batch=2)
        made = trainer.Trainer(job, options, Path(), world, images, images, Console(stderr=True)).learner
        assert made.average is not None
        parts = [
            sum(tensor.to_local().numel() for tensor in network.parameters())  # type: ignore[attr-defined]
            / sum(tensor.numel() for tensor in network.parameters())
            for network in (made.model, made.average.module)
        ]
    return {"devices": devices, "parts": parts}


def lost_peer() -> dict[str, Any]:
    """An error of one's own keeps its type; then rank 1 leaves, and rank 0 goes on alone."""
    own = None
    with init_world("cpu") as world:
        world.all_reduce([1.0])
        try:
            with world.detect_lost_peers():
                raise RuntimeError("train/igloo/7.jpg")
        except RuntimeError as error:
            own = str(error)
        if world.rank == 1:
            return {"own": own}
        try:
            with world.detect_lost_peers(lambda: "Kept. "):
                while True:
                    world.all_reduce([1.0])
        except PeerLostError as error:
            return {"own": own, "error": str(error), "cause": type(error.__cause__).__name__}


CHECKS = {
    "infinite gradient": infinite_gradient,
    "other weights": other_weights,
    "shared errors": shared_errors,
    "sharded memory": sharded_memory,
    "lost peer": lost_peer,
}
"""What is no command."""


def main(plan: Path, output: Path) -> None:
    torch.set_num_threads(1)
    sys.modules["matplotlib"] = None  # type: ignore[assignment] # it takes longer than the runs
    common.RANK0_SECONDS = 0.0  # nobody ends these processes
    torch.compiler.set_default_backend("aot_eager")  # compiled all the same, but without a C++ compiler
    results = []
    for number, arguments in enumerate(json.loads(plan.read_text(encoding="utf-8"))):
        meet_anew(output / f"port{number}")
        results.append(command(*arguments) if len(arguments) > 1 else CHECKS[arguments[0]]())
    (output / f"{RANK}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
