"""What is measured: networks beside their baselines, the paper's rows, and the goals."""

from typing import Any

import pytest
from support.measurements import in_setting, ordinary

from flopping.cost.protocol import group_by_baseline, paper_networks, plan_records
from flopping.errors import UsageError
from flopping.lab.bench.goals import SPEEDUPS, GoalResult, goal_results, goals
from flopping.models import paper_names
from flopping.models.paper import ordinary_name, results

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


def test_our_own_ordinary_network_beside_that_of_timm() -> None:
    planned = [(record.model, record.baseline) for record in plan_records(["E(ViT-S)"], ONE, own=True)]
    x = paper_names()["ViT-S"]
    assert planned == [(x, None), ("E(ViT-S):trivial", x), (paper_names()["E(ViT-S)"], x)]
    models = [record.model for record in plan_records(["E(ResMLP-B24)"], ONE, own=True)]  # timm has none
    assert models == ["resmlp_b24_224", "E(ResMLP-B24):trivial", "resmlp_flop_b24_224"]
    for baseline in ("resnet18.a1_in1k", "E(ViT-S)"):
        with pytest.raises(UsageError, match="there is no E"):
            plan_records(["H(ViT-S)"], ONE, baseline=baseline, own=True)


def test_goals_are_judged_within_a_run() -> None:
    goal = next(goal for goal in goals() if (goal.name, goal.setting.mode) == ("E(ViT-S)", "blocks"))
    x, e = (record.model for record in goal.plan())

    def judged(*runs: str, seconds: float = 1.0, **changes: Any) -> list[GoalResult]:
        records = [
            ordinary(model=x, paper="ViT-S", baseline=None, setting=goal.setting, seconds=(1.8, 3.6), run=runs[0]),
            ordinary(
                **{"model": e, "baseline": x, "setting": goal.setting, "run": runs[-1], **changes},
                seconds=(seconds, 2 * seconds),
            ),
        ]
        return [verdict for verdict in goal_results(records) if verdict.met is not None]

    speed, compiling = judged("a")
    assert speed[1:] == ("1.80 [1.80, 1.80]", ">= 1.67", True)
    assert compiling[1:] == ("12.5 s", "<= 15 s", True)
    assert [verdict.met for verdict in judged("a", seconds=1.2, compile_seconds=15.1)] == [False, False]
    assert judged("a", "b") == judged("a", problem="interrupted after 2 rounds") == []
    assert judged("a", setting=in_setting(batch=4)) == []


def test_every_goal_has_a_plan_of_two() -> None:
    assert {(goal.setting.task, goal.setting.mode) for goal in goals()} == set(SPEEDUPS)
    for goal in goals():
        assert [record.name for record in goal.plan()] == [ordinary_name(goal.name), goal.name]
    assert all(verdict.met is None for verdict in goal_results([]))
