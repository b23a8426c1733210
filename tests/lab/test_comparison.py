"""Every figure of a row against one computed by hand."""

from dataclasses import replace
from typing import Any

import pytest
from support.measurements import MACHINE, RECORD, equivariant, in_setting, ordinary, own

from flopping.cost.records import Memory, Record
from flopping.lab.report.comparison import compare, groups, latest

BY_HAND = {
    "model": "deit3_flop_base_patch16_224",
    "paper": "E(ViT-B)",
    "baseline": "deit3_base_patch16_224",
    "mode": "compiled",
    "task": "inference",
    "device": "cpu",
    "dtype": "float32",
    "batch": 8,
    "threads": 2,
    "throughput": 8 / 0.25,
    "ms": 250.0,
    "ms_first_quartile": 200.0,
    "ms_third_quartile": 250.0,
    "latency_ms": None,
    "rounds": 5,
    "speedup": 1.6,  # of 1.6, 2, 2.1, 1.5, 1.52
    "speedup_low": 1.5,  # of five rounds three or more are the smallest in 6 % of all draws
    "speedup_high": 2.1,
    "efficiency": 1.6 / 2,
    "flops": 9e9,
    "flop_ratio": 2.0,
    "params": 43_300_000,
    "params_ratio": 2.0,
    "memory_mb": 500.0,
    "memory_ratio": 1.6,
    "compile_seconds": 10.0,
    "noise": 0.034,
    "paper_throughput": 3266.0,
    "paper_speedup": 3266 / 3088,
    "paper_efficiency": (3266 / 3088) / (17.7 / 9.3),
    "paper_flops_g": 9.3,
    "paper_params_m": 43.3,
    "paper_memory_mb": 828.0,
    "paper_top1": 82.2,
    "problem": None,
    "run": "run-1",
    "time": "2026-01-01T00:00:00Z",
}


def figures(*records: Record) -> dict[str, object]:
    """Of E(ViT-B), which is the last row."""
    return compare(records)[-1].figures


def test_every_figure_by_hand() -> None:
    found = figures(ordinary(), equivariant())
    assert found == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in BY_HAND.items()
    }


RATIOS = ("speedup", "efficiency", "flop_ratio", "params_ratio", "memory_ratio")
LARGER = {"input_size": (3, 384, 384)}
TRAINING = {"setting": in_setting(task="training")}
FAILED = {"seconds": (), "memory": None, "compile_seconds": None, "problem": "out of memory"}
ZERO = {"params": 0, "flops": 0.0, "memory": Memory(0, None)}
SPECIAL: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # only the same run, setting and input are comparable
    **{
        f"another {next(iter(changes))}": (changes, {}, dict.fromkeys(RATIOS))
        for changes in ({"run": "run-2"}, {"setting": in_setting(mode="eager")}, LARGER, {"model": "another"})
    },
    # of rounds that only one of them ran, the first three ratios are 1.6, 2 and 2.1
    "E was cut short": ({}, {"seconds": (0.25, 0.25, 0.2)}, {"speedup": pytest.approx(2.0)}),
    "X was cut short": ({"seconds": (0.4, 0.5, 0.42)}, {}, {"speedup": pytest.approx(2.0)}),
    "one round": (
        {"seconds": (0.5,)},
        {"seconds": (0.25,)},
        {"speedup": 2.0, "speedup_low": None, "speedup_high": None},
    ),
    "X failed": (FAILED, {}, {"speedup": None, "efficiency": None, "memory_ratio": None, "flop_ratio": 2.0}),
    "E failed": (
        {},
        FAILED,
        {"speedup": None, "throughput": None, "ms": None, "ms_first_quartile": None, "memory_ratio": None}
        | {"flop_ratio": 2.0, "params_ratio": 2.0, "problem": "out of memory"},
    ),
    "nothing to divide by": (ZERO, ZERO, dict.fromkeys(RATIOS[1:])),
    "the paper has no training": (
        TRAINING,
        TRAINING,
        dict.fromkeys(f"paper_{name}" for name in ("throughput", "flops_g", "memory_mb", "speedup", "efficiency"))
        | {"paper_params_m": 43.3, "paper_top1": 82.2},
    ),
    "the paper has one size of images": (LARGER, LARGER, {"paper_params_m": None, "speedup": pytest.approx(1.6)}),
}


