"""`flopping show`: what is captured and chosen, what the command writes, and what it refuses."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from support.views import FAMILIES, SMALL, classifier, equivariant, network, ordinary, photo
from torch import Tensor, nn
from typer.testing import CliRunner

from flopping import Layout
from flopping.lab.capture import capture, choose_channels, parities
from flopping.lab.show import capture_view
from flopping.models import VisionTransformer
from flopping.models.weights import checkpoint_filter_fn
from flopping.testing import randomize_
from flopping_cli import app


def noise(*shape: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(3))


def vit(**args: object) -> nn.Module:
    return randomize_(VisionTransformer(64, 16, embed_dim=64, depth=2, num_heads=2, num_classes=7, **args)).eval()


# what is captured


def assert_law(features: Tensor, layout: Layout | None) -> Tensor:
    """Maps of the mirror image are mirrored maps, with the sign of their parity; the parities."""
    signs = parities(layout)
    assert signs is not None
    image, mirrored = features / features.abs().max()
    assert image.abs().max() > 0.1
    torch.testing.assert_close(mirrored, signs[:, None, None] * image.flip(-1), rtol=0, atol=1e-5)
    return signs


@pytest.mark.parametrize("name", FAMILIES)
def test_even_maps_are_mirrored_and_odd_ones_change_their_sign(name: str) -> None:
    model = network(name)
    for block in range(len(model.feature_info)):
        found = capture(model, noise(3, 64, 64), block)
        half = found.features.shape[1] // 2
        assert assert_law(found.features, found.layout).tolist() == [1.0] * half + [-1.0] * half
    assert found.logits.shape == (2, 7)
    torch.testing.assert_close(found.logits[1], found.logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (network(SMALL, img_size=(32, 48), patch_size=(8, 16)), (3, 32, 48)),
        (network("convnext_flop_iso_test", in_chans=1), (1, 48, 80)),
        (vit(group="flipflop"), (3, 64, 64)),
        (vit(group="octic"), (3, 64, 64)),
    ],
    ids=["odd grid", "grey", "flipflop", "octic"],
)
def test_other_grids_channels_and_groups(model: nn.Module, size: tuple[int, ...]) -> None:
    found = capture(model, noise(*size))
    assert assert_law(found.features, found.layout).sum() == 0
    if found.attention is not None:
        assert found.attention.shape[1:] == found.features.shape[2:]
        torch.testing.assert_close(found.attention[1], found.attention[0].flip(-1), rtol=1e-4, atol=1e-6)


def test_hybrids_are_shown_where_they_have_odd_channels() -> None:
    hybrid = network("deit3_flop_hybrid_test_patch16_64")
    found = capture(hybrid, noise(3, 64, 64))
    assert_law(found.features, found.layout)
    assert found.attention_layer == "blocks.3"  # which is ordinary, so the class token looks elsewhere
    assert found.attention is not None
    assert (found.attention[1] - found.attention[0].flip(-1)).abs().max() > 1e-3
    assert parities(capture(hybrid, noise(3, 64, 64), 3).layout) is None
    invariant = network("deit3_flop_invariant_test_patch16_64")
    assert capture(invariant, noise(3, 64, 64)).block == 0
    last = capture(invariant, noise(3, 64, 64), -1)
    assert (assert_law(last.features, last.layout) == 1).all()


def test_attention_is_the_softmax_of_queries_and_keys() -> None:
    model = network(SMALL)
    taken: list[tuple[Tensor, Tensor]] = []
    handle = model.blocks[2].attn.register_forward_hook(lambda layer, args, out: taken.append(args[0]))
    found = capture(model, noise(3, 64, 64), 2)
    handle.remove()
    qkv = model.blocks[2].attn.qkv.double()(tuple(part.double() for part in taken[0]))
    heads = []
    for head in range(2):  # by hand: even and odd of one head side by side, 16 of each
        q, k = (torch.cat([part[..., 32 * which + 16 * head :][..., :16] for part in qkv], -1) for which in range(2))
        heads.append((torch.einsum("bnd,bmd->bnm", q, k) / 32**0.5).softmax(-1))
    assert found.attention is not None
    expected = torch.stack(heads).mean(0)[:, 0, 1:]
    torch.testing.assert_close(found.attention.flatten(1).double(), expected, rtol=1e-4, atol=1e-6)
    assert not any(layer._forward_hooks for layer in model.modules()), "hooks are left behind"


def test_attention_of_timms_network_is_that_of_ours() -> None:
    args = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 7, "init_values": 1e-4}
    theirs = randomize_(timm.create_model("deit3_small_patch16_224", **args)).eval()
    ours = VisionTransformer(patch_size=16, group="trivial", **args).eval()
    ours.load_state_dict(checkpoint_filter_fn(theirs.state_dict(), ours))
    a, b = capture(theirs, noise(3, 64, 64)), capture(ours, noise(3, 64, 64))
    assert (a.layout, parities(b.layout)) == (None, None)
    torch.testing.assert_close(a.attention, b.attention, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(a.features, b.features, rtol=1e-3, atol=1e-3)


def test_networks_without_a_class_token_have_no_attention() -> None:
    assert capture(network("resmlp_flop_test_64"), noise(3, 64, 64)).attention is None
    assert capture(network(SMALL, class_token=False, global_pool="avg"), noise(3, 64, 64)).attention is None


# what is chosen


def test_strong_and_connected_maps_are_chosen_and_none_twice() -> None:
    maps = 0.1 * torch.randn(8, 12, 12, generator=torch.Generator().manual_seed(0))
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    maps[3] = 2 * torch.exp(-((rows - 3) ** 2 + (columns - 2) ** 2) / 6)
    maps[4] = 0.95 * maps[3]  # the same once more
    maps[6] = -torch.exp(-((rows - 9) ** 2 + (columns - 8) ** 2) / 6)
    for signed in (True, False):
        assert choose_channels(maps, 2, signed) == [3, 6]
    assert sorted(choose_channels(maps, 20, signed=False)) == list(range(8))
    symmetric = torch.stack([rows - 5.5, columns - 5.5])  # a mirror with a sign changes only the first
    assert [choose_channels(symmetric, 1, signed) for signed in (True, False)] == [[0], [1]]
    assert choose_channels(torch.ones(2, 1, 1), 1, signed=False) in ([0], [1])


def test_numbers_say_how_far_a_network_is_from_the_law() -> None:
    same, other = equivariant().numbers, ordinary().numbers
    assert set(same["differences"]) == {"even", "odd", "attention", "logits"}
    assert all(value < 1e-5 for value in same["differences"].values())
    assert set(other["differences"]) == {"plain", "attention", "logits"}
    assert all(value > 1e-2 for value in other["differences"].values())
    assert (same["group"], same["trained"], other["trained"]) == ("flop", False, None)
    assert [len(names) for names in same["channels"].values()] == [3, 3]
    assert len(same["top"]) == 5
    for row in same["top"]:
        assert row["probability"] == pytest.approx(row["mirrored_probability"], abs=1e-4)
    assert json.loads(json.dumps(same)) == same


def test_the_image_is_shown_as_the_network_gets_it() -> None:
    made = classifier(network(SMALL))
    panel = capture_view(made, photo()).sections[0].panels[0]
    expected = np.asarray(made.preparation.transform(photo()))
    assert panel.image is not None
    assert np.abs(panel.image.astype(int) - expected).max() <= 1
    assert np.array_equal(panel.image, panel.mirrored[:, ::-1])


# the command


def show(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["show", *args], env={"COLUMNS": "400"})
    return done.exit_code, done.stdout, done.stderr


def test_the_command_writes_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["fashion-mnist:3", "--model", SMALL, "--channels", "2"]
    code, out, err = show(*args, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["file"] == "fashion-mnist-3-flopping.png"
    assert found["image"] == "fashion-mnist:3"
    assert all(value < 1e-5 for value in found["differences"].values())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {found["file"]}
    code, _, err = show(*args)
    assert code == 2
    assert "--force" in err
    code, out, err = show(*args, "--force", "-q")
    assert (code, err) == (0, "")
    assert "logits: " in out
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["missing.jpg"], "'missing.jpg'"),
        (["."], "'.' is no file"),
        (["pipe.png"], "'pipe.png' is no file"),
        (["notes.txt"], "'notes.txt' can't be shown"),
        ([f"fashion-mnist:{'9' * 5000}"], "0 to 1999"),
        (["photo.png", "--block", "-" + "9" * 30], "0 to 3"),
        (["photo.png", "-o", "picture.jpg"], ".png"),
        (["photo.png", "-o", "./photo.png", "--force"], "the image itself"),
        (["photo.png", "-o", "nowhere/picture.png"], "nowhere"),
        (["photo.png", "--model", "net.py:made"], "Flatten"),
    ],
)
def test_refusals(args: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo().save("photo.png")
    os.mkfifo("pipe.png")
    Path("notes.txt").write_text("no image")
    Path("net.py").write_text("from torch import nn\nmade = nn.Flatten()\n")
    code, out, err = show("--model", SMALL, *args)
    assert (code, out) == (2, "")
    assert word in err
    assert not list(tmp_path.glob("*flopping*"))
