"""What is measured: networks beside their baselines, the paper's rows, and the goals."""

from support.measurements import in_setting, ordinary

from flopping.cost.protocol import group_by_baseline, paper_networks, plan_records
from flopping.cost.records import Record, Setting
from flopping.lab.bench.goals import GOALS, SETTINGS, Verdict, plan_goals, verdicts
from flopping.models import paper_names
from flopping.models.paper import results

ONE = [in_setting()]


def pairs(names: list[str], baseline: str | None = None) -> list[tuple[str, str | None]]:
    return [(record.model, record.baseline) for record in plan_records(names, ONE, baseline)]


def test_networks_are_compared_with_their_twins_or_the_given_one() -> None:
    x, e = paper_names()["ViT-S"], paper_names()["E(ViT-S)"]
    assert pairs(["E(ViT-S)"]) == pairs(["ViT-S", "e(vit-s)", "E(ViT-S)"]) == [(x, None), (e, x)]
    assert pairs(["resnet18", "E(ViT-S)"], "resnet18") == [("resnet18", None), (e, "resnet18")]
    assert pairs(["net.py:make"], "net.py:other") == [("net.py:other", None), ("net.py:make", "net.py:other")]


def test_rows_of_the_paper_begin_with_the_cheapest() -> None:
    rows = paper_networks()
    assert sorted(rows) == sorted(results())
    assert rows[:2] == ["ResMLP-T12", "E(ResMLP-T12)"]
    assert rows[-4:] == ["ViT-H", "H(ViT-H)", "I(ViT-H)", "E(ViT-H)"]
    grouped = group_by_baseline(plan_records(rows, ONE))
    assert [len(group) for group in grouped].count(4) == 3  # ViT-S has no hybrid in the table
    for first, *others in grouped:
        assert first.baseline is None
        assert {record.baseline for record in others} == {first.model}


def test_goals_are_judged_within_a_run() -> None:
    x, e = paper_names()["ViT-S"], paper_names()["E(ViT-S)"]

    def measured(run: str, setting: Setting = SETTINGS["compiled"]) -> list[Record]:
        return [
            ordinary(model=x, paper="ViT-S", baseline=None, setting=setting, seconds=(1.7, 3.4), run=run),
            ordinary(model=e, paper="E(ViT-S)", baseline=x, setting=setting, seconds=(1.0, 2.0), run=run),
        ]

    assert list(verdicts(measured("a"))) == [Verdict("E(ViT-S)", "compiled", 1.7, 1.6)]
    assert list(verdicts([measured("a")[0], measured("b")[1]])) == []
    assert list(verdicts(measured("a", in_setting(batch=4)))) == []
    found = {(record.paper, record.setting.mode) for record in plan_goals() if record.baseline is not None}
    assert found == {(name, mode) for name, modes in GOALS.items() for mode in modes}