@pytest.mark.parametrize(("x", "e", "expected"), SPECIAL.values(), ids=SPECIAL)
def test_special_cases(x: dict[str, Any], e: dict[str, Any], expected: dict[str, Any]) -> None:
    (found,) = [row.figures for row in compare([ordinary(**x), equivariant(**e)]) if row.name == "E(ViT-B)"]
    assert {name: found[name] for name in expected} == expected


def test_a_baseline_is_compared_with_nothing() -> None:
    found = compare([ordinary(), equivariant()])[0].figures
    assert found["throughput"] == pytest.approx(20)
    assert (found["ms_first_quartile"], found["ms_third_quartile"]) == pytest.approx((380, 420))
    assert {found[name] for name in (*RATIOS, "speedup_low", "paper_speedup")} == {None}
    assert found["paper_throughput"] == 3088
    (itself,) = compare([ordinary(baseline="deit3_base_patch16_224")])
    assert itself.baseline is None


def test_a_ratio_comes_from_its_own_run_though_the_baseline_was_measured_again() -> None:
    again = ordinary(run="run-2", seconds=(9.0, 9.0), time="2026-01-02")
    rows = {row.name: row for row in compare([ordinary(), equivariant(), again])}
    assert rows["ViT-B"].record is again
    assert rows["E(ViT-B)"].figures["speedup"] == pytest.approx(1.6)


def test_the_order_is_the_papers() -> None:
    names = ["own.py:e", "own.py:x", "E(ConvNeXt-T)", "ConvNeXt-T", "I(ViT-B)", "E(ResMLP-S24)", "ViT-B", "E(ViT-B)"]
    names += ["H(ViT-B)", "ResMLP-S24", "E(ConvNeXt-S (iso.))", "ViT-L"]
    records = [
        own("own.py:e", "own.py:x") if name == "own.py:e" else own(name, paper=None if "own" in name else name)
        for name in names
    ]
    records = [replace(r, baseline="ConvNeXt-T") if r.model == "E(ConvNeXt-T)" else r for r in records]
    assert [row.name for row in compare(records)] == [
        *("ResMLP-S24", "E(ResMLP-S24)"),
        *("ViT-L", "ViT-B", "H(ViT-B)", "I(ViT-B)", "E(ViT-B)"),
        *("E(ConvNeXt-S (iso.))", "ConvNeXt-T", "E(ConvNeXt-T)"),
        *("own.py:x", "own.py:e"),
    ]


def test_settings_and_machines_are_tables_of_their_own() -> None:
    eager, faster = in_setting(mode="eager"), replace(MACHINE, processor="Testor 9001")
    records = [ordinary(), ordinary(setting=eager), ordinary(machine=faster), equivariant()]
    sizes = [[row.name for row in group] for group in groups(compare(records))]
    assert sizes == [["ViT-B", "E(ViT-B)"], ["ViT-B"], ["ViT-B"]]


def test_the_latest_is_the_last_complete_one() -> None:
    first, second = ordinary(run="1"), ordinary(run="2")
    cut_short = ordinary(run="3", seconds=(0.4,), problem="interrupted")
    failed = ordinary(run="4", seconds=(), problem="out of memory")
    again = ordinary(machine=replace(MACHINE, load=3.0, versions={"torch": "3.0"}))
    assert latest([first, second]) == [second]
    assert latest([first, cut_short, failed]) == [first]
    assert latest([failed, cut_short]) == latest([cut_short, failed]) == [cut_short]
    assert latest([failed, replace(failed, run="5")]) == [replace(failed, run="5")]
    assert latest([RECORD, again]) == [again]  # on another day
    others = [
        equivariant(),
        ordinary(setting=in_setting(dtype="bfloat16")),
        ordinary(input_size=(3, 384, 384)),
        ordinary(machine=replace(MACHINE, gpu="A100")),
    ]
    assert latest([RECORD, *others]) == [RECORD, *others]
