"""What tests run in two processes at once, by torchrun: commands one after another, each in both of them.

    torchrun ... two_processes.py PLAN OUTPUT

PLAN is a JSON list of commands: how many unreadable images in a row a reader takes and at which moment the second
process gets a signal, then arguments of the command line, in which {rank} is the number of the process. OUTPUT gets a
file per process with what each command did there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path
from time import sleep
from typing import Any

import torch
import typer
from launcher import strike
from torch import nn

from flopping.training import loader
from flopping.training.processes import Replica, whole_state, world
from flopping.whole import whole
from flopping_cli import app, common

RANK = os.environ.get("RANK", "0")


def meet_anew(place: Path) -> None:
    """Let the next group of processes meet elsewhere than the last one did; the first process says where."""
    if RANK == "0":
        with socket.socket() as found, whole(place) as new:
            found.bind(("localhost", 0))
            new.write_text(str(found.getsockname()[1]), encoding="utf-8")
    while not place.exists():
        sleep(0.01)
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "localhost"}
    os.environ["MASTER_PORT"] = place.read_text(encoding="utf-8")


def command(about: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """A command, with an error as the command line would show it."""
    loader.TRIES = about["tries"]
    if about["strike"] and RANK == "1":
        strike(*about["strike"])
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            code = app([part.replace("{rank}", RANK) for part in arguments], standalone_mode=False)
        except typer.BadParameter as error:
            code = error.exit_code
            error.show()
    return {"code": code or 0, "stderr": errors.getvalue(), "stdout": output.getvalue()}


def infinite_gradient() -> dict[str, Any]:
    """One process has an infinite gradient, and then none has; whether weights move, and the scale of losses after."""
    found = {}
    with world("cpu") as here:
        for shard in (False, True):
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))  # rows that two processes share unevenly
            replica = Replica(network, here, shard=shard, compiled=False)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            before = whole_state(network.state_dict(), keep=True)
            moved = []
            for size in (float("inf"), 1.0):
                images = torch.ones(2, 4) * (size if here.rank == 1 else 1.0)
                with replica.gradients(exchanged=True):
                    scaler.scale(replica(images).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                after = whole_state(network.state_dict(), keep=True)
                moved.append(any(not torch.equal(after[name], before[name]) for name in before))
            found["sharded" if shard else "copied"] = {"moved": moved, "scale": scaler.get_scale()}
    return found


def other_weights() -> dict[str, Any]:
    """A sharded network runs without a backward pass, then with other weights; whether it notices."""
    with world("cpu") as here:
        network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        replica = Replica(network, here, shard=True, compiled=False)
        own, found = network.state_dict(), []
        with torch.no_grad():
            for value in (1.0, 2.0):
                for tensor in own.values():
                    tensor.fill_(value)
                found.append(float(network(torch.ones(1, 4)).sum()))
                replica.settle()
    return {"sums": found}


CHECKS = {"infinite gradient": infinite_gradient, "other weights": other_weights}
"""What is no command."""


def main(plan: Path, output: Path) -> None:
    sys.modules["matplotlib"] = None  # type: ignore[assignment] - drawing takes longer than the runs
    common.PATIENCE = 0.0  # nobody ends these processes
    torch.compiler.set_default_backend("aot_eager")  # compiled all the same, but without a C++ compiler
    results = []
    for number, arguments in enumerate(json.loads(plan.read_text(encoding="utf-8"))):
        meet_anew(output / f"port{number}")
        results.append(command(*arguments) if len(arguments) > 1 else CHECKS[arguments[0]]())
    (output / f"{RANK}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
