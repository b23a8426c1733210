"""Every figure of a row against one computed by hand."""

from dataclasses import replace

import pytest
from support.measurements import MACHINE, RECORD, equivariant, ordinary, own

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


def test_a_baseline_is_compared_with_nothing() -> None:
    found = compare([ordinary(), equivariant()])[0].figures
    assert found["throughput"] == pytest.approx(20)
    assert (found["ms_first_quartile"], found["ms_third_quartile"]) == pytest.approx((380, 420))
    for name in ("speedup", "speedup_low", "flop_ratio", "params_ratio", "memory_ratio", "efficiency", "paper_speedup"):
        assert found[name] is None
    assert found["paper_throughput"] == 3088
    (itself,) = compare([ordinary(baseline="deit3_base_patch16_224")])
    assert itself.baseline is None


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "run-2"},
        {"setting": replace(RECORD.setting, mode="eager")},
        {"input_size": (3, 384, 384)},
        {"model": "another"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_only_the_same_run_setting_and_input_are_comparable(changes: dict[str, object]) -> None:
    rows = compare([ordinary(**changes), equivariant()])
    (row,) = [row for row in rows if row.name == "E(ViT-B)"]
    assert row.baseline is None
    assert row.figures["speedup"] is row.figures["efficiency"] is None


def test_a_ratio_comes_from_its_own_run_though_the_baseline_was_measured_again() -> None:
    again = ordinary(run="run-2", seconds=(9.0, 9.0), time="2026-01-02")
    rows = {row.name: row for row in compare([ordinary(), equivariant(), again])}
    assert rows["ViT-B"].record is again
    assert rows["E(ViT-B)"].figures["speedup"] == pytest.approx(1.6)


def test_rounds_that_only_one_of_them_ran_are_left_out() -> None:
    """An interrupted run: the first three ratios are 1.6, 2 and 2.1."""
    for pair in (
        (ordinary(), equivariant(seconds=(0.25, 0.25, 0.2))),
        (ordinary(seconds=(0.4, 0.5, 0.42)), equivariant()),
    ):
        assert figures(*pair)["speedup"] == pytest.approx(2.0)
    found = figures(ordinary(seconds=(0.5,)), equivariant(seconds=(0.25,)))
    assert (found["speedup"], found["speedup_low"], found["speedup_high"]) == (2.0, None, None)


@pytest.mark.parametrize("failed", ["ordinary", "equivariant"])
def test_what_has_no_times_has_no_ratio_but_counts(failed: str) -> None:
    nothing = {"seconds": (), "memory": None, "compile_seconds": None, "problem": "out of memory"}
    x, e = ordinary(**nothing if failed == "ordinary" else {}), equivariant(**nothing if failed != "ordinary" else {})
    found = figures(x, e)
    assert found["speedup"] is found["efficiency"] is found["memory_ratio"] is None
    assert (found["flop_ratio"], found["params_ratio"]) == (2.0, 2.0)
    if failed == "equivariant":
        assert found["throughput"] is found["ms"] is found["ms_first_quartile"] is None
        assert found["problem"] == "out of memory"


def test_nothing_is_divided_by_zero_or_by_what_is_unknown() -> None:
    zero = {"params": 0, "flops": 0.0, "memory": Memory(0, None)}
    found = figures(ordinary(**zero), equivariant(**zero))
    assert found["flop_ratio"] is found["params_ratio"] is found["memory_ratio"] is found["efficiency"] is None


def test_the_paper_has_no_training_and_one_size_of_images() -> None:
    training = replace(RECORD.setting, task="training")
    found = figures(ordinary(setting=training), equivariant(setting=training))
    assert (found["paper_params_m"], found["paper_top1"]) == (43.3, 82.2)
    for name in ("throughput", "flops_g", "memory_mb", "speedup", "efficiency"):
        assert found[f"paper_{name}"] is None
    found = figures(ordinary(input_size=(3, 384, 384)), equivariant(input_size=(3, 384, 384)))
    assert found["paper_params_m"] is None
    assert found["speedup"] is not None


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
    eager, faster = replace(RECORD.setting, mode="eager"), replace(MACHINE, processor="Testor 9001")
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
        ordinary(setting=replace(RECORD.setting, dtype="bfloat16")),
        ordinary(input_size=(3, 384, 384)),
        ordinary(machine=replace(MACHINE, gpu="A100")),
    ]
    assert latest([RECORD, *others]) == [RECORD, *others]
