"""Networks with register tokens, rotary positions, query-key norm, gated MLPs and masks."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
from timm.layers import LayerNorm as TimmLayerNorm
from timm.models.eva import Eva

import flopping
from flopping.groups import grid_groups
from flopping.models import VisionTransformer
from flopping.models.weights import from_timm
from flopping.nn import LayerNorm, RotaryEmbed
from flopping.testing import assert_equivariant, randomize_, relative_error

SMALL = {"img_size": 48, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}
ROPE = {"reg_tokens": 3, "use_abs_pos_emb": False, "use_rot_pos_emb": True}
ALL = {**ROPE, "qk_norm": True, "gated_mlp": True, "act_layer": "silu"}
NAME = "vit_flop_test_patch16_rope_reg4_64"


def build(**kwargs: object) -> VisionTransformer:
    torch.manual_seed(0)
    model = randomize_(VisionTransformer(**{**SMALL, **kwargs}))
    assert isinstance(model, VisionTransformer)
    return model


@pytest.mark.parametrize("group", [name for name, group in grid_groups().items() if group.order > 1])
def test_logits_and_gradients_of_every_group(group: str) -> None:
    """All parts together, on a rectangle where the group keeps rectangles; every parameter has a gradient."""
    size = (40, 40) if grid_groups()[group].swaps_axes else (40, 56)
    model = build(**ALL, group=group, img_size=size)
    assert model.num_prefix_tokens == 4
    image = torch.randn(2, 3, *size)
    assert_equivariant(model, image, group=group)
    model.train()(image).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("size", [(48, 48), (40, 40), (56, 24), (24, 72)], ids=str)
def test_any_size_of_images(size: tuple[int, int]) -> None:
    """Exact to 1e-6 for flop, without a table of positions, and the same as a network of that size."""
    model = build(**ALL, dynamic_img_size=True).eval()
    assert not any(name.startswith("pos_embed") for name, _ in model.named_parameters())
    image = torch.randn(2, 3, *size)
    assert_equivariant(model, image, group=flopping.flop, tol=1e-6)
    fixed = build(**ALL).eval()
    fixed.set_input_size(size)
    with torch.no_grad():
        torch.testing.assert_close(model(image), fixed(image))


def test_training_after_a_test_in_inference_mode() -> None:
    """Tables that were made there serve gradients, too."""
    model = build(**ROPE, dynamic_img_size=True, rope_temperature=50.0)
    image = torch.randn(1, 3, 32, 64)
    with torch.inference_mode():
        model(image)
    model(image).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_octic_networks_take_rectangles_of_any_size() -> None:
    """Learned positions need squares; the angles of places don't."""
    model = build(**ALL, group="octic", dynamic_img_size=True)
    assert_equivariant(model, torch.randn(1, 3, 24, 40), group="octic")


def test_a_hybrid_turns_by_two_tables() -> None:
    model = build(**ROPE, handoffs={1: "hybrid"})
    assert len([layer for layer in model.modules() if isinstance(layer, RotaryEmbed)]) == 2
    assert model(torch.randn(1, 3, 48, 48)).shape == (1, 5)


def test_refusals_show_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"a multiple of 8 .*got 24 in 2 heads"):
        build(**ROPE, embed_dim=24)
    with pytest.raises(ValueError, match=r"got 0 in 2 heads of Layout\(flop, even=64, odd=0\)"):
        build(**ROPE, handoffs={1: "invariant"})
    with pytest.raises(ValueError, match="rope_temperature=50 is for rotary positions"):
        build(rope_temperature=50)
    with pytest.raises(ValueError, match="needs a class token"):
        build(**ROPE, class_token=False)


