"""Our networks in the format of the reference code, written from its description: an oracle for the way in."""

import re
from math import sqrt

import torch
from torch import Tensor

from flopping.models import ConvNeXt, ResMlp, VisionTransformer
from flopping.models.backbone import Backbone
from flopping.nn import PatchEmbed

# ours -> theirs, applied one after the other; `asym` and `sym` come last
COMMON = [
    (r"\.gamma\.(even|odd)$", r".alpha_\1"),
    (r"(norm\d?|stem\.1|downsample\.0)\.weight\.(even|odd)$", r"\1.scaling.alpha_\2"),
    (r"(norm\d?|stem\.1|downsample\.0)\.bias$", r"\1.scaling.beta"),
]
PARITY = [(r"odd", "asym"), (r"even", "sym")]
RENAMES = {
    VisionTransformer: [
        *COMMON,
        (r"(qkv|attn\.proj|fc1|fc2)\.(even|odd)\.(weight|bias)$", r"\1.linear_\2.\3"),
        (r"\bls(\d)\.", r"gamma_\1."),
        (r"patch_embed\.proj\.(\w+)\.", r"patch_embed.proj_\1."),
    ],
    ResMlp: [
        (r"\bls(\d)\.gamma\.(\w+)", r"gamma_\1.alpha_\2"),
        (r"^norm\.alpha\.even$", "norm.alpha"),
        (r"norm(\d)\.alpha\.(\w+)$", r"norm\1.alpha_\2"),
        (r"norm(\d)\.beta$", r"norm\1.beta_even"),
        (r"linear_tokens\.(\w+)\.(\w+)$", r"attn.lin_\2.\1"),
        (r"mlp_channels\.shift(\d)\.bias\.odd$", r"mlp.fc\1.lin_odd.bias"),
        (r"mlp_channels\.fc(\d)\.(\w+)\.", r"mlp.fc\1.lin_\2."),
        (r"^stem\.proj\.(\w+)\.", r"patch_embed.proj_\1."),
    ],
    ConvNeXt: [
        (r"^head\.norm", "norm_of_head"),
        *COMMON,
        (r"^norm_of_head", "norm"),
        (r"mlp\.fc(\d)\.(even|odd)", r"pwconv\1.linear_\2"),
        (r"conv_dw\.weight\.(\w+)$", r"dwconv.\1.weight"),
        (r"^head\.fc", "head"),
        (r"^stem\.0\.proj\.(\w+)\.", r"downsample_layers.0.0.proj_\1."),
        (r"^stem\.1\.", "downsample_layers.0.1."),
        (r"^stages\.(\d+)\.downsample\.0\.", r"downsample_layers.\1.0."),
        (r"^stages\.(\d+)\.blocks\.", r"stages.\1."),
    ],
}
ISOTROPIC = [(r"^downsample_layers\.0\.0\.", "stem."), (r"^stages\.0\.", "blocks.")]


