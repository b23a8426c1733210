"""Checkpoints of the reference code: what is told from keys and shapes, what is asked for, what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from support.octic_format import octic_vit
from support.reference_format import to_reference
from torch import Tensor

from flopping import load_reference
from flopping.checkpoints import translate
from flopping.errors import UsageError
from flopping.models import ZOO, ConvNeXt, Entry, ResMlp, ResNet, VisionTransformer
from flopping.models.backbone import Backbone
from flopping.testing import randomize_

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
RESMLP = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_classes": 3, "act_layer": "quick_gelu"}
TWO: dict[str, Any] = {"num_heads": 2}
ABS = {**TWO, "handoff": "abs"}

# Networks that differ from the paper's in all that shapes can tell, and the arguments of `load_reference` they need.
NETWORKS: dict[str, tuple[Callable[[], Backbone], dict[str, Any]]] = {
    "vit": (lambda: VisionTransformer(**VIT), TWO),
    "vit, tall image of a square number": (
        lambda: VisionTransformer(**VIT | {"img_size": (64, 16)}),
        TWO | {"img_size": (64, 16)},
    ),
    "vit, rectangular patch": (lambda: VisionTransformer(**VIT | {"patch_size": (16, 8), "img_size": (64, 32)}), TWO),
    "vit, odd height": (
        lambda: VisionTransformer(**VIT | {"img_size": (24, 32)}),
        TWO | {"img_size": (24, 32)},
    ),
    "vit, no qkv bias": (lambda: VisionTransformer(**VIT, qkv_bias=False), TWO),
    "vit, no scale": (lambda: VisionTransformer(**VIT, init_values=None), TWO),
    "vit, grey, narrow": (lambda: VisionTransformer(**VIT, in_chans=1, mlp_ratio=2.5), TWO),
    "vit, abs": (lambda: VisionTransformer(**VIT, readout="abs"), TWO),
    "vit, late hybrid": (lambda: VisionTransformer(**VIT, handoffs={3: "hybrid"}), TWO | {"handoff": "hybrid"}),
    "vit, early abs": (
        lambda: VisionTransformer(**VIT, handoffs={1: "abs"}, qkv_bias=False, init_values=None),
        TWO | {"handoff": "abs"},
    ),
    "resmlp": (lambda: ResMlp(**RESMLP, mlp_ratio=3), {}),
    "resmlp, wide image": (lambda: ResMlp(**RESMLP | {"img_size": (16, 48)}), {"img_size": (16, 48)}),
    "convnext": (lambda: ConvNeXt(depths=(1, 2), dims=(8, 12), num_classes=3, kernel_size=5, mlp_ratio=2), {}),
    "convnext, no scale": (lambda: ConvNeXt(depths=(1, 1), dims=(8, 16), num_classes=3, init_values=None), {}),
    "convnext, isotropic": (lambda: ConvNeXt(depths=(2,), dims=(16,), num_classes=3, patch_size=(8, 4)), {}),
}


def without_unused_shifts(model: Backbone) -> Backbone:
    """ResMLP's shifts before its linear layers exist in the reference code, and are never applied."""
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and name.endswith(".beta"):
            torch.nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_networks_are_told_from_keys_and_shapes(name: str) -> None:
    make, hints = NETWORKS[name]
    model = without_unused_shifts(randomize_(make())).eval()
    loaded = load_reference(to_reference(model), **hints).eval()
    size = getattr(model.stem if isinstance(model, ResMlp) else getattr(model, "patch_embed", None), "img_size", None)
    x = torch.randn(2, model.in_chans, *(size or (32, 40)))
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())


def paper_networks() -> list[str]:
    """The reference code has no ResNets and no rotary positions."""
    ours = [e for e in ZOO.values() if e.model is not ResNet and "use_rot_pos_emb" not in e.args]
    return [e.name for e in ours if "(" in (e.paper or "") and "group" not in e.args]


def on_meta(name: str, **args: Any) -> Backbone:
    model: Backbone = timm.model_entrypoint(name)(device="meta", **args)
    return model


