"""The probe finds the steering matrix that was planted, and in our own networks the layout that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from training_runs import call

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.models import ConvNeXt, VisionTransformer
from flopping.models.backbone import Backbone
from flopping.models.zoo import ZOO
from flopping.probe import LayerReport, Moments, Report, probe, steer
from flopping.probe.figure import EVEN, draw
from flopping.probe.fit import RIDGES, best_ridge, error, measured, require_enough, twice_error
from flopping.probe.layers import Taken, open_taps, token_grid
from flopping.probe.report import EIGHTHS, Folds, examine
from flopping.testing import randomize_

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def involution(even: int, odd: int, seed: int, *, orthogonal: bool = False) -> Tensor:
    """A matrix whose square is 1, with so many eigenvalues 1 and -1."""
    basis = random(even + odd, even + odd, seed=seed)
    basis = torch.linalg.qr(basis).Q if orthogonal else basis + 3 * torch.eye(even + odd, dtype=torch.float64)
    signs = torch.tensor([1.0] * even + [-1.0] * odd, dtype=torch.float64)
    return basis @ (signs[:, None] * torch.linalg.inv(basis))


def folds(f: Tensor, g: Tensor) -> Folds:
    """Half of the pairs to fit, a quarter to choose the ridge, a quarter to test."""
    quarter = len(f) // 4
    cuts = ((0, 2 * quarter), (2 * quarter, 3 * quarter), (3 * quarter, len(f)))
    return Folds(*(Moments(f.shape[1]).add(f[start:end], g[start:end]) for start, end in cuts))


# ---------------------------------------------------------------- moments


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 99))
def test_batches_give_what_all_pairs_give_at_once(sizes: list[int], channels: int, seed: int) -> None:
    number = sum(sizes) + 1
    f, g = random(2, number, channels, seed=seed) + 1e4  # a mean that is large beside the deviations
    streamed = Moments(channels)
    for a, b in zip(f.split([*sizes, 1]), g.split([*sizes, 1]), strict=True):
        streamed.add(a, b)
    both, swapped = torch.cat((f, g)), torch.cat((g, f))
    mean = both.mean(0)
    torch.testing.assert_close(streamed.mean, mean)
    torch.testing.assert_close(streamed.spread, (both - mean).T @ (both - mean) / (2 * number), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(streamed.cross, (both - mean).T @ (swapped - mean) / (2 * number), rtol=1e-6, atol=1e-6)
    assert streamed.pairs == number


def test_moments_add_up() -> None:
    f, g = random(2, 50, 4)
    whole, parts = Moments(4).add(f, g), Moments(4).add(f[:9], g[:9]) + Moments(4).add(f[9:], g[9:])
    for name in ("mean", "spread", "cross"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
    other = random(4, seed=3)
    shifted = (f - other).T @ (f - other) + (g - other).T @ (g - other)
    torch.testing.assert_close(whole.around(other)[0], shifted / 100)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 5)), ((3, 5), (3, 5)), ((4,), (4,))])
def test_pairs_of_other_shapes_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"two tensors \(N, 4\), got"):
        Moments(4).add(torch.zeros(shapes[0]), torch.zeros(shapes[1]))
    with pytest.raises(ValueError, match="of 4 and of 5 channels"):
        Moments(4) + Moments(5)


# ---------------------------------------------------------------- the fit


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 99), st.floats(-3, 3))
def test_a_planted_matrix_is_found(even: int, odd: int, seed: int, scale: float) -> None:
    """Any involution, features of any size and mean, in few pairs."""
    channels = even + odd
    if not channels:
        return
    matrix = involution(even, odd, seed)
    f = (random(20 * channels, channels, seed=seed) + 1) * 10**scale
    made = folds(f, f @ matrix.T)
    found = examine("planted", made)
    assert (found.even, found.odd, found.live) == (even, odd, channels)
    assert found.error < 1e-10
    assert found.involution_error < 1e-10
    assert found.twice_error < 1e-10
    assert found.invariant_share == pytest.approx((even - odd) / channels, abs=1e-6)
    torch.testing.assert_close(steer(made.fit).matrix, matrix, rtol=1e-5, atol=1e-5)


def test_the_fit_is_that_of_least_squares_and_its_eigenvalues_lie_between_minus_one_and_one() -> None:
    f, g = random(200, 5), 0.5 * random(200, 5, seed=1)
    g = g + f @ random(5, 5, seed=2).T
    found = steer(Moments(5).add(f, g))
    mean = torch.cat((f, g)).mean(0)
    a, b = torch.cat((f, g)) - mean, torch.cat((g, f)) - mean
    torch.testing.assert_close(found.matrix, torch.linalg.lstsq(a, b).solution.T)
    eigenvalues = torch.linalg.eigvals(found.matrix)
    assert eigenvalues.imag.abs().max() < 1e-9
    torch.testing.assert_close(eigenvalues.real.sort(descending=True).values, found.correlations)
    assert found.correlations.abs().max() <= 1


def test_directions_and_patterns_are_what_the_maths_says() -> None:
    f = random(300, 4) @ random(4, 4, seed=1)
    g = f @ random(4, 4, seed=2) + random(300, 4, seed=3)
    moments = Moments(4).add(f, g)
    found = steer(moments)
    a, r = found.directions, found.patterns
    one = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(a.T @ moments.spread @ a, one)  # numbers that don't correlate, of variance 1
    torch.testing.assert_close(a.T @ moments.cross @ a, torch.diag(found.correlations))
    torch.testing.assert_close(r @ a.T, one)  # f is the sum of what its numbers stand for
    torch.testing.assert_close(float(r.square().sum()), moments.variance)
    left = ((1 - found.correlations**2) * r.square().sum(0)).sum() / moments.variance
    assert error(found.matrix, found.mean, moments) == pytest.approx(float(left))
    torch.testing.assert_close(found.involution @ found.involution, one)
    same, weights = measured(found, moments)
    torch.testing.assert_close(same, found.correlations)
    torch.testing.assert_close(weights, r.square().sum(0) / moments.variance)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_errors_are_those_of_the_pairs_themselves(noise: float) -> None:
    f = random(400, 3) + 2
    g = f @ involution(2, 1, 5).T + noise * random(400, 3, seed=1)
    moments, matrix, mean = Moments(3).add(f, g), random(3, 3, seed=2), random(3, seed=3)
    a, b = torch.cat((f, g)), torch.cat((g, f))
    variance = (a - a.mean(0)).square().sum() / len(a)
    direct = (b - mean - (a - mean) @ matrix.T).square().sum() / len(a) / variance
    assert error(matrix, mean, moments) == pytest.approx(float(direct))
    twice = ((a - mean) @ (matrix @ matrix).T - (a - mean)).square().sum() / len(a) / variance
    assert twice_error(matrix, mean, moments) == pytest.approx(float(twice))


def test_the_best_ridge_is_the_one_with_the_least_error() -> None:
    for seed, noise in ((0, 0.0), (1, 3.0), (2, 30.0)):
        f = random(60, 12, seed=seed)
        g = f @ involution(8, 4, seed, orthogonal=True).T + noise * random(60, 12, seed=seed + 9)
        fit, other = Moments(12).add(f[:30], g[:30]), Moments(12).add(f[30:], g[30:])
        errors = {}
        for ridge in RIDGES:
            found = steer(fit, ridge)
            errors[ridge] = error(found.matrix, found.mean, other)
        best = best_ridge(fit, other)
        assert errors[best] == pytest.approx(min(errors.values()))
        assert (best == 0) == (noise == 0)


def test_noise_makes_correlations_smaller_and_the_split_stays() -> None:
    """A planted matrix behind noise whose size is known: the correlation is var / (var + noise²)."""
    f = random(20000, 6)
    matrix = involution(4, 2, 0, orthogonal=True)
    noise = 0.3
    found = examine(
        "noisy", folds(f + noise * random(20000, 6, seed=1), f @ matrix.T + noise * random(20000, 6, seed=2))
    )
    assert (found.even, found.odd) == (4, 2)
    expected = 1 / (1 + noise**2)
    assert [abs(w) for w, _ in found.spectrum] == pytest.approx([expected] * 6, abs=0.02)
    assert found.error == pytest.approx(1 - expected**2, abs=0.02)
    assert found.involution_error == pytest.approx(2 * (1 - expected), abs=0.02)


def test_pure_noise_is_neither_even_nor_odd_and_held_out_pairs_show_it() -> None:
    """Few pairs for the channels: on its own pairs the fit looks better than it is."""
    f, g = random(2, 240, 40)
    found = examine("noise", folds(f, g))
    assert found.counts.neither == 1
    assert found.error > 0.99
    assert found.fit_error < found.error
    unguarded = steer(folds(f, g).fit)
    assert error(unguarded.matrix, unguarded.mean, folds(f, g).fit) < 0.9  # by chance alone
    assert error(unguarded.matrix, unguarded.mean, folds(f, g).test) > 1.1


def test_directions_that_never_differ_are_left_out() -> None:
    """Copies and constants beside planted channels: the split is that of the rest."""
    matrix = involution(3, 2, 1)
    f = random(400, 5)
    g = f @ matrix.T

    def more(x: Tensor) -> Tensor:
        return torch.cat((x, x[:, :2] - x[:, 2:4], torch.full((len(x), 1), 7.0)), 1)

    found = examine("copies", folds(more(f), more(g)))
    assert (found.channels, found.live, found.even, found.odd) == (8, 5, 3, 2)
    assert found.error < 1e-10


def test_channels_of_very_different_sizes() -> None:
    scales = 10.0 ** torch.arange(-3, 3, dtype=torch.float64)
    signs = torch.tensor([1, -1, 1, -1, -1, -1], dtype=torch.float64)
    f = random(300, 6) * scales
    found = examine("scales", folds(f, f * signs))
    assert (found.even, found.odd) == (2, 4)
    assert found.variances.odd > 0.999  # the largest channel is odd


def test_too_few_pairs_and_features_without_a_spread_are_refused() -> None:
    f = random(7, 4)
    with pytest.raises(ValueError, match=r"'thin' has 4 channels.*8 pairs of places at least, got 7"):
        require_enough(Moments(4).add(f, f), "thin")
    with pytest.raises(ValueError, match="'flat' says the same of all images"):
        require_enough(Moments(4).add(torch.ones(9, 4), torch.ones(9, 4)), "flat")
    with pytest.raises(ValueError, match="'broken' are not finite"):
        require_enough(Moments(1).add(torch.full((9, 1), torch.nan), torch.ones(9, 1)), "broken")


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("name", [name for name in ZOO if "flop" in name and "test" in name])
def test_our_networks_have_the_layout_that_they_declare(name: str) -> None:
    model = randomize_(timm.create_model(name, num_classes=3))
    assert isinstance(model, Backbone)
    images = torch.randn(9, 16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found = probe(model, images, 9 * 16)
    assert len(found.layers) == len(model.layouts)
    for layer, layout in zip(found.layers, model.layouts, strict=True):
        if layout.group.order == 1:  # behind the hand-off of a hybrid
            assert layer.error > 1e-3
            continue
        assert (layer.even, layer.odd) == layout.multiplicities, layer.name
        assert layer.counts.neither == 0
        assert max(layer.error, layer.involution_error, layer.twice_error) < 1e-6
        assert (layer.identity_error < 1e-6) == (layer.odd == 0)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [32, 40])  # 4 columns, and 5
def test_the_share_of_invariant_channels_is_what_the_network_was_built_with(share: float, width: int) -> None:
    model = VisionTransformer(**(TINY | {"img_size": (32, width)}), depth=2, invariant_share=share)
    found = probe(randomize_(model), random(2, 24, 3, 32, width).float(), 48)
    assert found.invariant_share == pytest.approx(share, abs=1e-6)
    assert found.suggested_share == share
    assert f"invariant_share={share:g}." in found.verdict()


@pytest.mark.parametrize("group", ["flipflop", "octic"])
def test_larger_groups_hold_the_mirror_too(group: str) -> None:
    model = randomize_(VisionTransformer(**TINY, depth=1, group=group))
    (layer,) = probe(model, random(2, 24, 3, 32, 32).float(), 48).layers
    assert (layer.even, layer.odd) == (8, 8)
    assert layer.error < 1e-6


def test_an_ordinary_network_is_not_equivariant() -> None:
    model = randomize_(timm.create_model("convnext_iso_test", num_classes=3))
    found = probe(model, torch.randn(6, 16, 3, 64, 64, generator=torch.Generator().manual_seed(0)), 96)
    assert all(layer.error > 0.5 and layer.counts.neither > 0.8 for layer in found.layers)


class Columns(nn.Module):
    """Each place says which column it is in, counted from the middle, and what the image shows there."""

    num_prefix_tokens = 1

    def forward_intermediates(
        self, x: Tensor, *, return_prefix_tokens: bool, **options: object
    ) -> list[tuple[Tensor, Tensor]]:
        assert return_prefix_tokens
        middle = (x.shape[3] - 1) / 2
        column = (torch.arange(x.shape[3]) - middle).expand(len(x), 1, *x.shape[2:])
        maps = torch.cat((x, column), 1)
        token = x.mean((2, 3))
        return [(maps, torch.cat((token, 0 * token[:, :1]), 1)[:, None])]


@pytest.mark.parametrize("width", [4, 5])
def test_places_find_their_mirror_images(width: int) -> None:
    """Values of the image are even, and the column is odd; without moving places back neither would be."""
    (layer,) = probe(Columns(), random(2, 16, 2, 3, width), 32).layers
    assert (layer.even, layer.odd) == (2, 1)
    assert layer.error < 1e-12


def test_tokens_without_a_place_stay_and_columns_turn_round() -> None:
    taken = Taken(torch.arange(6.0).view(1, 1, 2, 3), torch.tensor([[[9.0]]]))
    assert taken.mirrored().at(torch.arange(6)).flatten().tolist() == [9, 2, 1, 0, 5, 4, 3]


class Net(nn.Module):
    """An ordinary network of someone's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, 4)
        self.blocks = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def test_modules_of_ones_own_are_probed_by_hooks() -> None:
    found = probe(Net(), random(2, 16, 3, 16, 16).float(), 32)
    assert [layer.name for layer in found.layers] == ["stem", "blocks.0", "blocks.1"]
    chosen = probe(Net(), random(2, 16, 3, 16, 16).float(), 32, layers=["blocks.*"])
    assert [layer.name for layer in chosen.layers] == ["blocks.0", "blocks.1"]


