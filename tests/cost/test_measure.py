"""Measuring real networks in real processes: figures, problems as rows, budgets, interrupts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.measurements import MACHINE, in_setting

from flopping.cost import measure
from flopping.cost.measure import ChildProcess, Session
from flopping.cost.protocol import CPU_PROTOCOL, Protocol, plan_records
from flopping.cost.records import Record, Setting, is_measured, read
from flopping.lab.bench.measure_networks import measure_groups

NETWORKS = Path(__file__).parents[1] / "support" / "networks_to_measure.py"
EAGER = in_setting(mode="eager", batch=2)
SHORT = Protocol(batch=2, dtype="float32", warmup=1, repeats=3)
PROBLEMS = {
    "Endless": "out of memory",
    "Illegal": "the process was killed by SIGILL",
    "Refusing": "ValueError: this net",
}

pytestmark = pytest.mark.usefixtures("forked_python")


def network(name: str) -> str:
    return f"{NETWORKS}:{name}"


def measured(names: Sequence[str], settings: Sequence[Setting], **arguments: Any) -> dict[tuple[str, Setting], Record]:
    records: list[Record] = []
    planned = plan_records([network(name) for name in names], settings, network("Net"), command="flopping bench")
    Session(SHORT, records.append, **arguments).measure(planned)
    return {(record.model.rpartition(":")[2], record.setting): record for record in records}


def test_good_and_bad_networks_in_one_run() -> None:
    """Bad ones become rows that say what happened, and the good ones are measured all the same."""
    found = {name: r for (name, _), r in measured(["Larger", *PROBLEMS], [EAGER]).items()}
    assert set(found) == {"Net", "Larger", *PROBLEMS}
    for name, record in found.items():
        assert record.baseline == (None if name == "Net" else network("Net"))
        assert record.command == "flopping bench"
        assert (record.params, record.input_size) == (192 * 4 + 4, (3, 8, 8))
        assert record.compile_seconds is None
        assert record.run == found["Net"].run != ""
        if name in PROBLEMS:
            assert (record.problem or "").startswith(PROBLEMS[name])
            assert record.seconds == ()
        else:
            assert len(record.seconds) == SHORT.repeats
            assert record.noise is not None
    assert (found["Net"].problem, found["Net"].macs) == (None, 192 * 4)
    small, large = found["Net"].memory, found["Larger"].memory
    assert small is not None
    assert large is not None
    assert small.peak < 20e6
    assert 0.99 * 100 * 2**20 <= large.peak < 140e6  # while it runs
    assert large.resident is not None
    assert large.resident > large.peak + 100e6  # with Python and torch


@pytest.mark.long
def test_compiled_code() -> None:
    compiled = in_setting(mode="compiled", batch=2)
    record = measured(["Net"], [compiled])["Net", compiled]
    assert record.problem is None
    assert record.compile_seconds is not None
    assert record.compile_seconds > 0


def test_a_precision_that_does_not_run_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "precision_problem", lambda dtype, _: "crashes" if dtype == "bfloat16" else None)
    records: list[Record] = []
    cases = plan_records(
        [network("Net")], [EAGER, in_setting(mode="eager", task="training", dtype="bfloat16", batch=2)], machine=MACHINE
    )
    left = measure_groups([cases, cases[:1]], SHORT, records.append, seconds=0.01)
    good, other = records
    assert left == 1  # the second group would begin after the seconds
    assert (len(good.seconds), good.problem) == (SHORT.repeats, None)
    assert (other.seconds, other.problem, other.params) == ((), "crashes", 192 * 4 + 4)
    assert other.macs == 2 * 192 * 4  # the image needs no gradient
    assert [is_measured(record, records) for record in cases] == [True, False]


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_the_command_ends_in_the_middle_of_the_rounds(tmp_path: Path, ended_by: signal.Signals) -> None:
    """An interrupt keeps what was measured. Even if the command is killed, no process goes on in the background."""
    log, out = tmp_path / "log", tmp_path / "out.jsonl"

    def runs() -> int:
        return len(log.read_text().splitlines()) if log.exists() else 0

    words = ["bench", network("Telling"), "--mode", "eager", "--repeats", "1000000", "-o", str(out)]
    command, environment = [sys.executable, "-m", "flopping", *words], {**os.environ, "TELL": str(log)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    before_rounds = 4 + 1 + CPU_PROTOCOL.warmup
    while runs() < before_rounds + 20:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(ended_by)
    stdout, stderr = process.communicate(timeout=60)
    if ended_by == signal.SIGINT:
        assert process.returncode == 130, stderr
        (record,) = read(out)
        assert record.seconds
        assert record.problem == f"interrupted after {len(record.seconds)} rounds"
        assert "Interrupted: 1 of 1 rows were measured, 1 record kept in" in stderr
        assert "Telling" in stdout
    for _ in range(100):
        before = runs()
        time.sleep(0.3)
        if runs() == before:
            return
    raise AssertionError("the measuring process goes on")


def test_interrupt_while_memory_is_measured() -> None:
    """Nothing was measured, so nothing is kept, above all no row that blames the system."""
    records: list[Record] = []
    session = Session(SHORT, records.append, progress=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        session.measure(plan_records([network("Net")], [EAGER]))
    assert records == []


def test_a_crash_in_the_rounds_keeps_the_rounds_and_starts_nothing_anew() -> None:
    """One crashes in its third round: all keep what they have."""
    found = measured(["Dying"], [EAGER])
    problem = found["Dying", EAGER].problem
    assert problem is not None
    assert "SIGILL" in problem
    assert found["Net", EAGER].problem == problem
    assert len(found["Net", EAGER].seconds) == len(found["Dying", EAGER].seconds) == 2


def test_a_process_that_dies_at_once_says_why() -> None:
    case = {"key": "a", "model": network("Net"), "setting": {"mode": "eager", "device": "nowhere", "threads": 1}}
    with ChildProcess({"job": "sleep", "cases": [case]}, {}) as child:
        assert list(child.events()) == []
        assert child.problem == "KeyError: 'sleep'"
