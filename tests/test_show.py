"""`flopping show`: what is captured and chosen, what the command writes, and what it refuses."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner
from views import FAMILIES, SMALL, classifier, equivariant, network, ordinary, photo

from flopping import Group, Layout, flipflop, flop, functional, octic
from flopping.models import VisionTransformer
from flopping.models.weights import checkpoint_filter_fn
from flopping.show.capture import capture, default_block, parities
from flopping.show.channels import chosen
from flopping.show.picture import open_picture
from flopping.show.view import look
from flopping.testing import randomize_
from flopping_cli import app


def noise(*shape: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(3))


# What is captured ---------------------------------------------------------------------------------------------------


def assert_law(found: Tensor, signs: Tensor) -> None:
    image, mirrored = found
    scale = image.abs().max()
    assert scale > 0.1
    torch.testing.assert_close(mirrored / scale, signs[:, None, None] * image.flip(-1) / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_even_maps_are_mirrored_and_odd_ones_change_their_sign(name: str) -> None:
    model = network(name)
    for block in range(len(model.feature_info)):
        found = capture(model, noise(3, 64, 64), block)
        half = found.features.shape[1] // 2
        assert found.parities is not None
        assert found.parities.tolist() == [1.0] * half + [-1.0] * half
        assert_law(found.features, found.parities)
    assert found.logits.shape == (2, 7)
    torch.testing.assert_close(found.logits[1], found.logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "args", "size"),
    [
        (SMALL, {"img_size": (32, 48), "in_chans": 1}, (1, 32, 48)),
        (SMALL, {"img_size": (48, 80), "patch_size": (16, 16)}, (3, 48, 80)),
        (SMALL, {"img_size": (32, 48), "patch_size": (8, 16)}, (3, 32, 48)),
        ("resmlp_flop_test_64", {"img_size": (32, 48), "in_chans": 1}, (1, 32, 48)),
        ("convnext_flop_iso_test", {"in_chans": 1}, (1, 48, 80)),
    ],
)
def test_grey_images_and_grids_that_are_odd_or_no_squares(name: str, args: dict[str, object], size: tuple[int]) -> None:
    found = capture(network(name, **args), noise(*size))
    assert found.parities is not None
    assert_law(found.features, found.parities)
    if found.attention is not None:
        assert found.attention.shape[1:] == found.features.shape[2:]
        torch.testing.assert_close(found.attention[1], found.attention[0].flip(-1), rtol=1e-4, atol=1e-6)


def test_hybrids_are_shown_where_they_have_odd_channels() -> None:
    hybrid = network("deit3_flop_hybrid_test_patch16_64")
    found = capture(hybrid, noise(3, 64, 64))
    assert found.parities is not None
    assert_law(found.features, found.parities)
    assert found.attention_block == 3  # which is ordinary(), so the class token looks elsewhere
    assert found.attention is not None
    assert (found.attention[1] - found.attention[0].flip(-1)).abs().max() > 1e-3
    assert capture(hybrid, noise(3, 64, 64), 3).parities is None
    invariant = network("deit3_flop_invariant_test_patch16_64")
    assert default_block(invariant) == 0
    last = capture(invariant, noise(3, 64, 64), -1)
    assert last.parities is not None
    assert (last.parities == 1).all()
    assert_law(last.features, last.parities)


@pytest.mark.parametrize("group", [flipflop, octic])
def test_larger_groups_have_even_and_odd_channels_too(group: Group) -> None:
    model = VisionTransformer(64, 16, embed_dim=64, depth=2, num_heads=2, num_classes=7, group=group)
    found = capture(randomize_(model).eval(), noise(3, 64, 64))
    assert found.parities is not None
    assert found.parities.sum() == 0
    assert_law(found.features, found.parities)


def test_groups_without_a_mirror_have_ordinary_channels() -> None:
    assert parities(Layout.regular("rot90", 8)) is None
    assert parities(Layout.regular("flip", 8)) is None
    assert parities(Layout(flop, (2, 1))).tolist() == [1, 1, -1]


def test_attention_is_the_softmax_of_queries_and_keys() -> None:
    model = network(SMALL)
    image = noise(3, 64, 64)
    block = model.blocks[2]
    taken: list[tuple[Tensor, ...]] = []
    handle = block.attn.register_forward_hook(lambda layer, args, out: taken.append((*args[0], *out)))
    found = capture(model, image, 2)
    handle.remove()
    even, odd, mixed_even, _ = (part.double() for part in taken[0])
    qkv = block.attn.qkv.double()((even, odd))
    heads = []
    values = []
    for head in range(2):  # by hand: even and odd of one head side by side, 16 of each
        q, k, v = (torch.cat([part[..., 32 * which + 16 * head :][..., :16] for part in qkv], -1) for which in range(3))
        scores = torch.einsum("bnd,bmd->bnm", q, k) / 32**0.5
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        heads.append(weights)
        values.append((weights @ v)[..., :16])
    expected = torch.stack(heads).mean(0)
    assert found.attention is not None
    got = found.attention.flatten(1).double()
    torch.testing.assert_close(got, expected[:, 0, 1:], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got.sum(1) + expected[:, 0, 0], torch.ones(2).double(), rtol=1e-5, atol=1e-6)
    projected = block.attn.proj.double()((torch.cat(values, -1), torch.zeros(2, 17, 32).double()))[0]
    torch.testing.assert_close(mixed_even, projected, rtol=1e-4, atol=1e-4)  # it is what the layer mixed by


def test_rows_of_attention_sum_to_one() -> None:
    layout = Layout.regular(flop, 16)
    q, k, v = functional.heads((layout * 3).random(2, 5), layout, num_heads=4)
    weights = functional.attention_weights(q, k)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    torch.testing.assert_close(weights @ v, nn.functional.scaled_dot_product_attention(q, k, v))


def test_attention_of_timms_network_is_that_of_ours() -> None:
    args = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 7, "init_values": 1e-4}
    theirs = timm.create_model("deit3_small_patch16_224", **args)
    ours = VisionTransformer(patch_size=16, group="trivial", **args).eval()
    randomize_(theirs).eval()
    names = dict(zip(ours.state_dict(), theirs.state_dict(), strict=False))
    assert len(names) == len(theirs.state_dict())
    ours.load_state_dict(checkpoint_filter_fn(theirs.state_dict(), ours))
    image = noise(3, 64, 64)
    a, b = capture(theirs, image), capture(ours, image)
    assert (a.layout, a.parities, b.parities) == (None, None, None)
    assert a.attention is not None
    assert b.attention is not None
    torch.testing.assert_close(a.attention, b.attention, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(a.features, b.features, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(a.logits, b.logits, rtol=1e-3, atol=1e-3)


def test_networks_without_a_class_token_have_no_attention() -> None:
    assert capture(network("resmlp_flop_test_64"), noise(3, 64, 64)).attention is None
    assert capture(network(SMALL, class_token=False, global_pool="avg"), noise(3, 64, 64)).attention is None


def test_hooks_are_gone_afterwards() -> None:
    model = network(SMALL)
    capture(model, noise(3, 64, 64))
    assert not any(layer._forward_hooks for layer in model.modules())


# What is chosen -----------------------------------------------------------------------------------------------------


def test_strong_and_connected_maps_are_chosen_and_none_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = 0.1 * torch.randn(8, 12, 12, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    maps[3] = 2 * torch.exp(-((rows - 3) ** 2 + (columns - 2) ** 2) / 6)
    maps[4] = 1.9 * torch.exp(-((rows - 3) ** 2 + (columns - 2) ** 2) / 6)  # the same once more
    maps[6] = -torch.exp(-((rows - 9) ** 2 + (columns - 8) ** 2) / 6)
    assert chosen(maps, 2, signed=True) == [3, 6]
    assert chosen(maps, 2, signed=False) == [3, 6]
    assert sorted(chosen(maps, 20, signed=False)) == list(range(8))
    symmetric = torch.stack([rows - 5.5, columns - 5.5])  # a mirror with a sign changes only the first
    assert chosen(symmetric, 1, signed=True) == [0]
    assert chosen(symmetric, 1, signed=False) == [1]


def test_numbers_say_how_far_a_network_is_from_the_law() -> None:
    same, other = equivariant().numbers(), ordinary().numbers()
    assert set(same["differences"]) == {"even", "odd", "attention", "logits"}
    assert all(value < 1e-5 for value in same["differences"].values())
    assert set(other["differences"]) == {"plain", "attention", "logits"}
    assert all(value > 1e-2 for value in other["differences"].values())
    assert (same["group"], same["blocks"], same["trained"], other["trained"]) == ("flop", 4, False, None)
    assert [len(names) for names in same["channels"].values()] == [3, 3]
    for row in same["top"]:
        assert row["probability"] == pytest.approx(row["mirrored_probability"], abs=1e-4)
    assert len(same["top"]) == 5
    assert json.loads(json.dumps(same)) == same


def test_the_image_is_shown_as_the_network_gets_it() -> None:
    image = photo()
    made = classifier(network(SMALL))
    view = look(made, image)
    expected = np.asarray(made.preparation.transform(image))
    assert np.abs(view.pixels.astype(int) - expected).max() <= 1
    assert view.pixels.shape == (64, 64, 3)


# The command --------------------------------------------------------------------------------------------------------

run = CliRunner()


def test_the_command_writes_a_picture_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["show", "fashion-mnist:3", "--model", SMALL, "--html", "--json", "--channels", "2"]
    done = run.invoke(app, args)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["files"] == ["fashion-mnist-3-flopping.png", "fashion-mnist-3-flopping.html"]
    assert found["image"] == "fashion-mnist:3"
    assert all(value < 1e-5 for value in found["differences"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(found["files"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = run.invoke(app, args)
    assert again.exit_code == 2
    assert "--force replaces it" in " ".join(re.sub("[│╭╮╰╯─]", "", again.output).split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    forced = run.invoke(
        app, ["show", "fashion-mnist:3", "--model", SMALL, "--html", "--force", "-q", "--channels", "2"]
    )
    assert forced.exit_code == 0
    assert "logits: " in forced.stdout
    assert forced.stderr == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def refused(words: str, *args: str) -> None:
    done = run.invoke(app, ["show", *args])
    assert done.exit_code == 2, done.output
    assert words in " ".join(re.sub("[│╭╮╰╯─]", "", done.output).split()), done.output


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--model", SMALL)
    photo().save(tmp_path / "photo.png")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "cut.png").write_bytes((tmp_path / "photo.png").read_bytes()[:3000])
    refused("'missing.jpg' doesn't exist", "missing.jpg", *small)
    refused("is a folder: name an image file", ".", *small)
    refused("'notes.txt' can't be shown: ", "notes.txt", *small)
    refused("'cut.png' can't be shown: ", "cut.png", *small)
    refused("test images 0 to 1999", "fashion-mnist:2000", *small)
    refused("the network has the blocks 0 to 3", "photo.png", *small, "--block", "4")
    refused("the network has the blocks 0 to 3", "photo.png", *small, "--layer", "-5")
    refused("its name ends with .png", "photo.png", *small, "-o", "picture.jpg")
    refused("there is no folder", "photo.png", *small, "-o", "nowhere/picture.png")
    refused("no model is called", "photo.png", "--model", "E(ViT-X)")
    refused("--average takes the averaged weights of a checkpoint", "photo.png", *small, "--average")
    (tmp_path / "net.py").write_text("from torch import nn\nmade = nn.Flatten()\n")
    refused("Flatten doesn't hand out its features", "photo.png", "--model", "net.py:made")
    refused("'.png' is a suffix without a name", "photo.png", *small, "-o", ".png")
    Path("lost.png").symlink_to("gone/lost.png")
    refused("gone' for 'lost.png'", "photo.png", *small, "-o", "lost.png", "--force")
    Path("loop.png").symlink_to("loop.png")
    refused("'loop.png' is a link that leads to itself", "photo.png", *small, "-o", "loop.png", "--force")
    assert not list(tmp_path.glob("*flopping*"))


def test_without_matplotlib_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pip install 'flopping[plot]'", "fashion-mnist:0", "--model", SMALL)


def test_photos_stand_as_their_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert open_picture(str(tmp_path / "turned.jpg")).size == (20, 30)