@pytest.mark.parametrize(
    "args", [{}, {"global_pool": "avg"}, {"use_abs_pos_emb": True, "class_token": False, "global_pool": "avg"}]
)
def test_masks(args: dict[str, object]) -> None:
    """What no token sees has no influence; the last block computes what is read under the mask."""
    model = build(**{**ALL, **args}, dynamic_img_size=True).double().eval()
    image, prefix = torch.randn(2, 3, 48, 48).double(), model.num_prefix_tokens
    tokens = prefix + 36
    seen = torch.ones(6, 6, dtype=torch.bool)
    seen[2:4, 3:5] = False
    mask = torch.cat([torch.ones(prefix, dtype=torch.bool), seen.flatten()]).expand(tokens, tokens)
    other = image.clone()
    other[..., 16:32, 24:40] += 1
    with torch.no_grad():
        logits = model(image, attn_mask=mask)
        assert relative_error(logits, model(image)) > 1e-3
        every = model.forward_head(model.forward_features(image, attn_mask=mask))
        assert relative_error(logits, every) < 1e-12
        last, _ = model.forward_intermediates(image, attn_mask=mask)
        assert relative_error(model.forward_head(last), logits) < 1e-12
        if not args:
            assert relative_error(model(other, attn_mask=mask), logits) < 1e-12
        moved = torch.cat([torch.ones(prefix, dtype=torch.bool), seen.flip(-1).flatten()]).expand(tokens, tokens)
        assert relative_error(model(image.flip(-1), attn_mask=moved), logits) < 1e-12


def test_a_network_without_attention_refuses_a_mask() -> None:
    network = timm.create_model("convnext_flop_test")
    with pytest.raises(ValueError, match=r"ConvNeXt has no attention, got attn_mask of shape \(5, 5\)"):
        network.forward_intermediates(torch.randn(1, 3, 64, 64), attn_mask=torch.ones(5, 5))


@pytest.mark.parametrize("align", [0, 8])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_trivial_group_is_timms_dinov3(qk_norm: bool, align: int) -> None:
    """timm's class with the arguments of its DINOv3 networks, gated; its weights, on two sizes of images.

    With an alignment, as the largest ones have it, timm keeps the gate and what it multiplies in two matrices.
    """
    torch.manual_seed(0)
    theirs = randomize_(
        Eva(
            **SMALL, qkv_bias=False, init_values=1e-5, rope_type="dinov3", rope_temperature=100, rope_rotate_half=True,
            use_rot_pos_emb=True, use_abs_pos_emb=False, num_reg_tokens=3, use_fc_norm=False, swiglu_mlp=True,
            norm_layer=partial(TimmLayerNorm, eps=1e-5), dynamic_img_size=True, global_pool="token", qk_norm=qk_norm,
            swiglu_align_to=align,
        )
    ).eval()  # fmt: skip
    args = {**ALL, "qk_norm": qk_norm, "qkv_bias": False, "norm_eps": 1e-5, "dynamic_img_size": True}
    ours = build(**args, group="trivial").eval()
    assert any(".fc1_g." in key for key in theirs.state_dict()) == bool(align)
    ours.load_state_dict(from_timm(theirs.state_dict(), ours))
    for size in ((48, 48), (40, 64)):
        image = torch.randn(2, 3, *size)
        with torch.no_grad():
            assert relative_error(ours(image), theirs(image)) < 1e-5
            assert relative_error(ours.forward_features(image), theirs.forward_features(image)) < 1e-5


@pytest.mark.long
def test_compiled_at_two_sizes() -> None:
    """No graph breaks; the tables of the second size are computed in its graph."""
    model = build(**ALL, dynamic_img_size=True).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for size in ((48, 48), (40, 64)):
            image = torch.randn(2, 3, *size)
            assert relative_error(compiled(image), model(image)) < 1e-5
        exported = torch.export.export(build(**ALL).eval(), (torch.randn(2, 3, 48, 48),)).module()
        image = torch.randn(2, 3, 48, 48)
        assert relative_error(exported(image), model(image)) < 1e-5


def test_blocks_share_their_tables() -> None:
    model = timm.create_model(NAME)
    assert len({block.attn.rope for block in model.blocks}) == 1
    assert {tuple(buffer.shape) for buffer in model.buffers()} == {(5 + 16, 32)}
    assert not any("rope" in key for key in model.state_dict())


def test_all_norms_count_irreps_alike() -> None:
    """Those of queries and keys, too."""
    model = build(**ALL, group="octic", norm_by_irrep=True)
    norms = [layer for layer in model.modules() if isinstance(layer, LayerNorm)]
    assert len(norms) == 9
    assert all(norm.by_irrep for norm in norms)
