"""timm's weights in our ordinary networks, and our own weights through timm's ways of loading them."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models import adapt_input_conv, save_for_hf
from torch import nn

from flopping.models.backbone import Backbone
from flopping.models.targets import load
from flopping.models.weights import from_timm, timm_name
from flopping.testing import randomize_, relative_error

# our registered name: timm's, of the same sizes once the group is trivial
REGISTERED = {
    "deit3_flop_small_patch16_224": "deit3_small_patch16_224",
    "resmlp_flop_t12_224": "resmlp_12_224",
    "convnext_flop_tiny": "convnext_tiny",
    "resnet_flop_18": "resnet18",
    "resnet_flop_50": "resnet50",
    "resnet_flop_50d": "resnet50d",
}
NAMES = [pytest.param(name, marks=pytest.mark.long if name == "resnet_flop_50" else ()) for name in REGISTERED]
"""The deep stem is the only difference of the last two."""
FREE = ("convnext", "resnet")
"""Networks that take images of any size."""
STAGES = (1, 1, 1, 1)
SHALLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deit3": ({"depth": 2}, {"depth": 2}),
    "resmlp": ({}, {}),  # timm's takes no other depth
    "convnext": ({"depths": STAGES}, {"depths": STAGES}),
    "resnet": ({"layers": STAGES}, {"depths": STAGES}),
}
"""Arguments of timm's networks, and of ours, that leave few blocks."""


@cache
def timms(name: str) -> nn.Module:
    size = {} if name.startswith(FREE) else {"img_size": 64}
    family = next(family for family in SHALLOW if name.startswith(family))
    return randomize_(timm.create_model(name, **size, **SHALLOW[family][0])).eval()


def same(got: nn.Module, expected: nn.Module, size: int = 64) -> None:
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        assert relative_error(got.eval()(x), expected(x)) < 1e-5


def timm_file(path: Path, name: str) -> tuple[dict[str, Any], nn.Module]:
    """What makes timm load the weights of one of its networks, and the network."""
    model = deepcopy(timms(name))
    save_file(model.state_dict(), path / "model.safetensors")
    return {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path / "model.safetensors")}}, model


def ordinary(name: str, **args: Any) -> Backbone:
    size = {} if name.startswith(FREE) else {"img_size": 64}
    act = {"act_layer": "gelu"} if name.startswith("resmlp") else {}
    shallow = SHALLOW[name.partition("_")[0]][1]
    model: Backbone = timm.create_model(name, **{"group": "trivial", **size, **act, **shallow, **args})
    return model


@pytest.mark.parametrize("name", REGISTERED)
def test_an_ordinary_network_has_timms_parameters(name: str) -> None:
    """At its full depth: names and sizes."""
    act = {"act_layer": "gelu"} if name.startswith("resmlp") else {}
    with torch.device("meta"):
        theirs, ours = timm.create_model(REGISTERED[name]), timm.create_model(name, group="trivial", **act)
    weights = {key: weight.numel() for key, weight in theirs.state_dict().items()}
    assert {timm_name(key, ours): weight.numel() for key, weight in ours.state_dict().items()} == weights