def to_reference(model: Backbone) -> dict[str, Tensor]:
    """The state dict that the reference code would have saved for this network."""
    source = {key: value.detach().clone() for key, value in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    for write in (_patches, _transformer, _tokens, _filters, _downsampling):
        write(model, source, found)  # each takes what it writes out of `source`
    isotropic = ISOTROPIC if isinstance(model, ConvNeXt) and model.isotropic else []
    for key, value in source.items():
        name = _ordinary(key, model) or _renamed(key, [*RENAMES[type(model)], *isotropic, *PARITY])
        found[name] = value[..., None, None] if "pwconv" in name and name.endswith("weight") else value
    return found


def _renamed(key: str, renames: list[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        key = re.sub(pattern, replacement, key)
    return key


def _ordinary(key: str, model: Backbone) -> str | None:
    """The name in a network's ordinary part, which follows a hand-off."""
    handoffs = [int(block) for block in getattr(model, "handoffs", {})]
    block = re.match(r"blocks\.(\d+)\.", key)
    if not handoffs or (int(block[1]) < handoffs[0] if block else not key.startswith("norm.")):
        return None
    return re.sub(r"\.even", "", re.sub(r"ls(\d)\.gamma", r"gamma_\1", key))


def _patches(model: Backbone, source: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    (embed,) = [layer for layer in model.modules() if isinstance(layer, PatchEmbed)]
    (name,) = [name for name, layer in model.named_modules() if layer is embed]
    height, width = embed.patch_size
    theirs = 1.0 if isinstance(model, ResMlp) else sqrt(2)
    for irrep in ("even", "odd"):
        key = f"{name}.proj.{irrep}.weight"
        source[key] = source[key].unflatten(1, (embed.in_chans, height, width // 2)) * (theirs / sqrt(2))
    source[f"{name}.proj.even.bias"] *= theirs


def _order(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    index = torch.arange(grid[0] * grid[1]).view(grid)
    half = grid[1] // 2
    return index[:, :half].flatten(), index.flip(1)[:, :half].flatten()


def _transformer(model: Backbone, source: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    if not isinstance(model, VisionTransformer):
        return
    token = source.pop("cls_token.token")[None, None]
    found |= {"cls_token.0": token, "cls_token.1": torch.zeros(token.shape)}
    for i, irrep in enumerate(("even", "odd")):
        found[f"pos_embed.{i}"] = source.pop(f"pos_embed.weight.{irrep}")[None]
    if "norm.weight.odd" not in source and not model.handoffs:
        found["norm.scaling.alpha_asym"] = torch.ones(model.embed_dim // 2)  # stored, and no logit depends on it
    found["patch_embed.flatten_and_permute.permutation"] = torch.cat(_order(model.pos_embed.grid_size))


def _tokens(model: Backbone, source: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    if not isinstance(model, ResMlp):
        return
    assert model.stem.grid_size is not None
    for side, index in zip(("left", "right"), _order(model.stem.grid_size), strict=True):
        found[f"patch_embed.flatten_and_permute_to_fourier.{side}_idx"] = index
    for key, value in source.items():
        if re.search(r"mlp_channels.*bias", key):
            source[key] = value * sqrt(2)
        if re.search(r"blocks.*beta$", key):
            found[key.replace(".beta", ".beta_asym")] = torch.zeros_like(value)


def _filters(model: Backbone, source: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for key in [key for key in source if ".conv_dw." in key]:
        block, _ = key.split(".conv_dw.")
        kernel = model.get_submodule(block).conv_dw.kernel_size
        name = block.replace("stages.0.blocks", "blocks") if model.isotropic else block.replace(".blocks", "")
        if key.endswith("bias"):
            even, odd = source.pop(key).chunk(2)
            found |= {f"{name}.dwconv.sym_to_sym.bias": even, f"{name}.dwconv.asym_to_sym.bias": odd}
            continue
        which = _renamed(key.rsplit(".", 1)[1], PARITY)
        value = source.pop(key)
        found[f"{name}.dwconv.{which}.weight"] = value.view(len(value), 1, kernel, -1)
        if which in ("sym_to_asym", "asym_to_sym"):
            found[f"{name}.dwconv.{which}.zero_center"] = torch.zeros(len(value), 1, kernel, 1)


def _downsampling(model: Backbone, source: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Folded windows, read row by row and even channels first, as first columns `(out, in, 2, 1)`."""
    for key in [key for key in source if ".downsample.1." in key]:
        stage, irrep, kind = re.match(r"stages\.(\d+)\.downsample\.1\.proj\.(\w+)\.(\w+)", key).groups()
        name, value, target = f"downsample_layers.{stage}.1", source.pop(key), _renamed(irrep, PARITY)
        if kind == "bias":
            found[f"{name}.sym_to_sym.bias"] = value
            continue
        for first, columns in zip(("sym", "asym"), value.chunk(2, 1), strict=True):
            rows = columns.unflatten(1, (2, -1)).transpose(1, 2)[..., None]
            found[f"{name}.{first}_to_{target}.weight"] = rows / sqrt(2)
