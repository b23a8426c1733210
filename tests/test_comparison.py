"""Every figure of a row against one computed by hand."""

from dataclasses import replace

import pytest
from measurements import MACHINE, RECORD, equivariant, many, ordinary, own

from flopping.bench.comparison import Row, compare, figures_of, groups
from flopping.bench.records import Memory

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


def test_every_figure_by_hand() -> None:
    _, row = compare([ordinary(), equivariant()])
    found = figures_of(row)
    assert list(found) == list(BY_HAND)
    assert found == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in BY_HAND.items()
    }


def test_a_baseline_is_compared_with_nothing() -> None:
    row, _ = compare([ordinary(), equivariant()])
    found = figures_of(row)
    assert found["throughput"] == pytest.approx(20)
    assert row.quartiles == pytest.approx((380, 420))
    for name in ("speedup", "speedup_low", "flop_ratio", "params_ratio", "memory_ratio", "efficiency"):
        assert found[name] is None
    assert found["paper_speedup"] is None
    assert found["paper_throughput"] == 3088


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
    assert row.speedup is None
    assert row.efficiency is None


def test_a_ratio_comes_from_its_own_run_though_the_baseline_was_measured_again() -> None:
    again = ordinary(run="run-2", seconds=(9.0, 9.0), time="2026-01-02")
    rows = {row.name: row for row in compare([ordinary(), equivariant(), again])}
    assert rows["ViT-B"].record is again
    assert rows["E(ViT-B)"].speedup.value == pytest.approx(1.6)


def test_rounds_that_only_one_of_them_ran_are_left_out() -> None:
    """An interrupted run: the first three ratios are 1.6, 2 and 2.1."""
    _, row = compare([ordinary(), equivariant(seconds=(0.25, 0.25, 0.2))])
    assert row.speedup.value == pytest.approx(2.0)
    _, row = compare([ordinary(seconds=(0.4, 0.5, 0.42)), equivariant()])
    assert row.speedup.value == pytest.approx(2.0)


def test_one_round_has_no_interval() -> None:
    _, row = compare([ordinary(seconds=(0.5,)), equivariant(seconds=(0.25,))])
    found = figures_of(row)
    assert (found["speedup"], found["speedup_low"], found["speedup_high"]) == (2.0, None, None)


@pytest.mark.parametrize("failed", ["ordinary", "equivariant"])
def test_what_has_no_times_has_no_ratio_but_counts(failed: str) -> None:
    nothing = {"seconds": (), "memory": None, "compile_seconds": None, "problem": "out of memory"}
    x, e = ordinary(**nothing if failed == "ordinary" else {}), equivariant(**nothing if failed != "ordinary" else {})
    _, row = compare([x, e])
    assert row.speedup is None
    assert row.efficiency is None
    assert row.memory_ratio is None
    assert (row.flop_ratio, row.params_ratio) == (2.0, 2.0)
    if failed == "equivariant":
        assert (row.throughput, row.milliseconds, row.quartiles, row.problem) == (None, None, None, "out of memory")


def test_zeros_and_unknown_counts_divide_nothing() -> None:
    zero = {"params": 0, "flops": 0.0, "memory": Memory(0, None)}
    _, row = compare([ordinary(**zero), equivariant(**zero)])
    assert (row.flop_ratio, row.params_ratio, row.memory_ratio, row.efficiency) == (None, None, None, None)
    _, row = compare([ordinary(flops=None), equivariant()])
    assert row.efficiency is None
    _, row = compare([ordinary(flops=0.0), equivariant()])
    assert (row.flop_ratio, row.efficiency) == (0.0, None)


def test_one_image_at_a_time_is_latency() -> None:
    alone = replace(RECORD.setting, batch=1)
    x, e = compare([ordinary(setting=alone), equivariant(setting=alone)])
    assert (x.latency, e.latency) == pytest.approx((400, 250))
    assert e.throughput == pytest.approx(4)


def test_the_paper_has_no_training_and_one_size_of_images() -> None:
    training = replace(RECORD.setting, task="training")
    _, row = compare([ordinary(setting=training), equivariant(setting=training)])
    found = figures_of(row)
    assert found["paper_params_m"] == 43.3
    assert found["paper_top1"] == 82.2
    for name in ("throughput", "flops_g", "memory_mb", "speedup", "efficiency"):
        assert found[f"paper_{name}"] is None
    _, row = compare([ordinary(input_size=(3, 384, 384)), equivariant(input_size=(3, 384, 384))])
    assert row.reported is None
    assert row.speedup is not None


def test_a_network_may_be_its_own_baseline() -> None:
    (row,) = compare([ordinary(baseline="deit3_base_patch16_224")])
    assert row.baseline is None


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


def test_names_are_made_harmless() -> None:
    assert Row(own("a\x1b[2J\nb\u202e"), None).name == "a\ufffd[2J b\ufffd"
    assert Row(ordinary(problem="a\tb\r\n"), None).problem == "a b"


def test_everything_at_once_has_a_row_each() -> None:
    rows = compare(many())
    assert len(rows) == len(many()) == 51
    assert sum(row.speedup is not None for row in rows) == 25