@pytest.mark.parametrize("name", paper_networks())
def test_the_networks_of_the_paper_need_no_arguments(name: str) -> None:
    """They are found by name, with another head too; I(X) of the reference code is E(X) with a hand-off by abs."""
    paper, args, hints = ZOO[name].paper, {}, {}
    if "_invariant_" in name:
        depth = ZOO[name].args["depth"]
        name, args, hints = name.replace("invariant_", ""), {"handoffs": {depth // 2: "abs"}}, {"handoff": "abs"}
    elif "_hybrid_" in name:
        hints = {"handoff": "hybrid"}
    model = on_meta(name, **args, num_classes=7)
    found = translate(to_reference(model), **hints)
    assert (found.name, found.args, found.paper) == (name, args | {"num_classes": 7}, paper)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in found.weights.items()} == shapes


OCTIC = [entry for entry in ZOO.values() if "norm_by_irrep" in entry.args]


@pytest.mark.parametrize("entry", OCTIC, ids=lambda entry: entry.name)
def test_octic_networks_are_told_from_keys_and_shapes(entry: Entry) -> None:
    """Those that were published need no arguments; the heads of others are no known ones."""
    width, depth, heads, patch = (entry.args[key] for key in ("embed_dim", "depth", "num_heads", "patch_size"))
    (handoff,) = entry.args["handoffs"].values()
    invariants, classes = None if handoff == "concat" else handoff, entry.args.get("num_classes", 1000)
    state = octic_vit(width, depth, patch, entry.img_size // patch, invariants, classes, "meta")
    found = translate(state, **({} if entry.paper else {"num_heads": heads}))
    assert (found.name, found.args, found.paper) == (entry.name, {}, entry.paper)
    shapes = {key: value.shape for key, value in on_meta(entry.name).state_dict().items()}
    assert {key: value.shape for key, value in found.weights.items()} == shapes


def octic(invariants: str | None = "power_spectrum", **changes: Tensor | None) -> dict[str, Tensor]:
    return changed(octic_vit(16, 2, 4, 4, invariants, classes=3), **changes)


def test_register_tokens_of_octic_networks() -> None:
    """They lie as class tokens do; no golden file has them."""
    registers = torch.randn(1, 4, 2)
    model = translate(octic(register_tokens__0=registers, register_tokens__1=torch.zeros(1, 4, 2)), **TWO).build()
    assert torch.equal(model.get_parameter("reg_token.token"), registers[0])


def test_max_filtering_is_an_argument() -> None:
    found = translate(octic("max_filtering"), **TWO)
    assert found.args["handoffs"] == {1: "max_filtering"}
    assert "octic_invariant" in found.name
    assert found.build().handoffs["1"].invariants.out_layout.dim == 32


def vit(**args: Any) -> dict[str, Tensor]:
    return to_reference(VisionTransformer(**VIT | args))


def changed(weights: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    """With other values, where `__` stands for a dot; None takes one out."""
    new = weights | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in new.items() if value is not None}


def resmlp(**changes: Tensor | None) -> dict[str, Tensor]:
    return changed(to_reference(ResMlp(**RESMLP)), **changes)


def convnext(**changes: Tensor | None) -> dict[str, Tensor]:
    return changed(to_reference(ConvNeXt(depths=(1, 1), dims=(8, 16))), **changes)


def test_shifts_that_the_reference_code_never_applies() -> None:
    stored = {f"blocks__0__norm1__beta_{name}": torch.ones(8) for name in ("sym", "asym")}
    assert not load_reference(resmlp(**stored)).get_parameter("blocks.0.norm1.beta").any()


ONE = torch.ones(1)
REFUSED: dict[str, tuple[Callable[[], dict[str, Tensor]], dict[str, Any], str]] = {
    "missing": (lambda: changed(vit(), blocks__1__norm1__scaling__beta=None), TWO, r"blocks\.1\.norm1\.bias"),
    "missing, of the architecture": (lambda: changed(vit(), head__weight=None), TWO, r"lacks head\.weight"),
    "extra": (lambda: convnext(stages__0__0__extra=ONE, blocks__x=ONE), {}, r"stages\.0\.0\.extra, stages\.0\.x"),
    "renamed": (lambda: changed(vit(), pos_embed__1=None, pos_embed__2=ONE), TWO, r"pos_embed\.2"),
    "shape": (
        lambda: resmlp(blocks__1__mlp__fc2__lin_asym__weight=torch.ones(8, 30)),
        {},
        r"blocks\.1\.mlp\.fc2\.lin_asym\.weight gives .*fc2\.odd\.weight \(8, 30\), not \(8, 32\)",
    ),
    "filters on their side": (
        lambda: convnext(stages__0__0__dwconv__sym_to_asym__weight=torch.ones(2, 1, 3, 7)),
        {},
        r"stages\.0\.0\.dwconv\.sym_to_asym\.weight \(2, 1, 3, 7\) can't become .*even_to_odd",
    ),
    "patches on their side": (
        lambda: changed(vit(), patch_embed__proj_asym__weight=torch.ones(8, 3, 4, 8)),
        TWO,
        r"\(8, 3, 8, 4\) and \(8, 3, 4, 8\)",
    ),
    "gap": (lambda: {k.replace("blocks.1.", "blocks.5."): v for k, v in resmlp().items()}, {}, r"got \[0, 5\]"),
    "ordinary before equivariant": (lambda: changed(vit(), blocks__1__attn__qkv__weight=ONE), ABS, r"blocks \[1\]"),
    "both in one block": (lambda: changed(vit(), blocks__3__attn__qkv__weight=ONE), ABS, r"blocks\.3\.attn\.qkv"),
    "ordinary vit": (lambda: timm.create_model("test_vit").state_dict(), {}, r"an ordinary one"),
    "other network": (lambda: {"conv1.weight": ONE, "bn1.weight": ONE}, {}, r"its keys are bn1\.weight, conv1\.weight"),
    "ours": (lambda: VisionTransformer(**VIT).state_dict(), {}, r"weights of this library already"),
    "ours, octic": (
        lambda: VisionTransformer(**VIT, group="octic").state_dict(),
        {},
        r"weights of this library already",
    ),
    "no heads": (vit, {}, r"width of 16 .*num_heads"),
    "no handoff": (lambda: vit(handoffs={2: "abs"}), TWO, r"begin at 2: handoff is 'hybrid' or 'abs', got None"),
    "wrong handoff": (lambda: vit(handoffs={2: "abs"}), TWO | {"handoff": "invariant"}, r"got 'invariant'"),
    "useless handoff": (vit, ABS, r"no handoff, got 'abs'"),
    "handoff of a resmlp": (resmlp, {"handoff": "abs"}, r"ResMlp .* no handoff"),
    "no size": (lambda: vit(img_size=(16, 48)), TWO, r"12 tokens of 8 x 8 pixels"),
    "size transposed": (lambda: vit(img_size=(16, 48)), TWO | {"img_size": (48, 16)}, r"12 tokens .* 48 x 16"),
    "size of any image": (convnext, {"img_size": 36}, r"ConvNeXt .* no img_size, got 36"),
    "heads that don't divide": (vit, {"num_heads": 3}, r"3 heads do not divide"),
    "odd class token": (lambda: changed(vit(), cls_token__1=torch.full((1, 1, 8), 1e-9)), TWO, r"cls_token\.1 .*zero"),
    "octic, no heads": (octic, {}, r"width of 16 .*num_heads"),
    "octic, class token": (lambda: octic(cls_token__4=torch.ones(1, 1, 2, 4)), TWO, r"cls_token\.4 .*zero"),
    "octic, invariants": (lambda: octic(invariant_proj__weight=torch.ones(16, 14)), TWO, r"12 for power_.* got 14"),
    "octic, references": (
        lambda: octic("max_filtering", invariantization__references=torch.ones(32, 16)),
        TWO,
        r"\(count, copies, 8\), got \(32, 16\)",
    ),
    "octic, other action": (
        lambda: octic("max_filtering", invariantization__rotation_action=torch.eye(8)),
        TWO,
        r"rotation_action .* what rot90 does",
    ),
    "octic all the way": (
        lambda: changed(octic(None), blocks__1__attn__qkv__weight=None),
        TWO,
        r"2 octic blocks",
    ),
    "octic, strange": (lambda: octic(blocks__0__attn__bias=ONE), TWO, r"blocks\.0\.attn\.bias"),
    "octic, missing": (lambda: octic(pos_embed__5=None), TWO, r"pos_embed\.4 gives .*weight\.E \(4, 2\), not \(4, 4\)"),
    "octic, handoff": (octic, ABS, r"no handoff, got 'abs'"),
    "middle of an antisymmetric filter": (
        lambda: convnext(stages__1__0__dwconv__asym_to_sym__zero_center=torch.ones(4, 1, 7, 1)),
        {},
        r"stages\.1\.0\.dwconv\.asym_to_sym\.zero_center .* must be zero",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, hints, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        load_reference(make(), **hints)
