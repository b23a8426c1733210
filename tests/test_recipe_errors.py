"""What a recipe refuses, and with which words; YAML read strictly; networks and the families they belong to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
from hypothesis import given
from hypothesis import strategies as st
from timm.data import create_transform

from flopping.models import ZOO, ConvNeXt, ResMlp, VisionTransformer, paper_names
from flopping.training.families import family_of
from flopping.training.plain_yaml import dump, parse
from flopping.training.recipe import SYNONYMS, About, Recipe, documentation, load, names, read

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
    "": "a recipe is a table of fields, and there is nothing in it",
    "# nothing\n": "a recipe is a table of fields, and there is nothing in it",
    "- a\n- b\n": "a recipe is a table of fields, got ['a', 'b']",
    "lamb": "a recipe is a table of fields, got 'lamb'",
    "lr: 1": "a recipe needs family, epochs, batch_size, optimizer",
    "lr: [1": "line 1: expected ',' or ']', but got the end",
    "about:\n\tsource: me": "line 2: found character '\\t' that cannot start any token; indent by spaces",
    SMALL + "lr: 1e-3\n": "line 7: lr stands there twice, first in line 6",
    SMALL + "model_args: {depth: 1, depth: 2}": "line 7: depth stands there twice, first in line 7",
    "lr: &rate 1\nmin_lr: *rate\n": "line 2: *rate is refused: write the value out",
    "lr: 1\n---\nlr: 2\n": "line 2: expected a single document in the stream, but found another document",
    "lr: !!python/name:os.system": "line 1: could not determine a constructor for the tag",
    SMALL + "warmup_epoch: 1": "a recipe has no field 'warmup_epoch'; did you mean 'warmup_epochs'?",
    SMALL + "Batch-Size: 1": "a recipe has no field 'Batch-Size'; did you mean 'batch_size'?",
    SMALL + "smoothing: 0.1": "a recipe has no field 'smoothing'; did you mean 'label_smoothing'?",
    SMALL + "7: 0.1": "a recipe has no field 7; there are about, family, model,",
    SMALL + "about: me": "about is a table of fields, got 'me'",
    SMALL + "about: {sorce: me}": "about has no field 'sorce'; did you mean 'source'?",
    SMALL + "about: {expected: {ViT-S: high}}": "expected is a table of numbers of at least 0 and at most 100, got",
    SMALL + "about: {expected: {ViT-S: 804}}": "expected is a table of numbers of at least 0 and at most 100, got",
    SMALL + "drop_path_rises: yes": "drop_path_rises is true or false, got 'yes'",
    SMALL + "model_args: {width: .inf}": "model_args is a table of plain values, got {'width': inf}",
    SMALL + "model_args: {1: 2}": "model_args is a table of plain values, got {1: 2}",
}


@pytest.mark.parametrize("text", FILES)
def test_files_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"mine.yaml: {FILES[text]}")):
        read(text, "mine.yaml")


CHANGES = {
    "lr": "a field is changed by KEY=VALUE, as lr=1e-3 or clip_grad=null, got 'lr'",
    "clip_grad=": "a field is changed by KEY=VALUE, as lr=1e-3 or clip_grad=null, got 'clip_grad='",
    "lrr=1": "a recipe has no field 'lrr'; did you mean 'lr'?",
    "lr.max=1": "a recipe has no field 'lr.max'; ",
    "lr=1 lr=2": "lr is given twice",
    "about={}": "the header of a recipe (about) can't be changed on the command line, got 'about={}'",
    "about.cost=1": "the header of a recipe (about) can't be changed on the command line, got 'about.cost=1'",
    "mean=[0.5": "the value of 'mean=[0.5' can't be read: line 1: expected ',' or ']', but got the end",
    # types
    "lr=fast": "lr is a number above 0, got 'fast'",
    "lr=nan": "lr is a number above 0, got 'nan'",
    "lr=.nan": "lr is a number above 0, got nan",
    "lr=.inf": "lr is a number above 0, got inf",
    "mean=[.nan]": "mean is a list of numbers, or null, got [nan]",
    "lr=true": "lr is a number above 0, got True",
    "lr='1'": "lr is a number above 0, got '1'",
    "lr=null": "lr is a number above 0, got None",
    f"lr=1{'0' * 400}": "lr is a number above 0, got 1000",
    "epochs=1.5": "epochs is a whole number of at least 1, got 1.5",
    "epochs=true": "epochs is a whole number of at least 1, got True",
    "drop_path_rises=1": "drop_path_rises is true or false, got 1",
    "augment=3": "augment is text, or null, got 3",
    "mean=0.5": "mean is a list of numbers, or null, got 0.5",
    "mean=[]": "mean is a list of numbers, or null, got []",
    "mean=[a]": "mean is a list of numbers, or null, got ['a']",
    "model=[a]": "model is text, got ['a']",
    "optimizer=adam": "optimizer is lamb, adamw or sgd, got 'adam'",
    "lr_schedule=linear": "lr_schedule is cosine, got 'linear'",
    "loss=[ce]": "loss is ce or bce, got ['ce']",
    # ranges
    "lr=0": "lr is a number above 0, got 0",
    "epochs=0": "epochs is a whole number of at least 1, got 0",
    "drop_path=1": "drop_path is a number of at least 0 and below 1, got 1",
    "dropout=-0.1": "dropout is a number of at least 0 and below 1, got -0.1",
    "label_smoothing=1": "label_smoothing is a number of at least 0 and below 1, got 1",
    "flip=1.1": "flip is a number of at least 0 and at most 1, got 1.1",
    "erase=-1": "erase is a number of at least 0 and at most 1, got -1",
    "crop_scale=0": "crop_scale is a number above 0 and at most 1, got 0",
    "test_crop=1.5": "test_crop is a number above 0 and at most 1, got 1.5",
    "weight_decay=-1": "weight_decay is a number of at least 0, got -1",
    "clip_grad=0": "clip_grad is a number above 0, or null, got 0",
    "ema=1": "ema is a number above 0 and below 1, or null, got 1",
    "color_jitter=-1": "color_jitter is a number of at least 0, or null, got -1",
    "std=[0.5,0,0.5]": "std is a list of numbers above 0, or null, got [0.5, 0, 0.5]",
    "seed=4294967296": "seed is a whole number of at least 0 and below 4294967296, got 4294967296",
    # the network
    "model_args=64": "model_args is a table of plain values, got 64",
    "model_args=64 model_args.depth=2": "model_args is a table of plain values, got 64",
    "model_args.a.b=1": "model_args are named as in Python, got 'a.b'",
    "model_args.=1": "model_args are named as in Python, got ''",
    "model_args.img_size=64": "img_size is decided by the field img_size, and can't be in model_args too",
    "model_args.drop_path_rate=0": "drop_path_rate is decided by the field drop_path, and can't be in model_args too",
    "model_args.num_classes=5": "num_classes is decided by the images, and can't be in model_args",
    "model=E(ResMLP-S24)": "E(ResMLP-S24) is a ResMLP and the recipe is for ViT; for ResMLP there are cifar10_resmlp,",
    "family=ConvNeXt model=ViT-S": "ViT-S is a ViT and the recipe is for ConvNeXt; for ViT there are cifar10_vit,",
    # combinations
    "epochs=5 warmup_epochs=5": "warm-up takes 5 of 5 epochs, and nothing is left after it: set warmup_epochs too",
    "warmup_epochs=1 warmup_lr=1": "warm-up rises from warmup_lr=1 to lr=0.003, which is lower",
    "min_lr=1": "the learning rate falls from lr=0.003 to min_lr=1, which is higher",
    "loss=bce label_smoothing=0.1": "loss=bce takes a class that has any share in a target for present, and",
    "batch_size=2 repeats=3": "a batch of batch_size=2 can't hold an image repeats=3 times",
    "batch_size=7 mixup=0.8": "mixup and CutMix mix pairs of images: batch_size is even, got 7",
    "batch_size=7 cutmix=1": "mixup and CutMix mix pairs of images: batch_size is even, got 7",
    "mean=[1,2]": "mean has one value, or one for each of the in_chans=3 channels, got [1.0, 2.0]",
    "in_chans=1 std=[1,1,1]": "std has one value, or one for each of the in_chans=1 channels, got [1.0, 1.0, 1.0]",
    "augment=randaugment": "augment is a policy of timm's, as 3a or rand-m9-mstd0.5-inc1, or null for none, got",
}


@pytest.mark.parametrize("changes", CHANGES)
def test_changes_that_are_refused(changes: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(CHANGES[changes])):
        small().override(changes.split())


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (["lr=1e-3"], "lr", 0.001),
        (["lr=1"], "lr", 1.0),
        (["augment=null"], "augment", None),
        (["clip_grad=~"], "clip_grad", None),
        (["mean=[0.5]"], "mean", (0.5,)),
        (["in_chans=1", "std=[1]"], "std", (1.0,)),
        (["drop_path_rises=true"], "drop_path_rises", True),
        (["model=E(ViT-B)"], "model", "E(ViT-B)"),
        (["model=local-dir:resmlp/mine"], "model", "local-dir:resmlp/mine"),
        (["family=ResMLP", "model=resmlp_24_224"], "family", "ResMLP"),
        (["model_args.embed_dim=64"], "model_args", {"embed_dim": 64}),
        (["model_args={embed_dim: 64}"], "model_args", {"embed_dim": 64}),
        (["model_args.init_values=1e-4"], "model_args", {"init_values": 1e-4}),
        (["model_args.handoffs={6: hybrid}"], "model_args", {"handoffs": {6: "hybrid"}}),
        (["model_args.embed_dim=64", "model_args={depth: 2}"], "model_args", {"depth": 2, "embed_dim": 64}),
        (["model_args={embed_dim: 1}", "model_args.embed_dim=64"], "model_args", {"embed_dim": 64}),
        ([], "lr", 0.003),
    ],
)
def test_changes_that_are_taken(changes: list[str], field: str, value: object) -> None:
    changed = load("deit3_base").override(changes)
    found = getattr(changed, field)
    assert found == value
    assert type(found) is type(value)
    assert read(changed.to_yaml(), "again") == changed


def test_one_argument_of_a_network_leaves_the_others() -> None:
    recipe = small(model_args={"embed_dim": 64, "depths": (2, 2)})
    changed = recipe.override(["model_args.embed_dim=32"])
    assert changed.model_args == {"embed_dim": 32, "depths": [2, 2]}
    assert recipe.model_args == {"embed_dim": 64, "depths": [2, 2]}


def test_recipes_made_in_python_are_checked_too() -> None:
    with pytest.raises(ValueError, match="epochs is a whole number of at least 1, got '3'"):
        small(epochs="3")
    with pytest.raises(ValueError, match="about is a table of fields, got None"):
        small(about=None)
    with pytest.raises(ValueError, match="model_args is a table of plain values"):
        small(model_args={"layer": object})
    assert type(small(lr=1).lr) is float


def test_every_synonym_leads_to_a_field() -> None:
    fields = {name for name, _, _ in documentation()}
    assert set(SYNONYMS.values()) <= fields
    assert not set(SYNONYMS) & fields
    for synonym, name in SYNONYMS.items():
        with pytest.raises(ValueError, match=f"a recipe has no field '{synonym}'; did you mean '{name}'"):
            small().override([f"{synonym}=1"])


@pytest.mark.parametrize(
    "policy",
    [
        "3a",
        "v0",
        "v0r-mstd0.5",
        "original",
        "rand",
        "rand-m9-mstd0.5-inc1",
        "rand-n3-p0.5-mmax20-tweights",
        "augmix-m5-w4-d2",
    ],
)
def test_policies_are_timms(policy: str) -> None:
    assert small(augment=policy).augment == policy
    create_transform(32, is_training=True, auto_augment=policy)


@pytest.mark.parametrize(
    "policy", ["", "4a", "3A", "rand-", "rand-foo", "rand-q3", "rand-tfoo", "rand-m", "v1", "3a,rand"]
)
def test_policies_that_timm_has_not(policy: str) -> None:
    """Some of these timm takes, and ignores."""
    with pytest.raises(ValueError, match="augment is a policy of timm's"):
        small(augment=policy)


def test_recipes_in_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    mine.write_text("\ufeff" + SMALL, encoding="utf-8")
    assert load(mine) == load(str(mine)) == small()
    mine.write_bytes(b"family: \xff")
    with pytest.raises(ValueError, match=r"mine\.yml: a recipe is text in UTF-8, got"):
        load(mine)
    with pytest.raises(ValueError, match=r"no recipe '.*other\.yaml': there is no such file"):
        load(tmp_path / "other.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ValueError, match=r"no recipe '.*folder\.yaml': there is no such file"):
        load(tmp_path / "folder.yaml")


@pytest.mark.parametrize("name", ["deit3_bas", "DeiT3_base"])
def test_an_unknown_recipe_gets_the_closest(name: str) -> None:
    with pytest.raises(ValueError, match=rf"no recipe is called '{name}'; the closest are deit3_base, .*\.yaml"):
        load(name)


def test_a_name_like_no_other_gets_them_all() -> None:
    with pytest.raises(ValueError, match=f"the closest are {', '.join(names())}. A file of yours ends in"):
        load("?")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(plain)
def test_what_is_written_is_read_again(value: Any) -> None:
    again = parse(dump(value))
    assert again == value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-3", 0.003),
        (".5", 0.5),
        ("-1.", -1.0),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("", None),
        ("~", None),
        ("-.inf", float("-inf")),
        ("{<<: 3}", {"<<": 3}),
    ],
)
def test_plain_words(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)
    assert parse(dump({"text": text})) == {"text": text}


def test_families_of_our_networks() -> None:
    families = {VisionTransformer: "ViT", ResMlp: "ResMLP", ConvNeXt: "ConvNeXt"}
    assert {name: family_of(name) for name in ZOO} == {name: families[entry.model] for name, entry in ZOO.items()}
    papers = {paper: family_of(name) for paper, name in paper_names().items()}
    assert None not in papers.values()
    for paper, family in papers.items():
        assert {family_of(spelling) for spelling in (paper, paper.lower(), paper.replace(".", ""))} == {family}


def test_families_of_timms_networks() -> None:
    """By name and by module: nothing of another architecture is taken for one of ours."""
    modules = {"ViT": ("vision_transformer", "deit", "eva"), "ResMLP": ("mlp_mixer",), "ConvNeXt": ("convnext",)}
    for name in timm.list_models():
        family = family_of(name)
        module = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
        assert family is None or module.startswith(modules[family]), name
    for family, module in (("ViT", "deit"), ("ConvNeXt", "convnext")):
        assert {family_of(name) for name in timm.list_models(module=module)} == {family}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("hf-hub:timm/vit_small_patch16_224.augreg_in1k", "ViT"),
        ("hf-hub:me/my-network", None),
        ("vit_small_patch16_224.augreg_in1k", "ViT"),
        ("vitamin_small_224", None),
        ("local-dir:resmlp_24_224", None),
        ("vit_mine.py:make", None),
        ("resnet50", None),
        ("", None),
    ],
)
def test_names_that_tell_a_family(name: str, family: str | None) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    "name", ["E(ViT-B)", "h(vit-h)", "deit3_flop_test_patch16_64", "vit_tiny_patch16_224", "resnet50"]
)
def test_networks_that_a_recipe_takes(name: str) -> None:
    small().require_family(name)


@pytest.mark.parametrize(
    ("name", "family"),
    [("E(ConvNeXt-S (iso.))", "ConvNeXt"), ("convnext_tiny", "ConvNeXt"), ("resmlp_flop_t12_224", "ResMLP")],
)
def test_networks_of_other_families(name: str, family: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"{name} is a {family} and the recipe is for ViT; for {family}")
    ) as e:
        small().require_family(name)
    assert str(e.value).rpartition("there are ")[2].split(", ") == [n for n in names() if load(n).family == family]