@pytest.mark.parametrize("name", NAMES)
def test_timms_weights_in_an_ordinary_network(name: str, tmp_path: Path) -> None:
    """Every parameter of timm's has one of ours; by hand, and through timm."""
    pretrained, theirs = timm_file(tmp_path, REGISTERED[name])
    ours, weights = ordinary(name), theirs.state_dict()
    assert sorted(timm_name(key, ours) for key in ours.state_dict()) == sorted(weights)
    ours.load_state_dict(from_timm(weights, ours))
    same(ours, theirs)
    same(ordinary(name, **pretrained), theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_classes", [5, 0])
def test_grey_images_and_another_classifier(name: str, num_classes: int, tmp_path: Path) -> None:
    pretrained, theirs = timm_file(tmp_path, REGISTERED[name])
    conv = next(layer for layer in theirs.modules() if isinstance(layer, nn.Conv2d))
    conv.weight = nn.Parameter(adapt_input_conv(1, conv.weight))
    ours = ordinary(name, in_chans=1, num_classes=num_classes, **pretrained).eval()
    x = torch.randn(2, 1, 64, 64)
    with torch.no_grad():
        assert relative_error(ours.forward_features(x), theirs.forward_features(x)) < 1e-5
        assert ours(x).shape == (2, num_classes or ours.num_features)


def test_other_sizes_of_images(tmp_path: Path) -> None:
    pretrained, theirs = timm_file(tmp_path, "deit3_small_patch16_224")
    theirs.pos_embed = nn.Parameter(resample_abs_pos_embed(theirs.pos_embed, (6, 6), num_prefix_tokens=0))
    theirs.patch_embed.set_input_size(96)
    same(ordinary("deit3_flop_small_patch16_224", img_size=96, **pretrained), theirs, size=96)


SMALL = {
    "deit3_flop_test_patch16_64": {},
    "deit3_flop_hybrid_test_patch16_64": {"handoffs": {1: "abs"}},
    "deit3_flop_invariant_test_patch16_64": {"qkv_bias": False, "extra_share": 0.5},
    "resmlp_flop_test_64": {"depth": 2},
    "convnext_flop_test": {"group": "flipflop", "dims": (16, 32, 32, 64), "depths": (1, 1, 1, 1)},
    "convnext_flop_iso_test": {"handoffs": {1: "hybrid"}},
    "resnet_flop_test": {"group": "flipflop"},
    "resnet_flop_testd": {"handoffs": {2: "abs"}, "in_chans": 3},
}


def stored(path: Path, name: str, args: dict[str, Any]) -> tuple[str, nn.Module]:
    """One of our networks in a folder, as timm writes it."""
    model = randomize_(timm.create_model(name, **args)).eval()
    save_for_hf(model, str(path / "net"), model_args=args, safe_serialization=True)
    return f"local-dir:{path / 'net'}", model


def test_arguments_of_older_versions(tmp_path: Path) -> None:
    target, model = stored(tmp_path, "deit3_flop_test_patch16_64", {"invariant_share": 0.5})
    current = timm.create_model("deit3_flop_test_patch16_64", extra_share=0.5)
    for found in (model, timm.create_model(target, pretrained=True), load(target)):
        assert found.layouts == current.layouts
    with pytest.raises(ValueError, match="invariant_share is the old name of extra_share"):
        timm.create_model("deit3_flop_test_patch16_64", invariant_share=0.5, extra_share=0.5)


@pytest.mark.parametrize("name", SMALL)
def test_our_own_weights_by_folder(name: str, tmp_path: Path) -> None:
    """Image channels that repeat the old ones' mean give what grey images gave; the classifier is new."""
    where, model = stored(tmp_path, name, SMALL[name])
    size = 65 if name.startswith("resnet") else 64
    same(timm.create_model(where, pretrained=True), model, size)
    grey = timm.create_model(where, pretrained=True, in_chans=1, num_classes=5).eval()
    x = torch.randn(2, 1, size, size)
    with torch.no_grad():
        got, expected = grey.forward_features(x), model.forward_features(x.expand(-1, 3, -1, -1))
        assert relative_error(got, expected) < 1e-5
        assert grey(x).shape == (2, 5)


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("deit3")])
def test_our_own_weights_at_another_size(name: str, tmp_path: Path) -> None:
    where, model = stored(tmp_path, name, SMALL[name])
    model.set_input_size(96)
    same(timm.create_model(where, pretrained=True, img_size=96), model, size=96)


REFUSED = {
    r"lack .* keys \(blocks\.0\..*\) and have also .* keys \(blocks\.0\.": {"group": "flop"},
    r"have also 14 keys \(blocks\.1\.attn\.proj\.bias": {"depth": 1},
}


@pytest.mark.parametrize("got", REFUSED)
def test_weights_of_another_network_are_refused(got: str, tmp_path: Path) -> None:
    pretrained, _ = timm_file(tmp_path, "deit3_small_patch16_224")
    with pytest.raises(ValueError, match=got):
        ordinary("deit3_flop_small_patch16_224", **pretrained, **REFUSED[got])


def test_weights_of_other_sizes_are_refused(tmp_path: Path) -> None:
    weights = timms("resmlp_12_224").state_dict()
    with pytest.raises(ValueError, match=r"stem\.proj\.even\.weight \(384, 768\), not \(384, 256"):
        from_timm(weights, ordinary("resmlp_flop_t12_224", in_chans=1))
    del weights["norm.alpha"]
    with pytest.raises(ValueError, match=r"lack 1 key \(norm\.alpha\)"):
        from_timm(weights, ordinary("resmlp_flop_t12_224"))
    where, _ = stored(tmp_path, "deit3_flop_test_patch16_64", {"img_size": (32, 96)})
    with pytest.raises(ValueError, match="belong to no square grid"):
        timm.create_model(where, pretrained=True, img_size=64)