def test_our_layers_and_networks_of_timm_are_probed_by_hooks() -> None:
    layout = Layout.regular(flop, 8, extra=4)
    own = fnn.Sequential(
        fnn.PatchEmbed(layout, img_size=32, patch_size=8),
        fnn.TransformerBlock(layout, num_heads=2),
        fnn.InvariantHead(layout, num_classes=2),
    )
    found = probe(randomize_(own), random(2, 16, 3, 32, 32).float(), 32)
    assert [(layer.name, layer.even, layer.odd) for layer in found.layers] == [("0", 6, 2), ("1", 6, 2)]
    stages = ConvNeXt(depths=(1, 2), dims=(8, 16), patch_size=4, num_classes=2)
    images = random(2, 24, 3, 32, 32).float()
    found = probe(randomize_(stages), images, 48, layers=["stages.1.blocks.*"])
    names = [(layer.name, layer.even, layer.odd) for layer in found.layers if layer.channels == 16]
    assert ("stages.1.blocks.0", 8, 8) in names
    assert ("stages.1.blocks.1", 8, 8) in names
    taps = open_taps(timm.create_model("vgg11", num_classes=2), torch.zeros(1, 3, 32, 32))
    assert taps.names[0].startswith("features.")


def test_tokens_of_a_module_lie_on_the_grid_of_the_image() -> None:
    ordinary = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=2, num_classes=2)
    images = torch.zeros(1, 3, 32, 32)
    hooked = open_taps(ordinary, images, ["blocks.1.mlp"])(images)[0]
    assert (hooked.grid, tuple(hooked.prefix.shape)) == ((2, 2), (1, 1, 12))
    x = torch.randn(2, 3, 32, 32)
    (by_hook,) = open_taps(ordinary.eval(), images, ["blocks.1.drop_path2"])(x)
    assert by_hook.channels == 12
    assert token_grid(5, (32, 32)) == (2, 2)
    assert token_grid(16 + 9, (32, 32)) is None


