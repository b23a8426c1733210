"""What all equivariant layers share: an input layout and an output layout."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from flopping.features import Layout


class Module(nn.Module):
    """A layer between features, with the law `layer(g x) == g layer(x)` for every g of its group.

    `in_layout` is None for a layer that takes images, `out_layout` is None for one that gives invariant
    tensors such as logits.
    """

    in_layout: Layout | None
    out_layout: Layout | None
    leading: int | None = None
    """How many axes stand before the channels: 2 for tokens (B, N), 3 for maps (B, H, W), None for any."""

    def __init__(self, in_layout: Layout | None = None, out_layout: Layout | None = None) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_fill_constants)  # type: ignore[no-untyped-call]
        for layout in (in_layout, out_layout):
            if layout is not None and not isinstance(layout, Layout):
                name = type(self).__name__
                raise TypeError(f"{name} takes a Layout, e.g. Layout.regular(flop, 64), got {layout!r}")
        if in_layout is not None and out_layout is not None and in_layout.group != out_layout.group:
            self._check_group_change(in_layout, out_layout)
        self.in_layout = in_layout
        self.out_layout = out_layout

    def _check_group_change(self, in_layout: Layout, out_layout: Layout) -> None:
        """Only a hand-off changes the group; it overrides this."""
        raise ValueError(f"{type(self).__name__} keeps the group, got {in_layout} -> {out_layout}")

    def extra_repr(self) -> str:
        return f"{self.in_layout or 'image'} -> {self.out_layout or 'invariant'}"


@torch.no_grad()
def _fill_constants(module: nn.Module, _keys: object) -> None:
    """Fill the constants, which are not in a state dict: on the meta device or after `to_empty` they have no values."""
    device = next((parameter.device for parameter in module.parameters()), None)
    for layer in module.modules():
        fill = getattr(layer, "init_non_persistent_buffers", None)
        if not layer._buffers or fill is None:
            continue
        for name, buffer in layer._buffers.items():
            if buffer is not None and buffer.is_meta and device is not None:
                layer._buffers[name] = torch.empty_like(buffer, device=device)
        fill()


class Sequential(nn.Sequential, Module):
    """Layers one after another; each must take the layout that the one before gives.

    >>> import torch
    >>> from flopping import Layout, flop
    >>> from flopping.nn import LayerNorm, Linear
    >>> small, large = Layout.regular(flop, 8), Layout.regular(flop, 12)
    >>> [tuple(part.shape) for part in Sequential(Linear(small, large), LayerNorm(large))(small.random(5))]
    [(5, 6), (5, 6)]
    >>> Sequential(Linear(small, large), LayerNorm(small))
    Traceback (most recent call last):
    ...
    ValueError: layer 1 (LayerNorm) takes Layout(flop, even=4, odd=4), but gets Layout(flop, even=6, odd=6) from layer 0
    """

    def __init__(self, *layers: nn.Module) -> None:
        nn.Sequential.__init__(self, *layers)
        children = list(self.children())
        for i, (before, after) in enumerate(pairwise(children)):
            if isinstance(before, Module) and isinstance(after, Module) and after.in_layout != before.out_layout:
                raise ValueError(
                    f"layer {i + 1} ({type(after).__name__}) takes {after.in_layout or 'images'}, but gets"
                    f" {before.out_layout or 'invariant tensors'} from layer {i}"
                )
        typed = [child for child in children if isinstance(child, Module)]
        self.in_layout = typed[0].in_layout if typed and typed[0] is children[0] else None
        self.out_layout = typed[-1].out_layout if typed and typed[-1] is children[-1] else None
        self.leading = next((child.leading for child in typed if child.leading is not None), None)

    def extra_repr(self) -> str:
        return ""
