"""What a network computes for an image and for its mirror image: features of a block, attention, logits.

Legend: B batch, C channels, H height and W width of an image, h and w of a feature map, N tokens, K classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    blocks: int
    unit: str
    """What the features are taken behind: a "block" or a "stage"."""
    layout: Layout | None
    """Of the features; None for a network that isn't ours."""
    features: Tensor
    """`(2, C, h, w)`, channels in the order of the layout."""
    attention_block: int
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


def default_block(model: nn.Module) -> int:
    """A block in the first third, which still shows places; of ours the nearest with even and odd channels."""
    third = (_count_blocks(model) - 1) // 3
    if not isinstance(model, Backbone):
        return third
    signs = [parities(layout) for layout in model.layouts]
    both = [block for block, sign in enumerate(signs) if sign is not None and (sign < 0).any()]
    return min(both or [third], key=lambda block: abs(block - third))


@torch.no_grad()
def capture(model: nn.Module, image: Tensor, block: int | None = None) -> Captured:
    """Run a network on a prepared image `(1, C, H, W)` and on its mirror image.

    Features are those behind a block (of networks in stages: behind a stage), counted from 0, or from -1 at the end.
    Attention is that of the same block, by default of the last one that has any.
    """
    blocks = _count_blocks(model)
    if block is not None and not -blocks <= block < blocks:
        raise UsageError(f"the network has the blocks 0 to {blocks - 1} (-1 is the last one), got {block}")
    chosen = default_block(model) if block is None else block % blocks
    both = torch.cat((image, image.flip(-1)))
    with _record_attention(model) as weights:
        logits = model(both)
    network: Any = model
    (features,) = network.forward_intermediates(
        both, indices=[chosen], stop_early=True, output_fmt="NCHW", intermediates_only=True
    )
    attending = max(weights, default=chosen) if block is None else chosen
    attention = None
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    if attending in weights and prefix and getattr(model, "has_class_token", True):
        attention = weights[attending][:, :, 0, prefix:].mean(1).unflatten(-1, features.shape[-2:])
    layout = model.layouts[chosen] if isinstance(model, Backbone) else None
    classes = int(getattr(model, "num_classes", 0))
    unit = "stage" if re.fullmatch(r"stages[._]\d+", str(network.feature_info[chosen]["module"])) else "block"
    return Captured(chosen, blocks, unit, layout, features, attending, attention, logits if classes else logits[:, :0])


def _count_blocks(model: nn.Module) -> int:
    """The number of places where features of a network can be taken."""
    if not hasattr(model, "forward_intermediates") or not getattr(model, "feature_info", None):
        raise UsageError(
            f"{type(model).__name__} doesn't hand out its features: a network has timm's forward_intermediates and"
            " feature_info, as all models of timm and of this library"
        )
    return len(list(model.feature_info))  # type: ignore[arg-type]


@contextmanager
def _record_attention(model: nn.Module) -> Iterator[dict[int, Tensor]]:
    """Attention weights `(B, heads, N, N)` of every block of a transformer, filled in while the network runs."""
    found: dict[int, Tensor] = {}
    handles = []
    blocks: Any = getattr(model, "blocks", ())
    for number, block in enumerate(blocks):
        attention = getattr(block, "attn", None)
        if isinstance(attention, (Attention, TimmAttention)):

            def record(layer: Any, args: tuple[Any, ...], _: object, number: int = number) -> None:
                ours = isinstance(layer, Attention)
                qkv = layer.qkv(args[0]) if ours else (layer.qkv(args[0]),)
                layout = layer.in_layout if ours else Layout.regular(trivial, qkv[0].shape[-1] // 3)
                q, k, _v = functional.heads(qkv, layout, layer.num_heads)
                found[number] = functional.attention_weights(*((q, k) if ours else (layer.q_norm(q), layer.k_norm(k))))

            handles.append(attention.register_forward_hook(record))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