def test_the_network_is_left_as_it_was() -> None:
    model = Net().train()
    model.stem.eval()
    probe(model, random(2, 16, 3, 16, 16).float(), 32)
    assert model.training
    assert not model.stem.training
    assert not any(module._forward_hooks for module in model.modules())


def test_the_same_seed_gives_the_same_and_batches_don_t_matter_where_all_places_are_taken() -> None:
    model, images = randomize_(Net()), random(48, 3, 16, 16).float()
    one, other = (probe(model, images.split(size), 48) for size in (48, 7))
    for a, b in zip(one.layers, other.layers, strict=True):
        assert a.error == pytest.approx(b.error, rel=1e-4)
    assert probe(model, images.split(7), 48) == other


class Refusing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(
    ("model", "images", "layers", "message"),
    [
        (Refusing, 16, [], "no layer of Refusing gives maps"),
        (Net, 16, ["stm"], "no layer is called 'stm'; those that are probed by default are stem, blocks.0, blocks.1"),
        (Net, 16, ["head"], "head: gives no maps"),
        (Net, 3, [], "4 images at least, got 3"),
        (lambda: VisionTransformer(**TINY, depth=1), 16, [], "VisionTransformer.* 3 x 16 x 16"),
        (
            lambda: ConvNeXt(depths=(1,), dims=(64,), patch_size=16),
            16,
            [],
            "64 channels at 1 places: that takes 256 im",
        ),
    ],
)
def test_what_cannot_be_probed_is_refused(
    model: Callable[[], nn.Module], images: int, layers: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        probe(model(), random(1, images, 3, 16, 16).float(), images, layers=layers)


# ---------------------------------------------------------------- what it says


def layer(name: str, correlations: list[float]) -> LayerReport:
    spectrum = tuple((w, 1 / len(correlations)) for w in correlations)
    size = len(correlations)
    return LayerReport(name, size, size, 9, 0.0, 0.1, 0.1, 0.2, 1.0, 0.1, spectrum)


def test_shares_and_the_verdict() -> None:
    report = Report(9, (layer("a", [1, 1, 1, -1]), layer("b", [1, 0, 0, 0])))
    assert report.layers[0].counts.even == 0.75
    assert report.layers[1].counts.neither == 0.75
    assert report.invariant_share == pytest.approx((0.5 + 0.25) / 2)
    assert report.suggested_share == 3 / 8
    assert "50% are even, 12% odd, and 38% are not" in report.verdict()
    assert "foretold by the mirror image. Each counted by its correlation, that is" in report.verdict()
    assert "69% even and 31% odd: an equivariant network with invariant_share=0.375." in report.verdict()
    odd = Report(9, (layer("a", [-1, -1, 1, -1]),))
    assert odd.suggested_share == 0
    assert "more odd directions than even" in odd.verdict()


@pytest.mark.parametrize("name", [entry.name for entry in ZOO.values() if entry.paper and "flop" in entry.name])
def test_every_network_of_the_paper_takes_the_shares_that_are_suggested(name: str) -> None:
    entry = ZOO[name]
    short = {"depths": tuple(1 for _ in entry.args["depths"])} if "depths" in entry.args else {"depth": 2}
    handoffs = dict.fromkeys([1], *entry.args["handoffs"].values()) if "handoffs" in entry.args else None
    for eighth in range(EIGHTHS + 1):
        with torch.device("meta"):
            entry.model(**{**entry.args, **short, "handoffs": handoffs, "invariant_share": eighth / EIGHTHS})


def test_the_figure_shows_every_layer() -> None:
    figure = draw(Report(9, (layer("a", [1, 0.9, 0, -1]), layer("b", [1, 1, 1, 0.8]))), "a title")
    counts, variances, spectrum, errors = figure.axes
    bottoms = [bar.get_height() for bar in counts.containers[0]]
    assert bottoms == [0.5, 1.0]
    assert counts.containers[0][0].get_facecolor()[:3] == pytest.approx(
        [int(EVEN[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )
    assert [bar.get_height() for bar in variances.containers[2]] == [0.25, 0]
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
    ended = call("probe", own, str(photos), "-o", str(tmp_path / "a.png"), "--batch", "16", curves=True)
    assert ended.code == 0, ended
    assert "blocks.1" in ended.out
    assert "50% even and 50% odd: an equivariant network with invariant_share=0." in ended.out
    assert "40 images" in ended.out
    assert not ended.err  # nobody knows whether a network of one's own is trained
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_figure_is_not_replaced_unasked(own: str, photos: Path, tmp_path: Path) -> None:
    figure = tmp_path / "a.png"
    figure.write_text("precious")
    ended = call("probe", own, str(photos), "-o", str(figure), curves=True)
    assert (ended.code, figure.read_text()) == (2, "precious")
    assert "exists; --force replaces it" in ended.err
    assert call("probe", own, str(photos), "-o", str(figure), "--force", "--layers", "blocks.1", curves=True).code == 0
    with Image.open(figure) as picture:
        assert picture.format == "PNG"


def test_json_has_all_layers_and_the_network_last(own: str, photos: Path) -> None:
    ended = call("probe", own, str(photos), "--json", "--images", "32", "--layers", "blocks.1", "--quiet")
    first, last = map(json.loads, ended.out.splitlines())
    assert (first["name"], first["even"], first["odd"], first["channels"]) == ("blocks.1", 8, 8, 16)
    assert first["error"] < 1e-6
    assert len(first["spectrum"]) == 16
    assert last["images"] == 32
    assert last["invariant_share"] == pytest.approx(0, abs=1e-6)


def test_images_that_cannot_be_read_are_named(own: str, photos: Path, tmp_path: Path) -> None:
    for path in photos.rglob("*.png"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    ended = call("probe", own, str(tmp_path))
    assert ended.code == 1
    assert "1 image could not be read and was left out: " in ended.err
    assert "broken.jpg" in ended.err
    assert "on 40 images" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "x"], "--root goes with a data set by name"),
        (["-o", ".svg"], "'.svg' is a suffix without a name"),
        (["-o", "a.jpg"], "FILE.png or FILE.svg, got 'a.jpg'"),
        (["-o", "nowhere/a.png"], "no folder 'nowhere'"),
        (["--layers", "stem"], "no layer is called 'stem'"),
        (["--images", "3"], "equal to 4|3 is not in the range"),
        (["--device", "tpu"], "no device|cpu or cuda"),
        (["--average"], "--average takes the averaged weights"),
    ],
)
def test_refusals_of_the_command(own: str, photos: Path, arguments: list[str], message: str) -> None:
    ended = call("probe", own, str(photos), *arguments, curves=True)
    assert ended.code == 2
    assert re.search(message, ended.err), ended.err
    assert "Traceback" not in ended.err


def test_data_that_is_not_there(own: str, tmp_path: Path) -> None:
    assert "no folder" in call("probe", own, str(tmp_path / "none")).err
    ended = call("probe", own, str(tmp_path))
    assert ended.code == 2
    assert "holds no image" in ended.err
    assert "matplotlib: pip install 'flopping[plot]'" in call("probe", own, str(tmp_path), "-o", "a.png").err


def test_a_folder_with_test_images_gives_these(own: str, images: Path) -> None:
    ended = call("probe", own, str(images), "--json", "--layers", "blocks.0")
    assert json.loads(ended.out.splitlines()[-1])["images"] == 12
