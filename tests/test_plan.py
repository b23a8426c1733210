"""What is measured: names to networks, their baselines, settings, protocols, goals."""

import pytest
from measurements import ordinary

from flopping.bench.goals import GOALS, SETTINGS, Verdict, goal_cases, verdicts
from flopping.bench.pace import Pace
from flopping.bench.plan import (
    CPU_PROTOCOL,
    PAPER_PROTOCOL,
    Protocol,
    cases,
    check_device,
    check_dtype,
    families,
    protocol_for,
    rows_of_the_paper,
    settings,
)
from flopping.bench.records import Setting
from flopping.models import paper_names
from flopping.paper import results

ONE = [Setting()]


def pairs(names: list[str], baseline: str | None = None) -> list[tuple[str, str | None]]:
    return [(case.model, case.baseline) for case in cases(names, ONE, baseline)]


def test_x_comes_along_once() -> None:
    x, e, h = (paper_names()[name] for name in ("ViT-S", "E(ViT-S)", "H(ViT-S)"))
    assert pairs(["E(ViT-S)", "H(ViT-S)"]) == [(x, None), (e, x), (h, x)]
    assert pairs(["E(ViT-S)", "ViT-S"]) == [(x, None), (e, x)]
    assert pairs(["ViT-S", e, "e(vit-s)"]) == [(x, None), (e, x)]


def test_others_stand_alone_or_beside_what_is_named() -> None:
    assert pairs(["resnet18"]) == [("resnet18", None)]
    assert pairs(["resnet18", "E(ResMLP-S24)"], "resnet26") == [
        ("resnet26", None),
        ("resnet18", "resnet26"),
        ("resmlp_flop_s24_224", "resnet26"),
    ]
    assert pairs(["resnet18"], "resnet18") == [("resnet18", None)]
    assert pairs(["net.py:make"], "net.py:other") == [("net.py:other", None), ("net.py:make", "net.py:other")]


def test_names_of_the_paper_are_kept() -> None:
    assert [case.paper for case in cases(["E(ConvNeXt-S)", "resnet18"], ONE)] == ["ConvNeXt-S", "E(ConvNeXt-S)", None]


def test_unknown_network_gets_the_closest() -> None:
    with pytest.raises(ValueError, match=r"no model is called 'E\(ViT-Z\)'; the closest are E\(ViT-"):
        cases(["E(ViT-Z)"], ONE)
    with pytest.raises(ValueError, match="no model is called 'resnet17'; the closest are resnet1"):
        cases(["E(ViT-S)"], ONE, "resnet17")


def test_settings_are_combined() -> None:
    made = settings(["eager", "compiled"], ["float32", "bfloat16"], "cpu", 4, 2, training=True)
    assert len(made) == len(set(made)) == 4
    assert {(s.task, s.device, s.batch, s.threads) for s in made} == {("training", "cpu", 4, 2)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["fast"], ["float32"], "cpu", 1, 1, False), "'fast'; possible are eager, compiled, compiled-frozen"),
        ((["eager"], ["int8"], "cpu", 1, 1, False), "'int8'; possible are float32, bfloat16, float16"),
        ((["eager"], ["float32"], "tpu", 1, 1, False), "'tpu' here; possible are cpu"),
        ((["compiled-frozen"], ["float32"], "cpu", 1, 1, True), "can't train"),
    ],
)
def test_impossible_settings_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(*arguments)


def test_protocols() -> None:
    assert protocol_for("cuda:1") == PAPER_PROTOCOL == Protocol(batch=64, dtype="float16", warmup=10, repeats=100)
    assert protocol_for("cpu") == CPU_PROTOCOL
    assert check_device("cpu") == "cpu"
    assert check_dtype("float16") == "float16"
    with pytest.raises(ValueError, match="repeats=0"):
        Protocol(batch=1, dtype="float32", warmup=0, repeats=0)


def test_rows_of_the_paper_begin_with_the_cheapest() -> None:
    rows = rows_of_the_paper()
    assert sorted(rows) == sorted(results())
    assert rows[:2] == ["ResMLP-T12", "E(ResMLP-T12)"]
    assert rows[-4:] == ["ViT-H", "H(ViT-H)", "I(ViT-H)", "E(ViT-H)"]
    grouped = families(cases(rows, ONE))
    assert [len(group) for group in grouped].count(4) == 3  # ViT-S has no hybrid in the table
    for first, *others in grouped:
        assert first.baseline is None
        assert {case.baseline for case in others} == {first.model}


def test_pace_is_learned() -> None:
    pace = Pace()
    assert pace.run(Pace.RATE) == 1.0
    assert pace.start == Pace.START
    pace.learn_run(flops=1e9, seconds=1.0)
    pace.learn_run(flops=3e9, seconds=1.0)
    pace.learn_start(10.0)
    pace.learn_start(20.0)
    assert pace.run(2e9) == 1.0
    assert pace.start == 15.0


def test_goals_are_judged_within_a_run() -> None:
    x, e = paper_names()["ViT-S"], paper_names()["E(ViT-S)"]
    setting = SETTINGS["compiled"]

    def measured(run: str, other: Setting = setting) -> list:
        return [
            ordinary(model=x, paper="ViT-S", baseline=None, setting=other, seconds=(1.7, 3.4), run=run),
            ordinary(model=e, paper="E(ViT-S)", baseline=x, setting=other, seconds=(1.0, 2.0), run=run),
        ]

    assert list(verdicts(measured("a"))) == [Verdict("E(ViT-S)", "compiled", 1.6, 1.7)]
    assert next(verdicts(measured("a"))).met
    assert not Verdict("E(ViT-S)", "compiled", 1.8, 1.7).met
    assert list(verdicts([measured("a")[0], measured("b")[1]])) == []
    assert list(verdicts(measured("a", Setting("compiled", batch=4, threads=2)))) == []


def test_goal_cases_cover_all_goals() -> None:
    found = {(case.paper, case.setting.mode) for case in goal_cases() if case.baseline is not None}
    assert found == {(name, mode) for name, modes in GOALS.items() for mode in modes}
