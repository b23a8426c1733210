"""Measuring real networks in real processes: figures, problems as rows, budgets, interrupts. Nothing is timed against
a bound."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from networks_to_measure import Larger, Net

from flopping.bench import memory, plan
from flopping.bench.child import ChildProcess
from flopping.bench.measure import Session
from flopping.bench.plan import Protocol
from flopping.bench.records import Record, Setting, read
from flopping.bench.running import Run, is_out_of_memory

NETWORKS = Path(__file__).with_name("networks_to_measure.py")
EAGER = Setting("eager", batch=2)
SHORT = Protocol(batch=2, dtype="float32", warmup=1, repeats=3)


def network(name: str) -> str:
    return f"{NETWORKS}:{name}"


def measured(names: Sequence[str], settings: Sequence[Setting], **arguments: Any) -> dict[tuple[str, Setting], Record]:
    records: list[Record] = []
    session = Session(SHORT, records.append, command="flopping bench", **arguments)
    session.measure([plan.cases([network(name) for name in names], settings, network("Net"))])
    return {(record.model.rpartition(":")[2], record.setting): record for record in records}


PROBLEMS = {
    "Endless": "out of memory",
    "Illegal": "the process was killed by SIGILL: the processor doesn't know",
    "Refusing": "ValueError: this network wants to rest",
}


@pytest.mark.usefixtures("forked_python")
def test_good_and_bad_networks_in_one_run() -> None:
    """Bad ones become rows that say what happened, and the good ones are measured all the same."""
    found = {name: r for (name, _), r in measured(["Larger", *PROBLEMS, "Unknown", "Looking"], [EAGER]).items()}
    assert set(found) == {"Net", "Larger", "Unknown", "Looking", *PROBLEMS}
    for name, record in found.items():
        assert record.baseline == (None if name == "Net" else network("Net"))
        assert record.command == "flopping bench"
        assert record.machine.versions["torch"] == torch.__version__
        assert record.params == 192 * 4 + 4
        assert record.input_size == (3, 8, 8)
        assert record.compile_seconds is None
    for name, problem in PROBLEMS.items():
        assert (found[name].problem or "").startswith(problem)
        assert found[name].seconds == ()
        assert found[name].run == found["Endless"].run != ""
    assert found["Net"].problem is None
    for name in ("Net", "Larger", "Unknown", "Looking"):
        assert len(found[name].seconds) == SHORT.repeats
        assert found[name].noise is not None
        assert found[name].run == found["Net"].run
    assert found["Net"].macs == 192 * 4
    assert found["Unknown"].flops is None
    assert found["Unknown"].problem == (
        "FLOPs aren't known: ValueError: no rule for the cost of special_bessel_j0 in the network itself (Unknown):"
        " pass costs={name: FLOPs per number that comes out}"
    )
    small, large = found["Net"].memory, found["Larger"].memory
    assert small is not None
    assert large is not None
    assert small.peak < 20e6
    assert 0.99 * 100 * 2**20 <= large.peak < 140e6  # while it runs
    assert large.resident is not None
    assert large.resident > large.peak + 100e6  # Python and torch are in it


@pytest.mark.usefixtures("forked_python")
def test_training_compiled() -> None:
    """A step of training in compiled code: state of the optimiser in memory, compile time, work of a step."""
    setting = Setting("compiled", "training", batch=2)
    record = measured(["Net"], [setting])["Net", setting]
    assert record.problem is None
    assert record.compile_seconds is not None
    assert record.compile_seconds > 0
    assert record.memory is not None
    assert record.memory.peak >= 3 * 4 * record.params
    assert record.macs == 2 * 192 * 4  # the image needs no gradient


@pytest.mark.usefixtures("forked_python")
def test_budget_leaves_out_what_is_too_long() -> None:
    record = measured(["Net"], [EAGER], budget=0.01)["Net", EAGER]
    assert record.seconds == ()
    assert record.problem is not None
    assert record.problem.startswith(("not measured: it needs about", "the time budget was used up after 0 rounds"))


@pytest.mark.usefixtures("forked_python")
def test_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    """The command itself, in a process; the interrupt comes in the middle of the rounds."""
    told, out = tmp_path / "told", tmp_path / "out.jsonl"
    arguments = ["bench", network("Telling"), "--mode", "eager", "--repeats", "1000000", "-o", str(out)]
    command = [sys.executable, "-m", "flopping", *arguments]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TELL": str(told)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    before_rounds = 6 + 2 + plan.CPU_PROTOCOL.warmup
    while not told.exists() or len(told.read_text().splitlines()) < before_rounds + 20:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (record,) = read(out)
    assert record.seconds
    assert record.problem == f"interrupted after {len(record.seconds)} rounds"
    assert "Interrupted: 1 of 1 rows were measured, 1 record kept in" in stderr
    assert "Telling" in stdout
    runs = len(told.read_text().splitlines())
    time.sleep(0.5)
    assert len(told.read_text().splitlines()) == runs  # nobody goes on in the background


@pytest.mark.usefixtures("forked_python")
def test_precisions_are_tried_in_a_process() -> None:
    """Whatever this machine does with bfloat16, this process lives; where it crashes, the row says how."""
    setting = Setting("eager", dtype="bfloat16", batch=2)
    record = measured(["Net"], [setting])["Net", setting]
    if record.problem is None:
        assert len(record.seconds) == SHORT.repeats
    else:
        assert record.problem.startswith("bfloat16 doesn't run on this machine: the process was killed by SIGILL")
        assert "ONEDNN_MAX_CPU_ISA" in record.problem


@pytest.mark.usefixtures("forked_python")
def test_a_process_that_dies_at_once_says_why() -> None:
    with ChildProcess({"threads": 1, "job": "try", "setting": {"mode": "eager", "device": "nowhere"}}) as child:
        assert list(child.events()) == []
        assert child.problem is not None
        assert "nowhere" in child.problem


def test_children_end_with_their_caller(tmp_path: Path) -> None:
    """Even if the caller is killed and can't say goodbye."""
    told = tmp_path / "told"
    script = (
        "from flopping.bench.child import ChildProcess\n"
        f"case = {{'key': 'a', 'model': {network('Telling')!r}, 'setting': {{'mode': 'eager', 'batch': 1}}}}\n"
        "with ChildProcess({'threads': 1, 'job': 'time', 'warmup': 0}) as child:\n"
        "    child.send(case)\n"
        "    child.send({'go': 10**9, 'seconds': None, 'fewest': 1})\n"
        "    for event in child.events(): pass\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TELL": str(told)})
    while not told.exists() or len(told.read_text().splitlines()) < 5:
        assert caller.poll() is None
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    for _ in range(100):
        runs = len(told.read_text().splitlines())
        time.sleep(0.2)
        if len(told.read_text().splitlines()) == runs:
            return
    raise AssertionError("the measuring process goes on")


