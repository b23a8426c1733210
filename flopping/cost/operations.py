"""What one operation costs, in multiply-adds and in elementwise work: the paper's convention, and what follows from it.

The paper counts forward passes. An operation of the backward pass costs what its formula does by the same prices,
with the derivative written out in the plainest way; the formula stands beside each entry below.

`PRICES` has the form that `torch.utils.flop_counter` takes: a function per operation, called with the operation's
arguments and its result. In formulas g is the gradient of the result, y the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """Multiply-adds, and elementwise work beside them."""

    macs: int
    work: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.work + other.work)

    def __radd__(self, zero: int) -> Cost:
        return self  # torch's counter, and `sum`, begin with 0


Price = Callable[..., Cost]

# Elementwise work per number that comes out. The paper's list; what it leaves out costs as its nearest relative.
PER_OUTPUT: dict[int, str] = {
    1: "add sub rsub mul div neg abs sgn sign relu clamp clamp_min hardtanh maximum minimum reciprocal floor ceil round"
    " _prelu_kernel cumsum"
    " threshold_backward hardtanh_backward leaky_relu_backward hardsigmoid_backward _prelu_kernel_backward"  # g times
    " _adaptive_avg_pool2d_backward avg_pool2d_backward",  # g / n
    2: "addcmul addcdiv leaky_relu upsample_linear1d"
    " native_dropout native_dropout_backward",  # times a mask, times 1 / (1 - p); drawing the mask is free
    3: "lerp hardsigmoid sigmoid_backward tanh_backward hardswish_backward",  # g y (1 - y); g (1 - y y)
    4: "sigmoid sqrt rsqrt exp log tanh erf sin cos hardswish"
    " _softmax_backward_data"  # y (g - sum of g y)
    " grid_sampler_2d upsample_bilinear2d",  # as in fvcore: one per neighbour
    5: "pow silu elu _softmax _safe_softmax _log_softmax",
    6: "elu_backward",  # g a exp(x)
    7: "_log_softmax_backward_data",  # g - exp(y) sum of g
    8: "gelu upsample_trilinear3d",
    9: "silu_backward",  # g s (1 + x (1 - s)), s = sigmoid(x)
    16: "upsample_bicubic2d",
    17: "gelu_backward",  # g (P + x p): P = (1 + erf(x / r)) / 2 costs 7, p = exp(-x x / 2) / q too
}
# Work per number of the first argument. A variance is a mean, a difference, a product and a mean.
PER_INPUT: dict[int, str] = {
    1: "mean sum amax amin max min _adaptive_avg_pool2d avg_pool2d max_pool2d_with_indices col2im"
    # each number of g is added somewhere
    " embedding_dense_backward max_pool2d_with_indices_backward reflection_pad2d_backward replication_pad2d_backward"
    " upsample_nearest2d_backward unfold_backward",
    2: "linalg_vector_norm upsample_linear1d_backward",
    4: "var var_mean std std_mean upsample_bilinear2d_backward",
    8: "upsample_trilinear3d_backward",
    16: "upsample_bicubic2d_backward",
}
# What moves numbers or makes constants, and views.
FREE = (
    "_reshape_alias _unsafe_view alias as_strided detach diagonal expand permute select slice split split_with_sizes"
    " squeeze t transpose unbind unfold unsqueeze view"
    " _to_copy cat clone copy embedding lift_fresh repeat stack"
    " flip gather im2col index index_copy index_select pixel_shuffle pixel_unshuffle roll"
    " masked_fill scatter select_backward slice_backward slice_scatter tril triu upsample_nearest2d where"
    " constant_pad_nd diag_embed reflection_pad2d replication_pad2d"
    " arange empty empty_like empty_strided eye fill full full_like linspace zero zeros zeros_like ones ones_like"
    " new_empty new_empty_strided new_full new_ones new_zeros scalar_tensor"
    " bernoulli normal rand rand_like randn randn_like uniform"
)


def numbers_in(value: Any) -> int:
    """Floating-point numbers in tensors; comparisons and indices have none.

    >>> numbers_in((torch.ones(2, 3), torch.arange(5), None))
    6
    """
    if isinstance(value, Tensor):
        return value.numel() if value.is_floating_point() or value.is_complex() else 0
    return sum(map(numbers_in, value)) if isinstance(value, tuple | list) else 0


def per_output(price: int) -> Price:
    """Work per number that comes out, or that is there, for an operation that only writes to its arguments."""
    return lambda *args, out_val, **_: Cost(0, price * numbers_in(args if out_val is None else out_val))


def _per_argument(index: int, price: int = 1) -> Price:
    return lambda *args, **_: Cost(0, price * numbers_in(args[index]))


def _linear(x: Tensor, weight: Tensor, *_: Any, out_val: Tensor) -> Cost:
    """The bias is free, as the first value of the sum that it is added to; so too in convolutions."""
    return Cost(out_val.numel() * weight.shape[-1], 0)


def _product(*args: Any, out_val: Tensor, **_: Any) -> Cost:
    """[a term,] left and right, of matrices or vectors."""
    return Cost(out_val.numel() * args[-2].shape[-1], 0)


def _convolution(x: Tensor, weight: Tensor, *args: Any, out_val: Tensor) -> Cost:
    transposed = args[4]
    return Cost((x if transposed else out_val).numel() * prod(weight.shape[1:]), 0)


def _convolution_backward(g: Tensor, x: Tensor, weight: Tensor, *args: Any, out_val: Any) -> Cost:
    """The gradients of input and weight take the products of the forward pass once each; that of the bias is a sum."""
    to_input, to_weight, to_bias = args[-1]
    once = _convolution(x, weight, *args, out_val=g).macs
    return Cost(once * (to_input + to_weight), g.numel() if to_bias else 0)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0.0, causal: bool = False, **_: Any
) -> Cost:
    """As if unfused: scale q, multiply by k, add the mask if there is one, softmax, dropout, multiply by v."""
    scores = prod(q.shape[:-1]) * k.shape[-2]
    masked, dropped = mask is not None or causal, 2 if p > 0 else 0
    return Cost(scores * (q.shape[-1] + v.shape[-1]), q.numel() + (5 + masked + dropped) * scores)


def _norm(weight: int) -> Price:
    """Mean, variance, scale; `weight` is the place of the weight among the arguments."""
    return lambda x, *args, **_: Cost(0, x.numel() * (4 if args[weight - 1] is None else 5))


def _batch_norm(x: Tensor, weight: Tensor | None, *args: Any, out_val: Any) -> Cost:
    """With stored statistics only a scale and a shift are left. Updating these is work per channel, and left out."""
    training = next((value for value in args if isinstance(value, bool)), True)
    return Cost(0, x.numel() * ((4 if training else 1) + (weight is not None)))


def _norm_backward(weight: int) -> Price:
    """z = (x - mean) / std, again: 2. To the weight, the sum of g z: 2. To the bias, the sum of g: 1.

    To the input, (h - mean(h) - z mean(h z)) / std: 7, and one more for h = g w where there is a weight. With stored
    statistics it is a product of g and w / std: 1.
    """

    def price(g: Tensor, x: Tensor, *args: Any, out_val: Any) -> Cost:
        to_input, to_weight, to_bias = next(value for value in args if isinstance(value, list) and len(value) == 3)
        stored = next((not value for value in args if isinstance(value, bool)), False)
        again = 2 if to_weight or (to_input and not stored) else 0
        inward = (1 if stored else 7 + (args[weight - 2] is not None)) if to_input else 0
        return Cost(0, x.numel() * (again + inward + 2 * to_weight + to_bias))

    return price


def _index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *_: Any, out_val: Any) -> Cost:
    return Cost(0, values.numel() if accumulate else 0)


def _antialiased(reach: int, backward: bool = False) -> Price:
    """One for each neighbour, of which there are more where the image shrinks."""

    def price(x: Tensor, *_: Any, out_val: Tensor) -> Cost:
        large, small = (out_val, x) if backward else (x, out_val)
        sides = zip(large.shape[2:], small.shape[2:], strict=True)
        return Cost(0, small.numel() * prod(ceil(reach * max(1.0, before / after)) for before, after in sides))

    return price


RULES: dict[str, Price] = {
    **dict.fromkeys(("linear", "flopping::onednn_linear"), _linear),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "dot"), _product),
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention,
    "native_layer_norm": _norm(weight=2),
    "native_group_norm": _norm(weight=1),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), _batch_norm),
    "_batch_norm_with_update": _batch_norm,
    "native_layer_norm_backward": _norm_backward(weight=5),
    "native_group_norm_backward": _norm_backward(weight=4),
    **dict.fromkeys(("native_batch_norm_backward", "batch_norm_backward"), _norm_backward(weight=2)),
    **dict.fromkeys(("index_put", "_index_put_impl"), _index_put),
    **dict.fromkeys(("index_add", "scatter_add"), _per_argument(3)),
    "_upsample_bilinear2d_aa": _antialiased(2),
    "_upsample_bilinear2d_aa_backward": _antialiased(2, backward=True),
    "_upsample_bicubic2d_aa": _antialiased(4),
    "_upsample_bicubic2d_aa_backward": _antialiased(4, backward=True),
    **{name: per_output(price) for price, names in PER_OUTPUT.items() for name in names.split()},
    **{name: _per_argument(0, price) for price, names in PER_INPUT.items() for name in names.split()},
    **dict.fromkeys(FREE.split(), per_output(0)),
}


def price_table(rules: Mapping[str, Price]) -> dict[Any, Price]:
    """Prices by operation, those in place too, from prices by name; one of another namespace is `namespace::name`.

    >>> sorted(str(operation) for operation in price_table({"add": per_output(1)}))
    ['aten.add', 'aten.add_']
    """
    table: dict[Any, Price] = {}
    for name, price in rules.items():
        namespace, _, short = name.rpartition("::")
        library = getattr(torch.ops, namespace or "aten")
        found = [getattr(library, spelled) for spelled in (short, f"{short}_") if hasattr(library, spelled)]
        if not found:
            raise ValueError(f"torch has no operation {name!r}")
        table |= dict.fromkeys(found, price)
    return table


def operation_name(operation: Any) -> str:
    """Without the mark of in-place operations; with a namespace unless it is torch's own.

    >>> operation_name(torch.ops.aten.add_)
    'add'
    """
    name: str = operation._qualified_op_name.removeprefix("aten::")
    return name if name.startswith("__") else name.removesuffix("_")


PRICES: dict[Any, Price] = price_table(RULES)
