"""Fused attention, whichever kernel torch takes, counts as if it were written out; so do its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from counting import backward, forward
from torch import Tensor, nn

from flopping.bench.count import count

aten = torch.ops.aten
QUERIES, KEYS, HEADS, WIDTH = 7, 5, 2, 8


def heads(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q = x.new_ones(1, HEADS, QUERIES, WIDTH)
    k = x.new_ones(1, HEADS, KEYS, WIDTH)
    return q, k, k.clone()


def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0.0) -> Tensor:
    scores = (q * 0.5) @ k.mT
    return F.dropout((scores if mask is None else scores + mask).softmax(-1), p) @ v


def mask_of(x: Tensor) -> Tensor:
    return x.new_ones(1, HEADS, QUERIES, KEYS)


ATTENTION: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "whole": (
        lambda x: F.scaled_dot_product_attention(*heads(x)),
        lambda x: written(*heads(x)),
    ),
    "whole, masked": (
        lambda x: F.scaled_dot_product_attention(*heads(x), mask_of(x)),
        lambda x: written(*heads(x), mask_of(x)),
    ),
    "whole, causal": (
        lambda x: F.scaled_dot_product_attention(*heads(x), is_causal=True),
        lambda x: written(*heads(x), mask_of(x)),
    ),
    "whole, dropout": (
        lambda x: F.scaled_dot_product_attention(*heads(x), dropout_p=0.3),
        lambda x: written(*heads(x), p=0.3),
    ),
    "math": (
        lambda x: aten._scaled_dot_product_attention_math(*heads(x)),
        lambda x: written(*heads(x)),
    ),
    "flash on CPU": (
        lambda x: aten._scaled_dot_product_flash_attention_for_cpu(*heads(x)),
        lambda x: written(*heads(x)),
    ),
    "flash on CPU, masked": (
        lambda x: aten._scaled_dot_product_flash_attention_for_cpu(*heads(x), attn_mask=mask_of(x)),
        lambda x: written(*heads(x), mask_of(x)),
    ),
    "flash": (
        lambda x: aten._scaled_dot_product_flash_attention(*heads(x)),
        lambda x: written(*heads(x)),
    ),
    "flash, dropout": (
        lambda x: aten._scaled_dot_product_flash_attention(*heads(x), dropout_p=0.3),
        lambda x: written(*heads(x), p=0.3),
    ),
    "efficient": (
        lambda x: aten._scaled_dot_product_efficient_attention(*heads(x), None, True),
        lambda x: written(*heads(x)),
    ),
    "efficient, masked": (
        lambda x: aten._scaled_dot_product_efficient_attention(*heads(x), mask_of(x), True),
        lambda x: written(*heads(x), mask_of(x)),
    ),
    "cudnn": (
        lambda x: aten._scaled_dot_product_cudnn_attention(*heads(x), None, True),
        lambda x: written(*heads(x)),
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_counts_as_if_unfused(name: str) -> None:
    kernel, plain = ATTENTION[name]
    assert forward(kernel, (1,)) == forward(plain, (1,))
    assert forward(kernel, (1,)).macs == 2 * HEADS * QUERIES * KEYS * WIDTH


def gradients(kernel: str, p: float = 0.0) -> Callable[[Tensor], Any]:
    """The gradient kernel alone; the numbers that it takes from the way there are never looked at."""

    def run(x: Tensor) -> Any:
        q, k, v = heads(x)
        out, sums, seed = torch.empty_like(q), q.new_ones(1, HEADS, QUERIES), torch.zeros(2, dtype=torch.long)
        operation = getattr(aten, f"_scaled_dot_product_{kernel}_backward")
        lengths = None, None, QUERIES, KEYS
        if kernel == "flash_attention_for_cpu":
            return operation(out, q, k, v, out, sums, p, False)
        if kernel == "flash_attention":
            return operation(out, q, k, v, out, sums, *lengths, p, False, seed, seed)
        if kernel == "efficient_attention":
            return operation(out, q, k, v, None, out, sums, seed, seed, p, [True, True, True, False])
        return operation(out, q, k, v, out, sums, seed, seed, None, *lengths, p, False)

    return run


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    "kernel", ["flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"]
)
def test_gradients_of_attention_count_as_if_unfused(kernel: str, p: float) -> None:
    """Two products for each of the way there, the gradients of softmax and scale; and those of dropout, in full."""
    found = forward(gradients(kernel, p), (1,))

    def split(x: Tensor) -> Tensor:
        q, k, v = x.split([QUERIES, KEYS, KEYS], -2)
        return written(q, k, v)

    macs, flops = backward(split, (HEADS, QUERIES + 2 * KEYS, WIDTH))
    dropped = 2 * HEADS * QUERIES * KEYS if p else 0
    assert (found.macs, found.flops) == (macs, flops + dropped)
    assert macs == 4 * HEADS * QUERIES * KEYS * WIDTH


class Attention(nn.Module):
    def __init__(self, fused: bool, **kwargs: Any) -> None:
        super().__init__()
        self.qkv, self.fused, self.kwargs = nn.Linear(8, 24), fused, kwargs

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = self.kwargs.get("attn_mask")
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, **self.kwargs)
        scores = (q * 0.5) @ k.mT
        if mask is not None or self.kwargs.get("is_causal"):
            scores = scores + torch.ones(5, 5)
        return F.dropout(scores.softmax(-1), self.kwargs.get("dropout_p", 0.0)) @ v


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"dropout_p": 0.2},
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5, device="meta")},
        {"attn_mask": torch.ones(5, 5, device="meta", dtype=torch.bool)},
        {"scale": 2.0},
    ],
    ids=str,
)
def test_attention_in_training_counts_as_if_unfused(kwargs: dict[str, Any]) -> None:
    fused, plain = (count(Attention(f, **kwargs), (5, 8), training=True) for f in (True, False))
    assert fused == plain
    assert fused.layers == plain.layers
    assert fused.macs == 2 * 5 * 8 * 24 + 3 * 2 * 5 * 5 * 8


def test_attention_of_grouped_queries() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Parameter(torch.ones(1, 4, 5, 8)), nn.Parameter(torch.ones(1, 2, 5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(self.q, self.kv, self.kv, enable_gqa=True)

    assert count(Grouped(), (1,), training=True).macs == 3 * 2 * 4 * 5 * 5 * 8
