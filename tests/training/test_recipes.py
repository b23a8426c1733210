"""The recipes of the package: the paper's table cell by cell, their headers, and the command that shows them."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import timm
from torch import nn
from typer.testing import CliRunner

from flopping import Layout
from flopping.cost.count import count
from flopping.cost.overview import stored_figures
from flopping.groups.grid_groups import grid_groups
from flopping.models import registered_name
from flopping.models.blocks import find_blocks
from flopping.models.paper import ordinary_name, results
from flopping.nn import DropPath
from flopping.training.networks import build, set_drop_path
from flopping.training.recipe import GroupName, Recipe, documentation, load, names, read, text_of
from flopping_cli import app

ROOT = Path(__file__).parents[2]
COPY = ROOT / "tests" / "support" / "recipes.csv"
TABLE = ROOT.parent / "shared" / "paper" / "recipes.csv"
IMAGES = 1_281_167
"""In ImageNet's training set."""

runner = CliRunner()

COLUMNS = {
    "ViT-S": ("deit3_small", "ViT-S"),
    "ViT-B": ("deit3_base", "ViT-B"),
    "ViT-L": ("deit3_large", "ViT-L"),
    "ViT-H": ("deit3_huge", "ViT-H"),
    "ResMLP-T": ("resmlp_tiny", "ResMLP-T12"),
    "ResMLP-S": ("resmlp_small", "ResMLP-S24"),
    "ResMLP-B": ("resmlp_base", "ResMLP-B24"),
    "ResMLP-L": ("resmlp_large", "ResMLP-L24"),
    "ConvNeXt-S": ("convnext_iso_small", "ConvNeXt-S (iso.)"),
    "ConvNeXt-B": ("convnext_iso_base", "ConvNeXt-B (iso.)"),
    "ConvNeXt-L": ("convnext_iso_large", "ConvNeXt-L (iso.)"),
}
"""The columns of the paper's table: our recipe, and the ordinary network as the paper's table of networks calls it."""

PAPER = dict(COLUMNS.values())

# What a cell would hold for a recipe of ours; an unknown value of a field has no cell, and fails.
CELLS: dict[str, Callable[[Recipe], object]] = {
    "batch size": lambda r: r.batch_size,
    "optimizer": lambda r: {"lamb": "LAMB", "adamw": "AdamW"}[r.optimizer],
    "learning rate": lambda r: r.lr,
    "learning rate decay": lambda r: r.lr_schedule,
    "weight decay": lambda r: r.weight_decay,
    "training epochs": lambda r: r.epochs,
    "warmup epochs": lambda r: r.warmup_epochs,
    "label smoothing": lambda r: r.label_smoothing or None,
    "dropout": lambda r: r.dropout or None,
    "stochastic depth": lambda r: r.drop_path,
    "repeated augmentation": lambda r: {3: True, 1: False}[r.repeats],
    "gradient clipping": lambda r: r.clip_grad,
    "mixed precision": lambda r: {"float16": True, "float32": False}[r.precision],
    "RandAugment": lambda r: {"rand-m9-mstd0.5-inc1": True, "3a": False}[r.augment or ""],
    "3-Augment": lambda r: {"rand-m9-mstd0.5-inc1": False, "3a": True}[r.augment or ""],
    "mixup alpha": lambda r: r.mixup,
    "cutmix alpha": lambda r: r.cutmix,
    "random erasing probability": lambda r: r.erase or None,
    "colour jitter": lambda r: r.color_jitter,
    "test crop ratio": lambda r: r.test_crop,
    "loss": lambda r: r.loss.upper(),
    "image size": lambda r: r.img_size,
}


def value(cell: str) -> object:
    words = {"none": None, "yes": True, "no": False}
    if cell in words:
        return words[cell]
    try:
        return float(cell)
    except ValueError:
        return cell


def table() -> dict[str, dict[str, object]]:
    """Values by setting, then by column."""
    with COPY.open(encoding="utf-8") as file:
        return {row.pop("setting"): {name: value(cell) for name, cell in row.items()} for row in csv.DictReader(file)}


def test_the_copy_is_the_papers_table() -> None:
    if not TABLE.is_file():
        pytest.skip(f"the paper's table is not in {TABLE.parent}")
    assert COPY.read_bytes() == TABLE.read_bytes()


