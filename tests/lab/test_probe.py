"""The probe finds in our own networks the layout that they have; what it says of others, and its command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.at_once import at_once
from support.training_runs import call
from torch import Tensor, nn
from typer.testing import CliRunner

from flopping.errors import UsageError
from flopping.lab.probe import EIGHTHS, LayerReport, Report, draw, probe, read_features
from flopping.models import ConvNeXt, VisionTransformer
from flopping.models.backbone import Backbone
from flopping.models.zoo import ZOO
from flopping.nn import BatchNorm
from flopping.testing import randomize_
from flopping_cli import app

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.group == "flop" and "test" in name])
def test_our_networks_have_the_layout_that_they_declare(name: str) -> None:
    model = timm.create_model(name, num_classes=3)
    assert isinstance(model, Backbone)
    size = ZOO[name].img_size
    images = noise(9, 16, 3, size, size)
    norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    if norms:  # random shifts would leave many channels of a ReLU zero: the statistics of a batch instead
        for norm in norms:
            norm.reset_parameters()
            norm.momentum = 1.0
        model.train()(images[0])
    else:
        randomize_(model)
    found = probe(model, images, 9 * 16)
    assert len(found.layers) == len(model.layouts)
    for layer, layout in zip(found.layers, model.layouts, strict=True):
        if layout.group.order == 1:  # after the hand-off of a hybrid
            assert layer.error > 1e-3
            continue
        assert (layer.even, layer.odd) == layout.multiplicities, layer.name
        assert layer.counts.neither == 0
        assert max(layer.error, layer.involution_error) < 1e-6
        assert (layer.identity_error < 1e-6) == (layer.odd == 0)


@pytest.mark.parametrize(
    ("args", "share"),
    [
        ({}, 0.0),
        ({"extra_share": 0.5, "img_size": (32, 40)}, 0.5),  # 5 columns
        ({"extra_share": 1.0}, 1.0),
        ({"group": "flipflop"}, 0.0),
        ({"group": "octic"}, 0.0),
    ],
)
def test_the_suggested_share_is_what_the_network_was_built_with(args: dict[str, object], share: float) -> None:
    model = VisionTransformer(**(TINY | {"depth": 2} | args))
    found = probe(randomize_(model), noise(2, 24, 3, *model.patch_embed.img_size), 48)
    assert max(layer.error for layer in found.layers) < 1e-6
    assert found.extra_share == pytest.approx(share, abs=1e-6)
    assert f"extra_share={share:g}." in found.verdict()


def test_an_ordinary_network_is_not_equivariant() -> None:
    model = randomize_(timm.create_model("convnext_iso_test", num_classes=3))
    found = probe(model, noise(6, 16, 3, 64, 64), 96)
    assert all(layer.error > 0.5 and layer.counts.neither > 0.8 for layer in found.layers)


def stages() -> nn.Module:
    return ConvNeXt(depths=(1, 2), dims=(8, 16), patch_size=4, num_classes=2)


def test_layers_are_blocks_or_stages_chosen_by_name() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=2, num_classes=2).eval()
    images = torch.zeros(1, 3, 32, 32)
    assert list(read_features(stages(), images)) == ["stages.0", "stages.1"]
    found = read_features(vit, images, ["*.1"])
    assert {name: (tuple(f.maps.shape), tuple(f.prefix.shape)) for name, f in found.items()} == {
        "blocks.1": ((1, 12, 2, 2), (1, 1, 12))
    }


def test_the_network_is_left_as_it_was_and_the_same_seed_gives_the_same() -> None:
    model, images = randomize_(stages()), noise(48, 3, 16, 16)
    model.train().stem.eval()
    one, other, again = (probe(model, images.split(size), 48) for size in (48, 7, 7))
    assert again == other
    assert [layer.error for layer in one.layers] == pytest.approx([x.error for x in other.layers], rel=1e-4, abs=1e-6)
    assert (model.training, model.stem.training) == (True, False)


@pytest.mark.parametrize(
    ("model", "images", "layers", "message"),
    [
        (nn.Flatten, 16, [], "Flatten .*forward_intermediates"),
        (stages, 16, ["stage"], "'stage'; those that are probed are stages.0, stages.1"),
        (stages, 3, [], "got 3"),
        (lambda: VisionTransformer(**TINY, depth=1), 16, [], "VisionTransformer.* 3 x 16 x 16"),
        (lambda: ConvNeXt(depths=(1,), dims=(64,), patch_size=16), 16, [], "64 channels.* got 8: take 16 times"),
    ],
)
def test_what_cannot_be_probed_is_refused(
    model: Callable[[], nn.Module], images: int, layers: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        probe(model(), noise(1, images, 3, 16, 16), images, layers=layers)


# ---------------------------------------------------------------- what it says


def layer(name: str, correlations: list[float]) -> LayerReport:
    spectrum = tuple((w, 1 / len(correlations)) for w in correlations)
    return LayerReport(name, len(correlations), 9, 0.0, 0.1, 0.2, 1.0, spectrum)


def test_shares_and_the_verdict() -> None:
    report = Report(9, (layer("a", [1, 1, 1, -1]), layer("b", [1, 0, 0, 0])))
    assert (report.layers[0].counts.even, report.layers[1].counts.neither) == (0.75, 0.75)
    assert report.extra_share == pytest.approx((0.5 + 0.25) / 2)
    for words in ("50% are even, 12% odd, and 38% are not", "69% even and 31% odd", "extra_share=0.375."):
        assert words in report.verdict()
    odd = Report(9, (layer("a", [-1, -1, 1, -1]),))
    assert odd.suggested_share == 0
    assert "more odd directions than even" in odd.verdict()


@pytest.mark.parametrize("name", [entry.name for entry in ZOO.values() if entry.paper and entry.group == "flop"])
def test_every_network_of_the_paper_takes_the_shares_that_are_suggested(name: str) -> None:
    entry = ZOO[name]
    short = {"depths": tuple(1 for _ in entry.args["depths"])} if "depths" in entry.args else {"depth": 2}
    handoffs = dict.fromkeys([1], *entry.args["handoffs"].values()) if "handoffs" in entry.args else None
    for share in (1 / EIGHTHS, 3 / EIGHTHS, 1.0):
        if share == 1 and "rope" in name:  # invariant channels can't turn with the horizontal angle
            continue
        with torch.device("meta"):
            entry.model(**{**entry.args, **short, "handoffs": handoffs, "extra_share": share})


def test_the_figure_shows_every_layer() -> None:
    figure = draw(Report(9, (layer("a", [1, 0.9, 0, -1]), layer("b", [1, 1, 1, 0.8]))), "a title")
    counts, variances, spectrum, errors = figure.axes
    assert [bar.get_height() for bar in counts.containers[0]] == [0.5, 1.0]  # even, at the bottom
    assert [bar.get_height() for bar in variances.containers[2]] == [0.25, 0]  # odd, at the top
    assert len(spectrum.patches) == 2
    assert [line.get_ydata()[0] for line in errors.lines] == [1.0, 0.2, 0.1]
    many = Report(9, tuple(layer(f"a.long.name.{i}", [1, -1]) for i in range(40)))
    assert len(draw(many, "many").axes[0].get_xticks()) <= 13


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images without classes, and a file that is none."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    (folder / "below").mkdir()
    for index in range(40):
        place = folder / ("below" if index % 2 else "") / f"{index}.png"
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), np.uint8)).save(place)
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small equivariant network in a file."""
    path = tmp_path_factory.mktemp("own") / "own_network.py"
    path.write_text(
        "from flopping.models import VisionTransformer\n\n\ndef build():\n"
        "    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3)\n"
        "    model.pretrained_cfg = {'input_size': (3, 32, 32)}\n    return model\n"
    )
    return f"{path}:build"


