"""`flopping count`: the table of layers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from typer.testing import CliRunner

from flopping.cost.count import count
from flopping_cli import app

runner = CliRunner()
NAME = "deit3_flop_test_patch16_64"


def objects(*arguments: str) -> list[dict[str, Any]]:
    result = runner.invoke(app, ["count", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("train", [False, True])
def test_json_has_every_layer_and_the_whole_last(train: bool) -> None:
    found = objects(NAME, "--batch", "4", *(["--train"] if train else []))
    model = timm.create_model(NAME)
    counted = count(model, (3, 64, 64), batch=4, training=train)
    *layers, whole = found
    assert {row["name"]: (row["macs"], row["flops"]) for row in layers} == {
        path: (layer.macs, layer.flops) for path, layer in counted.layers.items()
    }
    order = [path for path, _ in model.named_modules()]
    assert [row["name"] for row in layers] == sorted(counted.layers, key=order.index)
    assert (whole["name"], whole["layer"], whole["macs"]) == ("", "VisionTransformer", counted.macs)
    assert whole["flops"] == counted.flops
    assert "ordinary" not in whole
    for row in layers:
        assert row["layer"] == type(model.get_submodule(row["name"])).__name__
        assert row["share"] == row["flops"] / counted.flops
        assert row["depth"] == row["name"].count(".") + 1


def test_ordinary_network_stands_beside() -> None:
    *_, whole = objects("e(vit-s)", "--depth", "0")
    assert whole["ordinary"] == "ViT-S"
    assert round(whole["flops"] / 1e9, 1) == 2.6
    assert round(whole["ordinary_flops"] / 1e9, 1) == 4.7
    assert whole["ratio"] == whole["flops"] / whole["ordinary_flops"]
    assert whole["ordinary_macs"] == 4598882304
    shown = runner.invoke(app, ["count", "E(ViT-S)", "--depth", "0"]).stdout
    assert "ViT-S has 4,598.88 M MACs and 4,655.97 M FLOPs: this is 0.539 and 0.548 of it." in " ".join(shown.split())


def test_table_shows_layers_to_a_depth() -> None:
    result = runner.invoke(app, ["count", NAME, "--depth", "1"], env={"COLUMNS": "40"})  # names are never cut
    assert result.exit_code == 0
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    counted = count(timm.create_model(NAME), (3, 64, 64))
    assert {row[0] for row in cells} == {path for path in counted.layers if "." not in path} | {"total"}
    figures = f"{counted.macs / 1e6:,.2f}", f"{counted.flops / 1e6:,.2f}"
    assert cells[-1] == ["total", "VisionTransformer", *figures, "100.0%"]
    assert f"of {len(counted.layers)} are shown" in " ".join(result.stdout.split())
    assert "A forward pass" in result.stdout
    assert "ViT-S" not in result.stdout
    deeper = runner.invoke(app, ["count", NAME]).stdout
    assert "blocks.3" in deeper
    assert "blocks.3.attn" not in deeper


@pytest.mark.parametrize("name", [NAME, "convnext_flop_test"])
def test_other_sizes_of_images(name: str) -> None:
    """A network of one size is made for the one that is asked for."""
    (whole,) = objects(name, "--img-size", "96", "--depth", "0")
    model = timm.create_model(name, **({"img_size": 96} if name == NAME else {}))
    assert whole["macs"] == count(model, (3, 96, 96)).macs


def test_your_own_module(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import pathlib, torch\n"
        "with open(pathlib.Path(__file__).with_name('runs'), 'a') as file:\n"
        "    print(torch.ones(1).device, file=file)\n"
        "from torch import nn\n"
        "def build():\n"
        "    width = int(torch.tensor(8).item())\n"  # a constructor that looks at numbers
        "    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU())\n"
        "class Gamma(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.lgamma(x)\n"
        "unknown = nn.Sequential(nn.ReLU(), Gamma())\n"
        "deep = nn.Linear(7, 4)\n"
    )
    first, second, whole = objects(f"{file}:build", "--img-size", "8")
    assert (first["name"], first["layer"], first["macs"]) == ("0", "Conv2d", 36 * 8 * 27)
    assert (second["layer"], second["flops"]) == ("ReLU", 36 * 8)
    assert whole["layer"] == "Sequential"
    assert (tmp_path / "runs").read_text() == "cpu\n"  # once, and as usual
    for name, words in {"unknown": "lgamma in layer '1' (Gamma)", "deep": "an input of (3, 64, 64)"}.items():
        assert words in refusal(f"{file}:{name}")


def test_a_constructor_that_looks_at_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are none; then the network is built as usual."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **args: (torch.ones(1).item(), create(name, **args))[1])
    assert objects(NAME, "--depth", "0")[0]["layer"] == "VisionTransformer"


def refusal(*arguments: str) -> str:
    result = runner.invoke(app, ["count", *arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["E(ViT-M)"], "'E(ViT-M)'; the closest are E(ViT-"),
        (["ViT-S)"], "'ViT-S)'"),
        (["Linear"], "Linear is a layer, not a network. For your own module write FILE.py:ATTRIBUTE"),
        (["nowhere.py:net"], "no file 'nowhere.py'"),
        ([NAME, "--img-size", "65"], "not a multiple of the patch size"),
        ([NAME, "--img-size", "1600000000"], "'--img-size'"),
        ([NAME, "--batch", "0"], "'--batch'"),
        ([NAME, "--batch", "9" * 20], "'--batch'"),
        ([NAME, "--depth", "-1"], "'--depth'"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], words: str) -> None:
    assert words in refusal(*arguments)