def test_no_cell_is_left_unread() -> None:
    rows = table()
    assert list(rows) == list(CELLS)
    assert all(list(row) == list(COLUMNS) for row in rows.values())
    assert {name for name, _ in COLUMNS.values()} <= set(names())


@pytest.mark.parametrize("column", COLUMNS)
def test_every_cell_of_the_papers_table(column: str) -> None:
    recipe = load(COLUMNS[column][0])
    wrong = {
        setting: (row[column], ours(recipe))
        for (setting, row), ours in zip(table().items(), CELLS.values(), strict=True)
        if (type(row[column]) is bool, row[column]) != (type(ours(recipe)) is bool, ours(recipe))
    }
    assert not wrong


@pytest.mark.parametrize("name", PAPER)
def test_what_the_table_leaves_out(name: str) -> None:
    r = load(name)
    convnext = r.family == "ConvNeXt"
    assert (r.warmup_lr, r.min_lr) == ((0.0, 1e-6) if convnext else (1e-6, 1e-5))
    assert (r.drop_path_rises, r.ema) == ((True, 0.9999) if convnext else (False, None))
    assert (r.interpolation, r.crop_scale, r.flip, r.in_chans, r.mean, r.std) == ("bicubic", 0.08, 0.5, 3, None, None)
    assert (r.model_args, r.weight_init) == ({}, "reference")
    written = set(re.findall(r"^(\w+):", text_of(name), re.MULTILINE))
    assert written == {field for field, _, _ in documentation()} - {
        *("model_args", "whiten_stem", "layer_scale", "layer_decay", "in_chans", "mean", "std", "translate"),
        *("symmetry", "seed"),
    }


@pytest.mark.parametrize("name", names())
def test_headers(name: str) -> None:
    """Source, command and cost are there; the command runs this recipe with a network that exists and fits."""
    recipe = load(name)
    assert read(recipe.to_yaml(), "again") == recipe
    about = recipe.about
    assert about.source
    assert about.cost
    assert text_of(name).startswith("# ")
    words = shlex.split(about.command)
    start = words.index("flopping")
    assert words[start + 1 : start + 3] == ["train", name]
    assert {"--data", "-o"} <= set(words)
    model = words[words.index("--model") + 1] if "--model" in words else recipe.model
    registered_name(model)


@pytest.mark.parametrize(("name", "ordinary"), PAPER.items())
def test_expected_accuracies_are_the_papers(name: str, ordinary: str) -> None:
    recipe = load(name)
    reported = {r.name: r.top1 for r in results().values() if ordinary_name(r.name) == ordinary and r.top1 is not None}
    assert recipe.about.expected == reported
    assert recipe.model == f"E({ordinary})"


@pytest.mark.parametrize(("name", "ordinary"), PAPER.items())
def test_costs(name: str, ordinary: str) -> None:
    """Three forward passes per image and epoch, at the paper's FLOPs and at its throughput."""
    recipe = load(name)
    seen = 3 * IMAGES * recipe.epochs
    costs = []
    for paper in (results()[ordinary], results()[f"E({ordinary})"]):
        flops = f"{seen * paper.flops_g * 1e9:.2e}".replace("e+", "e")
        costs.append(f"{paper.name}: {flops} FLOPs, {seen / paper.throughput / 86_400:.1f} A100-days")
    assert recipe.about.cost.startswith("; ".join(costs) + ". ")
    assert f"on {IMAGES} images in each of {recipe.epochs} epochs" in recipe.about.cost
    assert ("float32 takes longer" in recipe.about.cost) == (recipe.precision == "float32")


def test_costs_of_residual_networks() -> None:
    """Three forward passes per image and epoch, counted at the recipe's size, which the ordinary network takes too."""
    recipe = load("resnet_a2")
    costs = []
    for name, registered in (("ResNet-50", "resnet50"), ("E(ResNet-50)", "resnet_flop_50")):
        forward = count(partial(timm.create_model, registered), (3, recipe.img_size, recipe.img_size)).flops
        costs.append(f"{name}: {3 * IMAGES * recipe.epochs * forward:.2e} FLOPs".replace("e+", "e"))
    assert forward == stored_figures()["resnet_flop_50"]["flops"]
    assert recipe.about.cost.startswith("; ".join(costs) + ". ")
    assert f"on {IMAGES} images of {recipe.img_size} pixels in each of {recipe.epochs} epochs" in recipe.about.cost


