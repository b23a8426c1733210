"""What a network computes for an image and for its mirror image: features of a block, attention, logits.

Legend: B batch, C channels, H height and W width of an image, h and w of a feature map, N tokens, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn

from flopping import functional
from flopping.errors import UsageError
from flopping.features import Layout
from flopping.groups import flop, trivial
from flopping.models.backbone import Backbone
from flopping.nn import Attention


@dataclass(frozen=True)
class Captured:
    """Tensors with two entries along their first axis: of the image, and of the mirror image."""

    block: int
    layer: str
    """The name of the module that gives the features."""
    layout: Layout | None
    """Of the features; None for a network that isn't ours."""
    features: Tensor
    """`(2, C, h, w)`, channels in the order of the layout."""
    attention_layer: str
    attention: Tensor | None
    """`(2, h, w)`: the class token's attention to each place, mean over heads. None without a class token."""
    logits: Tensor
    """`(2, K)`; K is 0 without classes."""


def parities(layout: Layout | None) -> Tensor | None:
    """1 for channels that keep their sign when the image is flopped, -1 for those that change it.

    None for groups that have no flop, and for networks that have no layout.

    >>> parities(Layout(flop, (2, 1))).tolist(), parities(Layout.regular(trivial, 4))
    ([1.0, 1.0, -1.0], None)
    """
    element = None if layout is None else layout.group.locate(flop, 1)
    if layout is None or element is None:
        return None
    found = []
    for irrep, copies in zip(layout.group.irreps, layout.multiplicities, strict=True):
        matrix = irrep.tensor[element]
        if not torch.equal(matrix, matrix.diag().diag()):
            return None  # a basis in which the mirror mixes components
        found.append(matrix.diag().float().repeat_interleave(copies))
    return torch.cat(found)


@torch.no_grad()
def capture(model: nn.Module, image: Tensor, block: int | None = None) -> Captured:
    """Run a network on a prepared image `(1, C, H, W)` and on its mirror image.

    Features are those after a block (of networks in stages: after a stage), counted from 0, or from -1 at the end.
    Attention is that of the same block, by default of the last one.
    """
    network: Any = model
    names = layer_names(model)
    if block is not None and not -len(names) <= block < len(names):
        raise UsageError(f"the network has the blocks 0 to {len(names) - 1} (-1 is the last one), got {block}")
    chosen, attending = (_default_block(model, len(names)), -1) if block is None else (block % len(names), block)
    both = torch.cat((image, image.flip(-1)))
    logits, weights = _run(network, both, attending)
    (features,) = network.forward_intermediates(
        both, indices=[chosen], stop_early=True, output_fmt="NCHW", intermediates_only=True
    )
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    attention = None
    if weights is not None and prefix and getattr(model, "has_class_token", True):
        attention = weights[:, :, 0, prefix:].mean(1).unflatten(-1, features.shape[-2:])
    layout = model.layouts[chosen] if isinstance(model, Backbone) else None
    classes = int(getattr(model, "num_classes", 0))
    return Captured(
        chosen, names[chosen], layout, features, names[attending], attention, logits if classes else logits[:, :0]
    )


def layer_names(model: nn.Module) -> list[str]:
    """The modules whose features `forward_intermediates` gives: blocks of a transformer, stages of other networks."""
    if not hasattr(model, "forward_intermediates") or not getattr(model, "feature_info", None):
        raise UsageError(
            f"{type(model).__name__} doesn't hand out its features: a network has timm's forward_intermediates and"
            " feature_info, as the models of timm and of this library"
        )
    return [str(info["module"]) for info in model.feature_info]  # type: ignore[union-attr]


def _default_block(model: nn.Module, blocks: int) -> int:
    """A block in the first third, which still shows places; of ours the nearest with even and odd channels."""
    third = (blocks - 1) // 3
    signs = [parities(layout) for layout in model.layouts] if isinstance(model, Backbone) else []
    both = [block for block, sign in enumerate(signs) if sign is not None and (sign < 0).any()]
    return min(both or [third], key=lambda block: abs(block - third))


def _run(model: Any, images: Tensor, block: int) -> tuple[Tensor, Tensor | None]:
    """Logits, and the attention weights `(B, heads, N, N)` of a block, if it has any."""
    blocks = getattr(model, "blocks", None)
    layer = getattr(blocks[block], "attn", None) if blocks else None
    if not isinstance(layer, (Attention, TimmAttention)):
        return model(images), None
    inputs: list[Any] = []
    with layer.register_forward_hook(lambda _, args, __: inputs.extend(args)):
        logits = model(images)
    if isinstance(layer, Attention):
        x, _, _, grid = inputs  # of all tokens, whatever is read
        q, k, _ = layer.heads(x, grid=grid)
        return logits, functional.attention_weights(q, k)
    qkv = layer.qkv(inputs[0])
    q, k, _ = functional.heads((qkv,), Layout.regular(trivial, qkv.shape[-1] // 3), layer.num_heads)
    return logits, functional.attention_weights(layer.q_norm(q), layer.k_norm(k))


def choose_channels(maps: Tensor, number: int, signed: bool) -> list[int]:
    """Indices of so many maps of `(C, h, w)`, the best one first; of `signed` ones 0 has a meaning.

    A map is good if it is strong, in the middle rather than at the edges, where it shows positions more than the image;
    if neighbouring places are alike; if a mirror changes what is seen; and if no map chosen before looks like it.

    >>> maps = torch.zeros(3, 4, 4)
    >>> maps[1, :, :2], maps[2, 0, 0] = 1.0, 1.0
    >>> choose_channels(maps, 2, signed=False)
    [1, 2]
    """
    down, across = (torch.sin(torch.pi * (torch.arange(n, device=maps.device) + 0.5) / n) for n in maps.shape[1:])
    window = 0.1 + 0.9 * torch.outer(down, across)
    centred = (maps if signed else maps - maps.mean((1, 2), keepdim=True)) * window
    strength = centred.square().mean((1, 2)).sqrt()
    unit = centred / centred.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None]
    below, beside = unit[:, 1:] * unit[:, :-1], unit[:, :, 1:] * unit[:, :, :-1]
    smoothness = ((below.sum((1, 2)) + beside.sum((1, 2))) / 2).clamp(0, 1)
    change = (unit - (-1.0 if signed else 1.0) * unit.flip(-1)).square().sum((1, 2)).sqrt() / 2
    score = strength * (0.05 + smoothness) * (0.1 + change)
    found: list[int] = []
    likeness = torch.zeros_like(score)
    for _ in range(min(number, len(maps))):
        remaining = score * (1 - likeness)
        remaining[found] = -1.0
        found.append(int(remaining.argmax()))
        likeness = torch.maximum(likeness, (unit * unit[found[-1]]).sum((1, 2)).abs())
    return found
