"""Bookkeeping of a translation: which keys of a checkpoint become which of our weights, and which are left."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Literal

import torch
from torch import Tensor

from flopping.errors import UsageError
from flopping.functional.grid import Grid, as_pair
from flopping.models.backbone import Backbone

Weights = Mapping[str, Tensor]
Handoff = Literal["hybrid", "abs"]


@dataclass(frozen=True)
class Hints:
    """What callers say because shapes don't."""

    num_heads: int | None = None
    img_size: Grid | None = None
    handoff: Handoff | None = None


def _same(value: Tensor) -> Tensor:
    return value


@dataclass
class Translation:
    """The network that a checkpoint holds: its class, its registered name, its arguments and its weights."""

    source: Weights
    model: type[Backbone]
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Which of their keys each of our weights was made of."""
    wanted: set[str] = field(default_factory=set)
    """All keys that a checkpoint of this network has."""

    def give(self, ours: str, *theirs: str, change: Callable[..., Tensor] = _same) -> None:
        """One of our weights, made of some of theirs. What is missing is only noted, to be reported all at once."""
        self.wanted.update(theirs)
        if any(key not in self.source for key in theirs):
            return
        values = [self.source[key] for key in theirs]
        # in half precision, factors would round
        values = [value.to(torch.promote_types(value.dtype, torch.float32)) for value in values]
        try:
            self.weights[ours] = change(*values)
        except (ValueError, RuntimeError, IndexError) as error:
            shapes = ", ".join(f"{key} {tuple(self.source[key].shape)}" for key in theirs)
            raise UsageError(f"this can't become {ours}: {shapes}") from error
        self.origins[ours] = theirs

    def value(self, key: str) -> Tensor:
        """A value that decides about the architecture."""
        self.wanted.add(key)
        if key not in self.source:
            raise UsageError(f"the checkpoint lacks {key}, which would tell what network it is")
        return self.source[key]

    def shape(self, key: str, axes: int) -> tuple[int, ...]:
        """A shape that decides about the architecture."""
        shape = tuple(self.value(key).shape)
        if len(shape) != axes:
            raise UsageError(f"{key} has {axes} axes in the reference code, got shape {shape}")
        return shape

    def unused(self, key: str) -> None:
        """A key that the reference code stores and never uses."""
        self.wanted.add(key)

    def zero(self, key: str) -> None:
        """A key whose values the architecture fixes at zero; if they aren't, the network isn't this one."""
        self.wanted.add(key)
        if key in self.source and self.source[key].any():
            raise UsageError(f"{key} must be zero, or the network would not follow the group")

    def depth(self, prefix: str) -> int:
        """How many blocks `prefix.0`, `prefix.1`, ... there are."""
        matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", key) for key in self.source)
        numbers = sorted({int(match[1]) for match in matches if match})
        if not numbers or numbers != list(range(len(numbers))):
            raise UsageError(f"{prefix} must be numbered from 0 without gaps, got {numbers}")
        return len(numbers)


def set_img_size(found: Translation, places: int, order: Tensor, img_size: Grid | None) -> None:
    """The size of images from the number of tokens, and from the caller where their grid isn't square.

    `order` is how the reference code stores tokens: the left half of the grid row by row, then its mirror images.
    """
    patch = as_pair(found.args["patch_size"], "patch_size")
    side = isqrt(places)
    size = (side * patch[0], side * patch[1]) if img_size is None else img_size
    if not _is_order_of((size[0] // patch[0], size[1] // patch[1]), order, places) or _rest(size, patch):
        what = f"the checkpoint has {places} tokens of {patch[0]} x {patch[1]} pixels"
        if img_size is None:
            raise UsageError(f"{what}, not on a square grid: say img_size=(height, width) (--img-size)")
        raise UsageError(f"{what}, in an order that img_size={img_size} doesn't give: say another one")
    found.args["img_size"] = size[0] if size[0] == size[1] else size


def check_img_size(img_size: Grid, step: Grid) -> None:
    """Refuse a size for a network that takes images of any size, if it doesn't even take this one."""
    if _rest(img_size, step):
        raise UsageError(f"images of this network have sizes that are multiples of {step}, got {img_size}")


def _rest(size: Grid, step: Grid) -> bool:
    return any(s % p for s, p in zip(size, step, strict=True))


def _is_order_of(grid: Grid, order: Tensor, places: int) -> bool:
    height, width = grid
    if height * width != places or width % 2:
        return False
    index = torch.arange(places).view(grid)
    left, right = index[:, : width // 2], index.flip(1)[:, : width // 2]
    return torch.equal(order.cpu().long().flatten(), torch.cat([left.flatten(), right.flatten()]))
