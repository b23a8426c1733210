"""What one operation costs, in multiply-adds and in elementwise work: the paper's convention, and what follows from it.

The paper counts forward passes. An operation of the backward pass costs what its formula does by the same prices,
with the derivative written out in the plainest way; the formula stands beside each entry below.

Legend: B batch, L queries, S keys, E width of a head; g gradient of the result, y the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any

from torch import Tensor

Arguments = Mapping[str, Any]
Cost = tuple[int, int]
"""Multiply-adds, and elementwise work beside them."""

# Elementwise work per number that comes out. The paper's list; what it leaves out costs as its nearest relative.
PER_OUTPUT: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "neg"), 1),
    **dict.fromkeys(("abs", "sgn", "sign", "relu", "clamp", "clamp_min", "hardtanh", "maximum", "minimum"), 1),
    **dict.fromkeys(("reciprocal", "floor", "ceil", "round", "_prelu_kernel", "cumsum"), 1),
    **dict.fromkeys(("addcmul", "addcdiv", "leaky_relu"), 2),
    "hardsigmoid": 3,
    **dict.fromkeys(("sigmoid", "sqrt", "rsqrt", "exp", "log", "tanh", "erf", "sin", "cos", "hardswish"), 4),
    **dict.fromkeys(("pow", "silu", "elu", "_softmax", "_safe_softmax", "_log_softmax"), 5),
    "gelu": 8,
    "grid_sampler_2d": 4,  # as in fvcore: four neighbours
    # x times a mask, times 1 / (1 - p); drawing the mask is free
    "native_dropout": 2,
    "native_dropout_backward": 2,
    # g or 0, g or slope g, g / 6, and g / n or g itself: one product
    **dict.fromkeys(("threshold_backward", "hardtanh_backward", "leaky_relu_backward", "hardsigmoid_backward"), 1),
    **dict.fromkeys(("_adaptive_avg_pool2d_backward", "avg_pool2d_backward", "_prelu_kernel_backward"), 1),
    **dict.fromkeys(("sigmoid_backward", "tanh_backward", "hardswish_backward"), 3),  # g y (1 - y); g (1 - y y)
    "_softmax_backward_data": 4,  # y (g - sum of g y)
    "elu_backward": 6,  # g a exp(x)
    "_log_softmax_backward_data": 7,  # g - exp(y) sum of g
    "silu_backward": 9,  # g s (1 + x (1 - s)), s = sigmoid(x)
    "gelu_backward": 17,  # g (P + x p): P = (1 + erf(x / r)) / 2 costs 7, p = exp(-x x / 2) / q too
}
# Work per number that goes in. A variance is a mean, a difference, a product and a mean.
PER_INPUT: dict[str, int] = {
    **dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "_adaptive_avg_pool2d", "avg_pool2d", "col2im"), 1),
    "max_pool2d_with_indices": 1,
    "linalg_vector_norm": 2,
    **dict.fromkeys(("var", "var_mean", "std", "std_mean"), 4),
}
# Each number of this argument is added somewhere: what a copy becomes in the backward pass.
PER_ADDED: dict[str, str] = {
    "index_add": "source",
    "scatter_add": "src",
    **dict.fromkeys(("embedding_dense_backward", "max_pool2d_with_indices_backward"), "grad_output"),
    **dict.fromkeys(("reflection_pad2d_backward", "replication_pad2d_backward"), "grad_output"),
    "upsample_nearest2d_backward": "grad_output",
    "unfold_backward": "grad_in",
}
# What moves numbers or makes constants. Most views need no place here: torch marks them, but not those in place.
# fmt: off
FREE: frozenset[str] = frozenset((
    "_reshape_alias", "_unsafe_view", "as_strided", "squeeze", "t", "transpose", "unsqueeze",
    "_to_copy", "cat", "clone", "copy", "embedding", "lift_fresh", "repeat", "stack",
    "flip", "gather", "im2col", "index", "index_select", "pixel_shuffle", "pixel_unshuffle", "roll",
    "masked_fill", "scatter", "select_backward", "slice_backward", "slice_scatter", "tril", "triu",
    "upsample_nearest2d", "where",
    "constant_pad_nd", "reflection_pad2d", "replication_pad2d",
    "arange", "empty", "empty_like", "empty_strided", "eye", "fill", "full", "full_like", "linspace", "zero",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor",
    "zeros", "zeros_like",
    "bernoulli", "normal", "rand", "rand_like", "randn", "randn_like", "uniform",
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


def _convolution_backward(a: Arguments, out: Any) -> Cost:
    """The gradients of input and weight take the products of the forward pass once each; that of the bias is a sum."""
    to_input, to_weight, to_bias = a["output_mask"]
    once, _ = _convolution(a, a["grad_output"])
    return once * (to_input + to_weight), a["grad_output"].numel() if to_bias else 0


def _scores(a: Arguments) -> int:
    return int(prod(a["query"].shape[:-1]) * a["key"].shape[-2])


def _attention(a: Arguments, out: Any) -> Cost:
    """As if unfused: scale q, multiply by k, add the mask if there is one, softmax, dropout, multiply by v."""
    q, v, scores_BLS = a["query"], a["value"], _scores(a)
    masked = a.get("attn_mask") is not None or a.get("attn_bias") is not None or a.get("is_causal", False)
    dropped = PER_OUTPUT["native_dropout"] if a.get("dropout_p", 0.0) > 0 else 0
    work = q.numel() + (PER_OUTPUT["_softmax"] + masked + dropped) * scores_BLS
    return scores_BLS * (q.shape[-1] + v.shape[-1]), work


def _attention_backward(a: Arguments, out: Any) -> Cost:
    """As if unfused: two products for each of the two of the forward pass, whose weights would be in memory.

    A fused kernel works them out again from q and k; that is a price of its memory, and isn't counted.
    """
    q, v, scores_BLS = a["query"], a["value"], _scores(a)
    dropped = PER_OUTPUT["native_dropout_backward"] if a.get("dropout_p", 0.0) > 0 else 0
    work = q.numel() + (PER_OUTPUT["_softmax_backward_data"] + dropped) * scores_BLS
    return 2 * scores_BLS * (q.shape[-1] + v.shape[-1]), work


def _norm(a: Arguments, out: Any) -> Cost:
    return 0, a["input"].numel() * (4 if a.get("weight") is None else 5)


def _batch_norm(a: Arguments, out: Any) -> Cost:
    """With stored statistics only a scale and a shift are left. Updating these is work per channel, and left out."""
    if a.get("training", True):
        return _norm(a, out)
    return 0, a["input"].numel() * (1 if a.get("weight") is None else 2)


def _norm_backward(a: Arguments, out: Any) -> Cost:
    """z = (x - mean) / std, again: 2. To the weight, the sum of g z: 2. To the bias, the sum of g: 1.

    To the input, (h - mean(h) - z mean(h z)) / std: 7, and one more for h = g w where there is a weight. With stored
    statistics it is a product of g and w / std: 1.
    """
    scaled = a.get("weight") is not None
    to_input, to_weight, to_bias = a.get("output_mask", (True, scaled, scaled))
    stored = not a.get("train", a.get("update", True))
    again = 2 if to_weight or (to_input and not stored) else 0
    inward = (1 if stored else 7 + scaled) if to_input else 0
    return 0, a["input"].numel() * (again + inward + 2 * to_weight + to_bias)


def _index_put(a: Arguments, out: Any) -> Cost:
    return 0, a["values"].numel() if a.get("accumulate", False) else 0


def _per_tap(taps: int) -> Callable[[Arguments, Any], Cost]:
    """One for each neighbour that a number is made of, as fvcore has it; backward, that it is spread over."""

    def rule(a: Arguments, out: Tensor) -> Cost:
        return 0, taps * a.get("grad_output", out).numel()

    return rule


def _antialiased(reach: int) -> Callable[[Arguments, Any], Cost]:
    """The neighbours are more where the image shrinks."""

    def rule(a: Arguments, out: Tensor) -> Cost:
        small = a.get("grad_output", out)
        large = out if "grad_output" in a else a["self" if "self" in a else "input"]
        sides = zip(large.shape[2:], small.shape[2:], strict=True)
        return 0, small.numel() * prod(ceil(reach * max(1.0, before / after)) for before, after in sides)

    return rule


_ATTENTION = "_scaled_dot_product_{}attention{}"
_TAPS = {"upsample_linear1d": 2, "upsample_bilinear2d": 4, "upsample_trilinear3d": 8, "upsample_bicubic2d": 16}
_REACH = {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 4}

RULES: dict[str, Callable[[Arguments, Any], Cost]] = {
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("mv", "dot"), _product_with_vector),
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys((_ATTENTION.format("", "_math"), _ATTENTION.format("flash_", "_for_cpu")), _attention),
    **{_ATTENTION.format(kernel, ""): _attention for kernel in ("flash_", "efficient_", "cudnn_")},
    _ATTENTION.format("flash_", "_for_cpu_backward"): _attention_backward,
    **{_ATTENTION.format(kernel, "_backward"): _attention_backward for kernel in ("flash_", "efficient_", "cudnn_")},
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), _norm),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward"), _norm_backward),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _batch_norm),
    "_batch_norm_with_update": _batch_norm,
    **dict.fromkeys(("native_batch_norm_backward", "batch_norm_backward", "cudnn_batch_norm_backward"), _norm_backward),
    **dict.fromkeys(("index_put", "_index_put_impl"), _index_put),
    **{name + end: _per_tap(taps) for name, taps in _TAPS.items() for end in ("", "_backward")},
    **{name + end: _antialiased(reach) for name, reach in _REACH.items() for end in ("", "_backward")},
}

KNOWN: frozenset[str] = frozenset((*RULES, *PER_OUTPUT, *PER_INPUT, *PER_ADDED, *FREE))
"""Operations that have a rule."""


def numbers_in(value: Any) -> int:
    """Floating-point numbers in a tensor or in some; comparisons and indices have none.

    >>> import torch
    >>> numbers_in((torch.ones(2, 3), torch.arange(5), None))
    6
    """
    if isinstance(value, Tensor):
        return value.numel() if value.is_floating_point() or value.is_complex() else 0
    return sum(map(numbers_in, value)) if isinstance(value, tuple | list) else 0


def cost(name: str, arguments: Arguments, out: Any) -> Cost:
    """What an operation costs that has a rule, by its arguments and its result; others cost nothing."""
    if name in RULES:
        return RULES[name](arguments, out)
    if name in PER_OUTPUT:
        return 0, PER_OUTPUT[name] * numbers_in(out)
    if not numbers_in(out):
        return 0, 0
    if name in PER_INPUT:
        return 0, PER_INPUT[name] * int(arguments["self"].numel())
    if name in PER_ADDED:
        return 0, int(arguments[PER_ADDED[name]].numel())
    return 0, 0
