"""Multiply-adds and FLOPs of a network, from shapes alone: it runs on the meta device, where tensors hold no numbers.

Legend: B batch, L queries, S keys, E width of a head.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Size = tuple[int, ...]
Arguments = Mapping[str, Any]
Cost = tuple[int, int]
"""Multiply-adds, and elementwise work beside them."""


@dataclass(frozen=True)
class Count:
    """The work for one image, or for one sample of whatever the network takes.

    `macs` are the multiply-adds of matrix products, convolutions and attention. `flops` follow the paper: one per
    multiply-add, and the elementwise work. `layers` has the same for each submodule that did something, by its
    path and with all that is inside it.
    """

    macs: float
    flops: float
    layers: Mapping[str, Count] = field(default_factory=dict, repr=False, hash=False)


# Elementwise work per number that comes out. The paper's list; what it leaves out costs as its nearest relative.
PER_OUTPUT: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "neg"), 1),
    **dict.fromkeys(("abs", "sgn", "sign", "relu", "clamp", "clamp_min", "hardtanh", "maximum", "minimum"), 1),
    **dict.fromkeys(("reciprocal", "floor", "ceil", "round"), 1),
    **dict.fromkeys(("addcmul", "addcdiv", "leaky_relu"), 2),
    "hardsigmoid": 3,
    **dict.fromkeys(("sigmoid", "sqrt", "rsqrt", "exp", "log", "tanh", "erf", "sin", "cos", "hardswish"), 4),
    **dict.fromkeys(("pow", "silu", "elu", "_softmax", "_safe_softmax", "_log_softmax"), 5),
    "gelu": 8,
}
# Work per number that goes in. A variance is a mean, a difference, a product and a mean.
PER_INPUT: dict[str, int] = {
    **dict.fromkeys(("mean", "sum", "amax", "amin", "_adaptive_avg_pool2d", "avg_pool2d"), 1),
    "max_pool2d_with_indices": 1,
    **dict.fromkeys(("var", "var_mean", "std", "std_mean"), 4),
}
# What moves numbers or makes constants. Most views need no place here: torch marks them, but not those in place.
# fmt: off
FREE: frozenset[str] = frozenset((
    "_reshape_alias", "_unsafe_view", "as_strided", "squeeze", "t", "transpose", "unsqueeze",
    "_to_copy", "cat", "clone", "copy", "lift_fresh", "repeat", "stack",
    "flip", "gather", "im2col", "index", "index_put", "index_select", "pixel_shuffle", "pixel_unshuffle", "roll",
    "masked_fill", "scatter", "slice_scatter", "tril", "triu", "upsample_nearest2d", "where",
    "constant_pad_nd", "reflection_pad2d", "replication_pad2d",
    "arange", "empty", "empty_like", "empty_strided", "eye", "fill", "full", "full_like", "linspace", "zero",
    "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like",
))
# fmt: on


def _linear(a: Arguments, out: Tensor) -> Cost:
    """The bias is free, as the first value of the sum that it is added to; so too in convolutions."""
    return out.numel() * int(a["weight"].shape[-1]), 0


def _product(a: Arguments, out: Tensor) -> Cost:
    left = next(a[name] for name in ("mat1", "batch1", "self") if name in a)
    return out.numel() * int(left.shape[-1]), 0


def _product_with_vector(a: Arguments, out: Tensor) -> Cost:
    return int(a["self"].numel()), 0


def _convolution(a: Arguments, out: Tensor) -> Cost:
    places = a["input"] if a["transposed"] else out
    return places.numel() * prod(a["weight"].shape[1:]), 0


def _attention(a: Arguments, out: Any) -> Cost:
    """As if unfused: scale q, multiply by k, add the mask if there is one, softmax, multiply by v."""
    q, k, v = a["query"], a["key"], a["value"]
    scores_BLS = prod(q.shape[:-1]) * k.shape[-2]
    masked = a.get("attn_mask") is not None or a.get("attn_bias") is not None or a.get("is_causal", False)
    work = q.numel() + (PER_OUTPUT["_softmax"] + masked) * scores_BLS
    return scores_BLS * (q.shape[-1] + v.shape[-1]), work


def _norm(a: Arguments, out: Any) -> Cost:
    return 0, a["input"].numel() * (4 if a.get("weight") is None else 5)


def _batch_norm(a: Arguments, out: Any) -> Cost:
    """With stored statistics only a scale and a shift are left."""
    if a["training"]:
        return _norm(a, out)
    return 0, a["input"].numel() * (1 if a.get("weight") is None else 2)


RULES: dict[str, Callable[[Arguments, Any], Cost]] = {
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("mv", "dot"), _product_with_vector),
    "convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "native_layer_norm": _norm,
    "native_group_norm": _norm,
    "batch_norm": _batch_norm,
}


def count(
    model: nn.Module | Callable[[], nn.Module],
    input_size: Size | tuple[Size, ...] = (3, 224, 224),
    batch: int = 1,
    costs: Mapping[str, int] | None = None,
) -> Count:
    """Count the work of a forward pass without gradients in eval mode, per sample of the batch.

    The model stays as it is, and none of its numbers are copied. A function that builds it may stand for it, and
    then it never takes memory. `input_size` is the shape of one sample, or one shape per part of a feature. The
    batch matters to work on weights, which is done once per batch: the paper's is 64. An operation that may do
    arithmetic and has no rule is an error that names it; `costs` gives it one, per number that comes out.

    >>> count(nn.Linear(384, 1536), input_size=(197, 384)).macs == 197 * 384 * 1536
    True
    >>> count(lambda: nn.Sequential(nn.Conv2d(3, 768, 16, 16), nn.GELU())).layers["1"]
    Count(macs=0.0, flops=1204224.0)

    Even and odd channels never meet in a matrix, so half of the work is left:

    >>> from flopping import Layout, flop, nn as fnn
    >>> layer = fnn.Linear(Layout.regular(flop, 384), Layout.regular(flop, 1536))
    >>> count(layer, input_size=((197, 192), (197, 192))).macs == 197 * 384 * 1536 / 2
    True
    """
    if batch < 1:
        raise ValueError(f"batch is at least 1, got {batch}")
    shadow = (_on_meta(model) if isinstance(model, nn.Module) else _build(model)).eval()
    dtype = next((p.dtype for p in shadow.parameters() if p.is_floating_point()), torch.float32)
    x = _inputs(input_size, batch, dtype)
    mode = _CountMode(costs or {})
    mode.follow(shadow)
    # Without autograd's keys linear layers and attention arrive whole, and not as what their strides make of them.
    with torch.inference_mode(), torch.device("meta"), mode:
        shadow(x)
    if mode.unknown:
        names = ", ".join(sorted(mode.unknown))
        raise ValueError(f"no rule for the cost of {names}: pass costs={{name: FLOPs per number that comes out}}")
    layers = {path: Count(mode.macs[path] / batch, mode.flops[path] / batch) for path in mode.flops}
    total = layers.pop("", Count(0.0, 0.0))
    return Count(total.macs, total.flops, layers)


class _CountMode(TorchDispatchMode):
    """Adds up the work of all operations inside it, by the path of the module that is running."""

    def __init__(self, costs: Mapping[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = costs
        self.known = costs.keys() | RULES.keys() | PER_OUTPUT.keys() | PER_INPUT.keys() | FREE
        self.macs: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.running: list[str] = []

    def follow(self, model: nn.Module) -> None:
        """Hook into the model, to know which module runs."""
        for path, module in model.named_modules():

            def enter(module: nn.Module, args: Any, path: str = path) -> None:
                self.running.append(path)

            def leave(module: nn.Module, args: Any, out: Any) -> None:
                self.running.pop()

            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if name not in self.known and not func.is_view:
            with self:  # an operation that torch writes as others is the sum of these
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        macs, work = self.cost(func, name, named, out)
        if macs or work:
            for path in _upwards(self.running[-1] if self.running else ""):
                self.macs[path] += macs
                self.flops[path] += macs + work
        return out

    def cost(self, func: Any, name: str, named: Arguments, out: Any) -> Cost:
        numbers = sum(t.numel() for t in (out if isinstance(out, tuple | list) else (out,)) if _is_inexact(t))
        if name in self.costs:
            return 0, self.costs[name] * numbers
        if name in RULES:
            return RULES[name](named, out)
        if name in FREE or func.is_view or not numbers:  # comparisons and indices are no floating-point work
            return 0, 0
        if name in PER_OUTPUT:
            return 0, PER_OUTPUT[name] * numbers
        if name in PER_INPUT:
            return 0, PER_INPUT[name] * int(named["self"].numel())
        self.unknown.add(name)
        return 0, 0


def _name(func: torch._ops.OpOverload) -> str:
    """Name without overload and without the mark of in-place operations; with a namespace unless it is torch's own."""
    namespace, _, name = func._schema.name.partition("::")
    name = name if name.startswith("__") else name.removesuffix("_")
    return name if namespace == "aten" else f"{namespace}::{name}"


def _upwards(path: str) -> Iterator[str]:
    """A module's path and those of all that hold it.

    >>> list(_upwards("blocks.0.attn"))
    ['blocks.0.attn', 'blocks.0', 'blocks', '']
    """
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _is_inexact(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _inputs(input_size: Size | tuple[Size, ...], batch: int, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
    sizes = input_size if input_size and all(isinstance(size, tuple) for size in input_size) else (input_size,)
    if not all(isinstance(n, int) and n >= 0 for size in sizes for n in size):  # type: ignore[union-attr]
        raise ValueError(f"input_size is the shape of one sample, or a tuple of shapes, got {input_size!r}")
    tensors = tuple(torch.empty((batch, *size), dtype=dtype, device="meta") for size in sizes)  # type: ignore[misc]
    return tensors[0] if sizes[0] is input_size else tensors


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy without numbers; `deepcopy` takes the parameters and buffers that it finds in its memo."""
    memo: dict[int, Any] = {id(b): b.to("meta") for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo)


def _build(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()
