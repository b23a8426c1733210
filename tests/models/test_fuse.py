"""The inference form of networks: the same logits, as equivariant, and fewer operations."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import flopping
from flopping import nn as fnn
from flopping.models import ConvNeXt, ResMlp, ResNet, VisionTransformer
from flopping.testing import assert_equivariant, randomize_, relative_error

SMALL = {"embed_dim": 16, "depth": 2, "num_classes": 5, "img_size": 32, "patch_size": 8}
NETWORKS = {
    **{
        f"vit {group}": partial(VisionTransformer, **SMALL, num_heads=2, group=group)
        for group in ("trivial", "flop", "flipflop", "rot90")
    },
    "vit octic": lambda: VisionTransformer(**{**SMALL, "embed_dim": 32}, num_heads=2, group="octic"),
    **{
        f"vit octic {kind}": lambda kind=kind: VisionTransformer(
            **{**SMALL, "embed_dim": 32}, num_heads=2, group="octic", norm_by_irrep=True, handoffs={1: kind}
        )
        for kind in ("concat", "flop", "power_spectrum", "max_filtering", "polynomial")
    },
    "vit without bias": lambda: VisionTransformer(**SMALL, num_heads=2, qkv_bias=False, init_values=None),
    "vit of any size": lambda: VisionTransformer(**SMALL, num_heads=2, dynamic_img_size=True),
    "vit, more even": lambda: VisionTransformer(**{**SMALL, "embed_dim": 24}, num_heads=4, extra_share=1 / 3),
    "vit hybrid": lambda: VisionTransformer(**SMALL, num_heads=2, handoffs={1: "hybrid"}),
    "vit invariant": lambda: VisionTransformer(**SMALL, num_heads=2, handoffs={1: "invariant"}),
    **{
        f"vit modern {group}": partial(
            VisionTransformer,
            **{**SMALL, "embed_dim": 64},
            num_heads=2,
            group=group,
            reg_tokens=2,
            qk_norm=True,
            use_rot_pos_emb=True,
            gated_mlp=True,
            act_layer="silu",
            extra_share=share,
        )
        for group, share in (("trivial", 0), ("flop", 0.5), ("flipflop", 0), ("octic", 0))
    },
    "vit, mean": lambda: VisionTransformer(**SMALL, num_heads=2, global_pool="avg"),
    **{
        f"resmlp {g}": lambda g=g: ResMlp(**SMALL, init_values=0.1, group=g)
        for g in ("trivial", "flop", "flipflop", "octic")
    },
    "resmlp, quick": lambda: ResMlp(**SMALL, init_values=0.1, act_layer="quick_gelu"),
    "resmlp invariant": lambda: ResMlp(**SMALL, init_values=0.1, handoffs={1: "invariant"}),
    **{
        f"convnext {g}": lambda g=g: ConvNeXt(depths=(1,), dims=(16,), num_classes=5, group=g)
        for g in ("rot90", "octic")
    },
    "convnext": lambda: ConvNeXt(depths=(1, 2), dims=(8, 16), num_classes=5, init_values=0.1),
    "convnext isotropic": lambda: ConvNeXt(depths=(2,), dims=(16,), patch_size=8, num_classes=5, init_values=None),
    **{
        f"resnet {g}": lambda g=g: ResNet(depths=(1, 1), widths=(16, 16), stem_width=16, num_classes=5, group=g)
        for g in ("trivial", "flop", "flipflop", "rot90")
    },
    "resnet deep": lambda: ResNet(
        depths=(1, 1), widths=(8, 8), bottleneck=False, stem_type="deep", stem_width=8, avg_down=True, num_classes=5
    ),
    "resnet max": lambda: ResNet(
        depths=(2, 1),
        widths=(8, 8),
        strides=(2, 2),
        bottleneck=False,
        stem_type="small",
        stem_width=8,
        num_classes=5,
        stride_kernel="max",
    ),
    "resnet invariant": lambda: ResNet(
        depths=(1, 1), widths=(8, 8), stem_width=8, num_classes=5, handoffs={1: "invariant"}
    ),
}
LARGER = {"vit of any size": 40, **{name: 33 for name in NETWORKS if name.startswith("resnet")}, "resnet max": 32}


class Operations(TorchDispatchMode):
    """Counts operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(model: nn.Module, image: torch.Tensor) -> int:
    with torch.no_grad(), Operations() as found:
        model(image)
    return found.number


@pytest.mark.parametrize("name", NETWORKS)
def test_same_logits_with_fewer_operations(name: str) -> None:
    torch.manual_seed(0)
    model = randomize_(NETWORKS[name]()).train()
    size = LARGER.get(name, 32)
    image = torch.randn(2, 3, size, size)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    fused = flopping.fuse(model)
    assert model.training
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items())
    assert not fused.training
    assert not any(p.requires_grad for p in fused.parameters())
    model.eval()
    with torch.no_grad():
        assert relative_error(fused(image), model(image)) < 1e-5
        assert relative_error(fused.forward_features(image), model.forward_features(image)) < 1e-5
        assert relative_error(flopping.fuse(fused)(image), model(image)) < 1e-5
    norms = [key for key, layer in fused.named_modules() if isinstance(layer, fnn.BatchNorm)]
    # those after a maximum stay
    assert norms == (["layer1.blocks.0.bn1", "layer2.blocks.0.bn1"] if name == "resnet max" else [])
    assert operations(fused, image) < operations(model, image) or "trivial" in name
    if not any(word in name for word in ("hybrid", "concat", "trivial")):
        assert_equivariant(fused, image, group="flop" if name == "vit octic flop" else None)


@pytest.mark.parametrize("name", ["vit flop", "vit rot90", "resmlp, quick", "convnext"])
def test_constants_are_where_the_weights_are(name: str) -> None:
    """The meta device stands for any that is not the CPU."""
    with torch.device("meta"):
        model, image = NETWORKS[name](), torch.empty(2, 3, 32, 32)
    assert flopping.fuse(model)(image).is_meta


def test_nothing_is_left_to_fold() -> None:
    fused = flopping.fuse(randomize_(timm.create_model("deit3_flop_test_patch16_64")))
    assert not any(isinstance(layer, fnn.LayerScale) for layer in fused.modules())
    norms = {name: layer for name, layer in fused.named_modules() if isinstance(layer, fnn.LayerNorm)}
    assert [name for name, norm in norms.items() if norm.weight is not None] == ["norm"]
    assert not any(layer.scaled for layer in fused.modules() if isinstance(layer, fnn.Activation))


def test_half_precision_and_export() -> None:
    torch.manual_seed(0)
    model = randomize_(timm.create_model("convnext_flop_test", depths=(1, 1), dims=(8, 16))).eval()
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        half = flopping.fuse(model.to(torch.bfloat16))
        assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
        assert half(image.to(torch.bfloat16)).isfinite().all()
        fused = flopping.fuse(model.float())
        program = torch.export.export(fused, (image,))
        assert relative_error(program.module()(image), model(image)) < 1e-5