def test_peak_is_what_runs_need_beyond_the_state() -> None:
    run = Run(Larger(), torch.randn(2, 3, 8, 8), EAGER)
    run()
    found = memory.peak(run, run.state_bytes, run.device)
    assert found is not None
    assert 0.99 * 100 * 2**20 <= found.peak < 140e6


def test_training_updates_the_weights() -> None:
    model = Net()
    before = model.head.weight.clone()
    Run(model, torch.randn(2, 3, 8, 8), Setting("eager", "training", batch=2))()
    assert not torch.equal(model.head.weight, before)
    assert model.head.weight.grad is None
    assert model.training


@pytest.mark.parametrize("mode", ["compiled", "compiled-frozen"])
def test_frozen_weights_are_constants(mode: str) -> None:
    """What is frozen doesn't notice that a weight changes."""
    model = Net()
    run = Run(model, torch.randn(2, 3, 8, 8), Setting(mode, batch=2))
    run()
    with torch.no_grad():
        before = run.called(run.x).clone()
        model.head.weight.zero_()
        after = run.called(run.x)
    assert torch.equal(before, after) == (mode == "compiled-frozen")


class Killed(Session):
    """Interrupted as soon as the memory of a network is being measured."""

    def _say(self, text: str) -> None:
        if "memory" in text:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("forked_python")
def test_interrupt_while_memory_is_measured() -> None:
    """Nothing was measured, so nothing is kept: above all no row that puts the blame on the system."""
    records: list[Record] = []
    with pytest.raises(KeyboardInterrupt):
        Killed(SHORT, records.append).measure([plan.cases([network("Net")], [EAGER])])
    assert records == []


@pytest.mark.usefixtures("forked_python")
def test_a_crash_in_the_rounds_keeps_the_rounds_and_starts_nothing_anew() -> None:
    """One breaks down in its third round: all keep what they have."""
    found = measured(["Dying"], [EAGER])
    problem = found["Dying", EAGER].problem
    assert problem is not None
    assert "SIGILL" in problem
    assert found["Net", EAGER].problem == problem
    assert len(found["Net", EAGER].seconds) == len(found["Dying", EAGER].seconds) == 2


def test_inference_has_no_gradients() -> None:
    model = Net().train()
    modes = []
    model.register_forward_hook(lambda *_: modes.append((torch.is_grad_enabled(), model.training)))
    Run(model, torch.randn(2, 3, 8, 8), EAGER)()
    assert modes == [(False, False)]


def test_autocast_runs_in_the_precision() -> None:
    model = nn_that_shows_its_dtype()
    Run(model, torch.randn(2, 3, 8, 8), Setting("eager", dtype="bfloat16", batch=2))()
    assert model.seen == [torch.bfloat16]
    assert model.weight.dtype == torch.float32


def nn_that_shows_its_dtype() -> Any:
    class Shows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.seen: list[torch.dtype] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)
            return x

    return Shows()


def test_out_of_memory_is_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
