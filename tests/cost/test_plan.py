"""What is measured: names to networks, their baselines, settings, protocols, goals."""

import pytest
import torch
from support.measurements import ordinary

from flopping.cost.plan import (
    Protocol,
    cases,
    check_device,
    families,
    protocol_for,
    rows_of_the_paper,
    settings,
)
from flopping.cost.records import Setting
from flopping.errors import UsageError
from flopping.lab.bench.goals import GOALS, SETTINGS, Verdict, goal_cases, verdicts
from flopping.models import paper_names
from flopping.models.paper import results

ONE = [Setting()]


def pairs(names: list[str], baseline: str | None = None) -> list[tuple[str, str | None]]:
    return [(case.model, case.baseline) for case in cases(names, ONE, baseline)]


def test_x_comes_along_once() -> None:
    x, e, h = (paper_names()[name] for name in ("ViT-S", "E(ViT-S)", "H(ViT-S)"))
    assert pairs(["E(ViT-S)", "H(ViT-S)"]) == [(x, None), (e, x), (h, x)]
    assert pairs(["ViT-S", e, "e(vit-s)"]) == [(x, None), (e, x)]
    assert [case.paper for case in cases(["E(ConvNeXt-S)", "resnet18"], ONE)] == ["ConvNeXt-S", "E(ConvNeXt-S)", None]


def test_others_stand_alone_or_beside_what_is_named() -> None:
    assert pairs(["resnet18"]) == [("resnet18", None)]
    assert pairs(["resnet18", "E(ResMLP-S24)"], "resnet26") == [
        ("resnet26", None),
        ("resnet18", "resnet26"),
        ("resmlp_flop_s24_224", "resnet26"),
    ]
    assert pairs(["resnet18"], "resnet18") == [("resnet18", None)]
    assert pairs(["net.py:make"], "net.py:other") == [("net.py:other", None), ("net.py:make", "net.py:other")]


def test_settings_are_combined() -> None:
    made = settings(["eager", "compiled"], ["float32", "bfloat16"], "cpu", 4, 2, training=True)
    assert len(made) == len(set(made)) == 4
    assert {(s.task, s.device, s.batch, s.threads) for s in made} == {("training", "cpu", 4, 2)}


@pytest.mark.parametrize(
    ("modes", "dtypes", "training", "message"),
    [
        (["fast"], ["float32"], False, "'fast'; possible are eager, compiled, compiled-frozen"),
        (["eager"], ["int8"], False, "'int8'; possible are float32, bfloat16, float16"),
        (["compiled-frozen"], ["float32"], True, "compiled-frozen"),
    ],
)
def test_impossible_settings_are_refused(modes: list[str], dtypes: list[str], training: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(modes, dtypes, "cpu", 1, 1, training)


def test_protocols() -> None:
    assert protocol_for("cuda:1") == Protocol(batch=64, dtype="float16", warmup=10, repeats=100)
    assert protocol_for("cpu") == Protocol(batch=8, dtype="float32", warmup=3, repeats=30, seconds=50.0)
    assert check_device("cpu") == "cpu"
    assert check_device(None) == ("cuda" if torch.cuda.is_available() else "cpu")


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
    found = {(case.paper, case.setting.mode) for case in goal_cases() if case.baseline is not None}
    assert found == {(name, mode) for name, modes in GOALS.items() for mode in modes}
