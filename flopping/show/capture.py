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
from flopping.features import Feature, Layout
from flopping.groups import flop, trivial
from flopping.models.backbone import Backbone
from flopping.nn import Attention


@dataclass(frozen=True)
class Captured:
    """Tensors with two entries along their first axis: of the image, and of the mirror image."""

    block: int
    blocks: int
    unit: str
    """What features are taken behind: a "block" or a "stage"."""
    layout: Layout | None
    """Of the features; None for a network that isn't ours."""
    features: Tensor
    """`(2, C, h, w)`, channels in the order of the layout."""
    attention_block: int
    attention: Tensor | None
    """`(2, h, w)`: what the class token takes from each place, mean over heads. None where there is no class token."""
    logits: Tensor
    """`(2, K)`; no classes, no numbers."""

    @property
    def parities(self) -> Tensor | None:
        """What a flop does to each channel; None where it does nothing simple."""
        return None if self.layout is None else parities(self.layout)


def parities(layout: Layout) -> Tensor | None:
    """1 for channels of a packed feature that keep their sign when the image is flopped, -1 for those that change it.

    None for groups that have no flop.

    >>> parities(Layout(flop, (2, 1))).tolist(), parities(Layout.regular(trivial, 4))
    ([1.0, 1.0, -1.0], None)
    """
    element = layout.group.locate(flop, 1)
    if element is None:
        return None
    found = []
    for irrep, copies in zip(layout.group.irreps, layout.multiplicities, strict=True):
        matrix = irrep.tensor[element]
        if not torch.equal(matrix, matrix.diag().diag()):
            return None  # a basis in which the mirror mixes components
        found.append(matrix.diag().float().repeat_interleave(copies))
    return torch.cat(found)


def default_block(model: nn.Module) -> int:
    """A block early enough to show places, not meanings; of ours one that has even and odd channels, if any has."""
    blocks = len(_places(model))
    third = (blocks - 1) // 3
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
    blocks = len(_places(model))
    if block is not None and not -blocks <= block < blocks:
        raise ValueError(f"the network has the blocks 0 to {blocks - 1} (-1 is the last one), got {block}")
    chosen = default_block(model) if block is None else block % blocks
    both = torch.cat((image, image.flip(-1)))
    with _queries_and_keys(model) as found:
        logits = model(both)
    places: Any = model
    (features,) = places.forward_intermediates(
        both, indices=[chosen], stop_early=True, output_fmt="NCHW", intermediates_only=True
    )
    attending = max(found, default=chosen) if block is None else chosen
    attention = None
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    if attending in found and prefix and getattr(model, "has_class_token", True):
        weights_BHNN = functional.attention_weights(*found[attending])
        attention = weights_BHNN[:, :, 0, prefix:].mean(1).unflatten(-1, features.shape[-2:])
    layout = model.layouts[chosen] if isinstance(model, Backbone) else None
    classes = int(getattr(model, "num_classes", 0))
    unit = "stage" if re.fullmatch(r"stages[._]\d+", str(places.feature_info[chosen]["module"])) else "block"
    return Captured(chosen, blocks, unit, layout, features, attending, attention, logits if classes else logits[:, :0])


def _places(model: nn.Module) -> list[Any]:
    """Where features of a network may be taken."""
    if not hasattr(model, "forward_intermediates") or not getattr(model, "feature_info", None):
        raise ValueError(
            f"{type(model).__name__} doesn't hand out its features: a network has timm's forward_intermediates and"
            " feature_info, as all models of timm and of this library"
        )
    return list(model.feature_info)  # type: ignore[arg-type]


@contextmanager
def _queries_and_keys(model: nn.Module) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """Queries and keys `(B, H, N, D)` of every block of a transformer, filled in while the network runs."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    handles = []
    blocks: Any = getattr(model, "blocks", ())
    for number, block in enumerate(blocks):
        attention = getattr(block, "attn", None)
        if isinstance(attention, (Attention, TimmAttention)):

            def note(layer: nn.Module, args: tuple[Any, ...], _: object, number: int = number) -> None:
                found[number] = _asked(layer, args[0])

            handles.append(attention.register_forward_hook(note))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _asked(layer: Any, x: Feature | Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of an attention layer, ours or timm's, for its input."""
    if isinstance(layer, Attention):
        q, k, _ = functional.heads(layer.qkv(x), layer.in_layout, layer.num_heads)
        return q, k
    qkv: Tensor = layer.qkv(x)
    q, k, _ = functional.heads((qkv,), Layout.regular(trivial, qkv.shape[-1] // 3), layer.num_heads)
    return layer.q_norm(q), layer.k_norm(k)