@pytest.mark.parametrize("name", ["resnet18", "resnet_flop_18"])
def test_stochastic_depth_of_residual_networks(name: str) -> None:
    """The recipe's in timm's networks too, which start without any."""
    recipe = load("resnet_a2")
    for most in (0.05, 0.0):
        blocks = find_blocks(build(recipe.override([f"drop_path={most}"]), name, 10))
        rates = [getattr(block.drop_path, "drop_prob", 0.0) for block in blocks]
        assert rates == pytest.approx([most * number / 7 for number in range(8)])


def test_stochastic_depth_of_a_block_of_ones_own() -> None:
    """Our layer is found by its class, whatever the block calls it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stochastic_depth = DropPath(Layout.regular("flop", 4), 0.5)

    blocks = [Block(), Block(), Block()]
    set_drop_path(blocks, 0.2, rises=True)
    assert [block.stochastic_depth.drop_prob for block in blocks] == pytest.approx([0.0, 0.1, 0.2])


def test_the_page_lists_the_recipes_and_the_fields() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {f'`{default}`' if default else ''} | {text} |" for name, default, text in documentation()]
    assert "\n".join(["| field | default | meaning |", "|---|---|---|", *rows]) in page
    for name, ordinary in PAPER.items():
        twins = [f"{letter}({ordinary})" for letter in "EHI" if f"{letter}({ordinary})" in results()]
        expected = [load(name).about.expected.get(each) for each in (ordinary, *twins)]
        assert f"| `{name}` | {ordinary} | {', '.join(str(each or '-') for each in expected)} |" in page


def run(*arguments: str) -> str:
    result = runner.invoke(app, ["recipes", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def plain(recipe: Recipe) -> dict[str, object]:
    """As JSON has it."""
    found: dict[str, object] = json.loads(json.dumps(asdict(recipe)))
    return found


def test_command_lists_the_recipes() -> None:
    accuracies = "X 83.1, E 82.2, H 82.9, I 82.5"
    wide = ["E(ViT-B)", "2048", "lamb", "400", "0.003", accuracies]
    for width, options, expected in (80, (), ["400", "0.003", accuracies]), (120, ("--wide",), wide):
        result = runner.invoke(app, ["recipes", *options], env={"COLUMNS": str(width)})
        lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines()]
        found = {line[0]: line[1:] for line in lines if line[0] in names()}
        assert list(found) == names()
        assert found["deit3_base"] == expected
    rows = [json.loads(line) for line in run("--json").splitlines()]
    assert rows == [{"recipe": name, **plain(load(name))} for name in names()]


def test_command_shows_one_as_it_is_written(tmp_path: Path) -> None:
    text = run("deit3_huge")
    assert text == text_of("deit3_huge")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text, encoding="utf-8")
    assert json.loads(run(str(mine), "--json")) == {"recipe": str(mine), **plain(load("deit3_huge"))}


def test_command_shows_one_with_fields_changed() -> None:
    changes = ["lr=1e-3", "mean=[0.5]", "model_args.embed_dim=64"]
    recipe = read(run("resmlp_tiny", *changes), "shown")
    assert recipe == load("resmlp_tiny").override(changes)
    assert (recipe.lr, recipe.mean, recipe.model_args) == (1e-3, (0.5,), {"embed_dim": 64})


def test_command_shows_the_fields() -> None:
    text = run("--fields")
    for name, default, meaning in documentation():
        assert re.search(rf"│ {name} +│ {re.escape(default)} +│ {re.escape(meaning)} +│", text), name
    rows = [json.loads(line) for line in run("--fields", "--json").splitlines()]
    assert [tuple(row.values()) for row in rows] == documentation()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["deit3_bse"], "'deit3_bse'; the closest are deit3_base"),
        (["zzz"], "'zzz'; there are cifar10_convnext, "),
        (["missing.yaml"], "'missing.yaml'"),
        (["deit3_base", "learning_rate=1"], "'learning_rate'; did you mean 'lr'?"),
        (["deit3_base", "--fields"], "'deit3_base'"),
    ],
)
def test_command_refuses(arguments: list[str], value: str) -> None:
    result = runner.invoke(app, ["recipes", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert value in result.output


def test_recipes_know_every_group_of_the_pixel_grid() -> None:
    assert {"trivial", *get_args(GroupName)} == set(grid_groups())
