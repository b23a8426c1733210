"""How the networks start: features and logits spread as those of the ordinary network, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.models import ZOO, Backbone, ConvNeXt, ResMlp, VisionTransformer

WITHIN = 0.25

FAMILIES: dict[str, Callable[..., Backbone]] = {
    "ViT": partial(VisionTransformer, img_size=96, embed_dim=192, num_heads=3, depth=6),
    "ViT without layer scale": partial(
        VisionTransformer, img_size=96, embed_dim=192, num_heads=3, depth=6, init_values=None
    ),
    "ResMLP": partial(ResMlp, img_size=96, embed_dim=192, depth=6, init_values=0.1),
    "isotropic": partial(ConvNeXt, depths=(6,), dims=(192,), patch_size=16, init_values=None),
    "hierarchical": partial(ConvNeXt, depths=(1, 2, 2, 1), dims=(32, 64, 128, 256), init_values=1e-6),
}


def images(kind: str, size: int = 96) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "noise":
        return torch.randn(8, 3, size, size, generator=generator)
    smooth = F.interpolate(torch.randn(8, 3, 12, 12, generator=generator), size=size, mode="bicubic")
    return smooth / smooth.std()


@torch.no_grad()
def spread(model: Backbone, x: Tensor) -> list[float]:
    """Standard deviation of the residual stream after every block or stage, and of the logits."""
    _, maps = model.eval().forward_intermediates(x)
    return [m.std().item() for m in (*maps, model(x))]


@pytest.mark.parametrize("kind", ["noise", "smooth"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_start_like_the_baselines(family: str, kind: str) -> None:
    torch.manual_seed(0)
    x = images(kind)
    build = FAMILIES[family]
    ordinary = spread(build(group="trivial"), x)
    for handoffs in (None, {3: "hybrid"}, {3: "invariant"}):
        equivariant = spread(build(group="flop", handoffs=handoffs), x)
        ratios = [e / o for e, o in zip(equivariant, ordinary, strict=True)]
        assert 1 - WITHIN < min(ratios) <= max(ratios) < 1 + WITHIN, handoffs


@pytest.mark.parametrize("family", FAMILIES)
def test_the_papers_initialisation(family: str) -> None:
    """The same deviation whatever the width of a block. With it features don't start like the baseline's."""
    torch.manual_seed(0)
    handoffs = {3: "invariant"}
    scaled, model = (FAMILIES[family](handoffs=handoffs, weight_init=w) for w in ("scaled", "reference"))
    found = {
        (name, i): block.weight.std().item()
        for i, model in enumerate((scaled, model))
        for name, block in model.named_modules()
        if isinstance(block, nn.Linear) and not name.startswith(("patch_embed", "stem"))
    }
    names = {name for name, _ in found}
    assert [found[name, 1] for name in names] == pytest.approx([0.02] * len(names), rel=0.1)
    assert sum(found[name, 0] > 0.025 for name in names) > len(names) / 3
    if family == "hierarchical":
        x, build = images("noise"), FAMILIES[family]
        ratio = spread(build(weight_init="reference"), x)[-1] / spread(build(group="trivial"), x)[-1]
        assert ratio < 1 - WITHIN
    for mix in (layer for layer in model.modules() if isinstance(layer, fnn.TokenMix)):
        assert [weight.std().item() for weight in mix.weight.values()] == pytest.approx([0.02] * 2, rel=0.2)


@pytest.mark.long  # the ordinary networks above start as timm's do
@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("deit3_flop_small_patch16_224", "deit3_small_patch16_224"),
        ("resmlp_flop_s24_224", "resmlp_24_224"),
        ("convnext_flop_tiny", "convnext_tiny"),
    ],
)
def test_residual_stream_starts_like_timms(name: str, baseline: str) -> None:
    torch.manual_seed(0)
    x = images("noise", 224)[:1]
    equivariant, ordinary = spread(timm.create_model(name), x), spread(timm.create_model(baseline), x)
    # timm's heads start at zero (ResMLP), or read a class token that starts at 1e-6 (ViT): those logits are nearly zero
    comparable = len(ordinary) if "convnext" in name else len(ordinary) - 1
    ratios = [e / o for e, o in zip(equivariant[:comparable], ordinary[:comparable], strict=True)]
    assert 1 - WITHIN < min(ratios) <= max(ratios) < 1 + WITHIN


FILLS = ("init_weights", "load with assign, without to_empty", "load", "load with assign")
SMALL = {name: FILLS[:2] for name in ZOO if "test" in name}
"""How each is filled that was built without memory. Hand-offs are filled in all ways, single layers by `load`."""


@pytest.mark.parametrize(("name", "fills"), {**SMALL, "octic": FILLS}.items())
def test_built_without_memory(name: str, fills: tuple[str, ...]) -> None:
    """On the meta device: parameters and constants become those of the constructor."""

    def build() -> Backbone:
        other = {"group": "octic", "handoffs": {1: "flop", 2: "invariant"}} if name == "octic" else {}
        model: Backbone = timm.create_model("deit3_flop_test_patch16_64" if other else name, num_classes=5, **other)
        return model

    torch.manual_seed(3)
    built, state = build(), torch.get_rng_state()
    size = ZOO[name].img_size if name in ZOO else 64
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        logits = built.eval()(x)
    for fill in fills:
        with torch.device("meta"):
            model = build()
        assert all(value.is_meta for value in (*model.parameters(), *model.buffers())), fill
        if "without" not in fill:
            model.to_empty(device="cpu")
            for value in (*model.parameters(), *model.buffers()):
                value.data.fill_(7)
        torch.manual_seed(3)
        if fill == "init_weights":
            model.init_weights()
            assert torch.equal(torch.get_rng_state(), state)
        else:
            model.load_state_dict(built.state_dict(), assign="assign" in fill)
        ours, wanted = ({**m.state_dict(), **dict(m.named_buffers())} for m in (model, built))
        assert list(ours) == list(wanted), fill
        assert all(torch.equal(ours[key], wanted[key]) for key in wanted), fill
        with torch.no_grad():
            assert torch.equal(model.eval()(x), logits), fill