def test_the_command_on_a_folder_of_photos(own: str, photos: Path, tmp_path: Path) -> None:
    figure = tmp_path / "a.png"
    figure.write_text("older")
    arguments = ["probe", own, str(photos), "-o", str(figure), "--force", "--batch", "16"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert (done.exit_code, done.stderr.strip()) == (0, ""), done.output
    title, *lines = done.stdout.splitlines()
    assert f"{own} on 40 images of {photos}" == title
    assert max(map(len, lines)) <= 80
    (row,) = (line.split() for line in lines if "blocks.1" in line)
    assert row[1:3] + row[4:9:2] == ["0.000", "0.000", "50", "50", "0"]
    assert "extra_share=0." in done.stdout
    with Image.open(figure) as picture:
        assert (picture.format, picture.size[0] > 1000) == ("PNG", True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_json_has_all_layers_and_the_network_last(own: str, photos: Path) -> None:
    ended = call("probe", own, str(photos), "--json", "--images", "32", "--layers", "blocks.1", "--quiet")
    first, last = map(json.loads, ended.out.splitlines())
    assert (first["name"], first["even"], first["odd"], first["channels"]) == ("blocks.1", 8, 8, 16)
    assert first["error"] < 1e-6
    assert len(first["spectrum"]) == first["live"] == 16
    assert last["images"] == 32
    assert last["extra_share"] == pytest.approx(0, abs=1e-6)


def test_images_that_cannot_be_read_are_named_and_pipes_and_devices_left_out(
    own: str, photos: Path, tmp_path: Path
) -> None:
    for path in photos.rglob("*.png"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    with at_once(60):
        ended = call("probe", own, str(tmp_path), "-q")
    assert ended.code == 1
    assert "1 image could not be read" in ended.err
    assert "broken.jpg" in ended.err
    assert "on 40 images" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--root", "x"], ["--root"]),
        (["-o", "a.jpg"], ["ends with .png", "'a.jpg'"]),
        (["-o", "there.png"], ["--force"]),
        (["--layers", "stem"], ["'stem'"]),
        *(([option, "9" * 30], [option]) for option in ("--images", "--batch", "--seed", "--workers", "--img-size")),
    ],
)
def test_refusals_of_the_command(
    own: str, photos: Path, arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.png").write_text("precious")
    ended = call("probe", own, str(photos), *arguments, curves=True)
    assert ended.code == 2
    for word in words:
        assert word in ended.err
    assert Path("there.png").read_text() == "precious"


def test_a_folder_with_test_images_gives_these(own: str, images: Path) -> None:
    ended = call("probe", own, str(images), "--json", "--layers", "blocks.0")
    assert json.loads(ended.out.splitlines()[-1])["images"] == 12
    assert "none" in call("probe", own, "none").err
