"""What a recipe refuses; YAML that is checked strictly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data import create_transform

from flopping.errors import UsageError
from flopping.files import LARGEST_TEXT
from flopping.training.recipe import SYNONYMS, About, Recipe, documentation, load, read
from flopping.training.schema import MAX_CHARACTERS, format_yaml, parse_yaml

SMALL = """
family: ViT
epochs: 10
batch_size: 64
optimizer: adamw
lr: 3e-3
"""


def small(**changes: Any) -> Recipe:
    return replace(read(SMALL, "small.yaml"), **changes)


def test_a_recipe_needs_little() -> None:
    recipe = read(SMALL, "small.yaml")
    assert recipe == Recipe(family="ViT", epochs=10, batch_size=64, optimizer="adamw", lr=0.003)
    assert (recipe.about, recipe.model, recipe.model_args) == (About(), "", {})


FILES = {
    "": ["a table of fields", "empty"],
    "- a\n- b\n": ["a table of fields", "['a', 'b']"],
    "lr: 1": ["epochs, batch_size, optimizer"],
    "lr: [1": ["line 1", "','"],
    "about:\n\tsource: me": ["line 2", "'\\t'", "indent by spaces"],
    SMALL + "lr: 1e-3\n": ["line 7", '"lr"'],
    "lr: &rate 1\nmin_lr: *rate\n": ["line 2", "*rate"],
    "lr: 1\n---\nlr: 2\n": ["line 2", "another document"],
    "lr: !!python/name:os.system": ["line 1", "python/name:os.system"],
    "lr: \x00": ["#x0000"],
    "lr: !!bool x": ["tag", "'x'"],
    "[" * 1_000: ["line 1", "20 levels"],
    "lr: 1\n" + "#" * MAX_CHARACTERS: [str(MAX_CHARACTERS)],
    SMALL + "warmup_epoch: 1": ["'warmup_epoch'", "did you mean 'warmup_epochs'?"],
    SMALL + "7: 0.1": ["'7'", "there are about, family, model,"],
    SMALL + "about: me": ["about", "'me'"],
    SMALL + "about: {sorce: me}": ["about has no field 'sorce'"],
    SMALL + "about: {expected: {ViT-S: 804}}": ["about.expected.ViT-S", "804"],
    SMALL + "drop_path_rises: yes": ["drop_path_rises", "'yes'"],
    SMALL + "model_args: {day: 2024-01-01}": ["model_args", "2024, 1, 1"],
}


@pytest.mark.parametrize("text", FILES, ids=lambda text: repr(text[-30:]))
def test_files_that_are_refused(text: str) -> None:
    start = monotonic()
    with pytest.raises(UsageError, match=r"^mine\.yaml: ") as refused:
        read(text, "mine.yaml")
    for part in FILES[text]:
        assert part in str(refused.value)
    assert monotonic() - start < 10


CHANGES = {
    "lr": "KEY=VALUE",
    "lrr=1": "did you mean 'lr'?",
    "lr.max=1": "'lr.max'",
    "lr=1 lr=2": "lr is given twice",
    "model_args.depth=1 model_args.depth=2": "depth is given twice",
    "about.cost=1": "(about)",
    "mean=[0.5": "'mean=[0.5'",
    "lr=fast": "got 'fast'",
    "lr=.nan": "got nan",
    "lr=true": "got True",
    "lr=null": "got None",
    "epochs=1.5": "got 1.5",
    "augment=3": "got 3",
    "mean=[]": "mean",
    "optimizer=adam": "'lamb', 'adamw' or 'sgd', got 'adam'",
    "dropout=-0.1": "got -0.1",
    "flip=1.1": "got 1.1",
    "crop_scale=0": "got 0",
    "translate=224": "got 224",
    "ema=1": "less than 1, got 1",
    "std=[0.5,0,0.5]": "std.1: Input should be greater than 0, got 0",
    "seed=4294967296": "got 4294967296",
    "model_args=64 model_args.depth=2": "model_args is a table of plain values, got 64",
    "model_args.img_size=64": "img_size is decided by img_size",
    "model_args.num_classes=3": "num_classes is decided by the images",
    "model_args.a.b=x": "got 'a.b'",
    "epochs=5 warmup_epochs=5": "epochs=5",
    "warmup_epochs=1 warmup_lr=1": "warmup_lr=1 to lr=0.003",
    "min_lr=1": "lr=0.003 to min_lr=1",
    "loss=bce label_smoothing=0.1": "0.1",
    "batch_size=2 repeats=3": "repeats=3",
    "batch_size=7 mixup=0.8": "batch_size is even, got 7",
    "mean=[1,2]": "in_chans=3), got (1.0, 2.0)",
    "epochs=2147483648": "got 2147483648",
    "test_crop=0.01": "got 0.01",
    "augment=randaugment": "'randaugment'",
    **{f"augment={policy}": f"'{policy}'" for policy in ("3A", "rand-", "rand-tfoo", "rand-m", "rand-p7", "rand-n100")},
}


@pytest.mark.parametrize("changes", CHANGES, ids=lambda text: text[:40])
def test_changes_that_are_refused(changes: str) -> None:
    with pytest.raises(UsageError) as refused:
        small().override([changes] if "{" in changes else changes.split())
    assert CHANGES[changes] in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (["lr=1e-3"], "lr", 0.001),
        (["augment=null"], "augment", None),
        (["mean=[0.5]"], "mean", (0.5,)),
        (["model=local-dir:resmlp/mine"], "model", "local-dir:resmlp/mine"),
        (["model_args.handoffs={6: hybrid}"], "model_args", {"handoffs": {6: "hybrid"}}),
        (["model_args.embed_dim=64", "model_args={depth: 2}"], "model_args", {"depth": 2, "embed_dim": 64}),
        ([], "lr", 0.003),
    ],
)
def test_changes_that_are_taken(changes: list[str], field: str, value: object) -> None:
    changed = load("deit3_base").override(changes)
    found = getattr(changed, field)
    assert found == value
    assert type(found) is type(value)
    assert read(changed.to_yaml(), "again") == changed


@pytest.mark.parametrize("changes", [{"epochs": "3"}, {"about": None}, {"model_args": {"layer": object}}, {"lr": -1}])
def test_recipes_made_in_python_are_checked_too(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        small(**changes)
    assert type(small(lr=1).lr) is float


def test_every_synonym_leads_to_a_field() -> None:
    fields = {name for name, _, _ in documentation()}
    assert set(SYNONYMS.values()) <= fields
    assert not set(SYNONYMS) & fields
    for synonym, name in SYNONYMS.items():
        with pytest.raises(UsageError, match=f"'{synonym}'; did you mean '{name}'"):
            small().override([f"{synonym}=1"])


@pytest.mark.parametrize(
    "policy", ["3a", "v0r-mstd0.5", "original", "rand", "rand-m9-mstd0.5-inc1", "rand-n3-p0.5-mmax20-tweights"]
)
def test_policies_are_timms(policy: str) -> None:
    assert small(augment=policy).augment == policy
    create_transform(32, is_training=True, auto_augment=policy)


def test_recipes_in_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    mine.write_text("\ufeff" + SMALL, encoding="utf-8")
    assert load(mine) == load(str(mine)) == small()
    mine.write_bytes(b"family: \xff")
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(LARGEST_TEXT + 1)
    problems = {"mine.yml": "UTF-8", "other.yaml": "no such file", "folder.yaml": "no such file", "huge.yaml": "bytes"}
    for name, problem in problems.items():
        with pytest.raises(UsageError, match=rf"{name}.*{problem}"):
            load(tmp_path / name)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=15)
@given(plain)
def test_what_is_written_is_read_again(value: Any) -> None:
    again = parse_yaml(format_yaml(value))
    assert again == value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-3", 0.003),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("", None),
        ("-.inf", float("-inf")),
    ],
)
def test_plain_words(text: str, value: object) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)
    assert parse_yaml(format_yaml({"text": text})) == {"text": text}
