"""`flopping doctor`: checks pass where things work, and whatever goes wrong in one is its row alone."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.training_runs import call
from typer.testing import CliRunner

from flopping.cost.records import Setting
from flopping.lab import doctor
from flopping.lab.doctor import Check, Result, describe_machine, examine, networks, plan, sentence
from flopping_cli import app
from flopping_cli.common import CTRL_C

INFER = Setting("eager", "inference", "cpu", "float32", batch=2, threads=1)
TRAIN = replace(INFER, task="training")
GOOD = Check("resmlp_flop_test_64", "forward", INFER)
NETWORKS = """
import os, signal, time, torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 64 * 64, 4))

class Idle(Net):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))

def crash():
    os.kill(os.getpid(), signal.SIGILL)

def hang():
    time.sleep(100)

def interrupt():
    os.kill(int(os.environ["DOCTOR"]), signal.SIGINT)
    time.sleep(100)

def terminate():
    os.kill(int(os.environ["DOCTOR"]), signal.SIGTERM)
    time.sleep(100)
"""
pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad_networks.py"
    file.write_text(NETWORKS)
    return str(file)


def test_every_architecture_passes() -> None:
    first, names = networks()[0], ("forward", "save and load")
    checks = [c for c in plan("cpu") if c.name == "training step" or (c.network == first and c.name in names)]
    assert {check.network for check in checks} == set(networks())
    results = list(examine(checks))
    assert [result.problem for result in results] == [None] * (2 + len(networks()))
    assert all(result.status == "pass" and result.seconds is not None for result in results)


@pytest.mark.long
def test_all_checks_of_one_architecture() -> None:
    checks = [check for check in plan("cpu") if check.network == networks()[0]]
    assert "compiled step" in {check.name for check in checks}
    assert {result.status for result in examine(checks)} <= {"pass", "no"}


def test_a_crash_is_a_row_and_the_next_check_runs(bad: str) -> None:
    crashed, passed = examine([Check(f"{bad}:crash", "forward", INFER), GOOD])
    assert (crashed.status, passed.status) == ("FAIL", "pass")
    assert "SIGILL" in (crashed.problem or "")


def test_a_check_that_hangs_is_ended(bad: str) -> None:
    (result,) = examine([Check(f"{bad}:hang", "forward", INFER)], limit=1.0)
    assert (result.status, result.problem) == ("FAIL", "not done after 1 s")


def test_what_is_wrong_fails(bad: str) -> None:
    ordinary, idle = examine([Check("resmlp_test_64", "forward", INFER), Check(f"{bad}:Idle", "training step", TRAIN)])
    assert "mirrored images" in (ordinary.problem or "")
    assert "unused (1 of 3" in (idle.problem or "")


def test_a_precision_that_does_not_run_is_no_failure() -> None:
    (result,) = examine([Check("resmlp_flop_test_64", "float128 step", replace(TRAIN, dtype="float128"))])
    assert (result.status, result.seconds) == ("no", None)
    assert "float128" in (result.problem or "")


def test_the_machine_and_the_sentence() -> None:
    machine = describe_machine("cpu")
    assert {"versions", "processor", "memory", "GPUs", "precisions", "compiler"} <= set(machine)
    assert "float32" in machine["precisions"]
    results = [
        Result("a", "forward", "pass", 1.0, None),
        Result("a", "bfloat16 step", "no", None, "none here"),
        Result("b", "forward", "FAIL", None, "killed by SIGILL"),
    ]
    said = sentence(machine, results)
    assert "1 of 2 checks passed; b, forward: killed by SIGILL" in said
    assert machine["versions"] in said
    assert "\n" not in said


def test_the_command(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check is reported when it ends; the table fits 80 columns; a check that failed gives exit code 1."""
    monkeypatch.setattr(doctor, "plan", lambda device: [GOOD, Check(f"{bad}:crash", "forward", INFER)])
    found = call("doctor", "--device", "cpu", "--json")
    assert found.code == 1
    assert "1 of 2: resmlp_flop_test_64, forward: pass, " in found.err
    assert f"2 of 2: {bad}:crash, forward: FAIL" in found.err
    said = json.loads(found.out)
    assert [result["status"] for result in said["results"]] == ["pass", "FAIL"]
    assert said["sentence"] == sentence(said["machine"], [Result(**result) for result in said["results"]])
    monkeypatch.setattr(doctor, "plan", lambda device: [GOOD])
    table = CliRunner().invoke(app, ["doctor", "--device", "cpu", "-q"], env={"COLUMNS": "80"})
    assert (table.exit_code, table.stderr) == (0, "")
    rows = [line for line in table.stdout.splitlines() if line.startswith(("│", "┃"))]
    assert len(rows) == 2
    assert all(len(row) <= 80 for row in rows)


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_a_signal_shows_what_is_known(how: str, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTOR", str(os.getpid()))
    monkeypatch.setattr(doctor, "plan", lambda device: [GOOD, Check(f"{bad}:{how}", "forward", INFER), GOOD])
    found = call("doctor", "--device", "cpu", "--json", "--quiet")
    assert found.code == CTRL_C
    assert [result["status"] for result in json.loads(found.out)["results"]] == ["pass"]
    assert "Interrupted after 1 check" in found.err


def test_a_device_that_is_not_there_is_refused() -> None:
    found = call("doctor", "--device", "tpu")
    assert found.code == 2
    assert "'tpu'" in found.err
