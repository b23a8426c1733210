"""How a checkpoint of other code becomes one of ours: tables of rules from its keys to our keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flopping.errors import UsageError
from flopping.models.backbone import Backbone
from flopping.models.sizes import VITS

_HEADS = {width: heads for name, (width, _, heads, _) in VITS.items() if name != "test"}


class Source(dict[str, Tensor]):
    """The weights of a checkpoint, and what they tell about the architecture."""

    def find(self, key: str) -> Tensor:
        if key not in self:
            raise UsageError(f"the checkpoint lacks {key}, which tells what network it is")
        return self[key]

    def shape(self, key: str, axes: int) -> tuple[int, ...]:
        shape = tuple(self.find(key).shape)
        if len(shape) != axes:
            raise UsageError(f"{key} has {axes} axes in such checkpoints, got shape {shape}")
        return shape

    def depth(self, prefix: str) -> int:
        """How many blocks `prefix.0`, `prefix.1`, ... there are."""
        matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", key) for key in self)
        numbers = sorted({int(match[1]) for match in matches if match})
        if not numbers or numbers != list(range(len(numbers))):
            raise UsageError(f"{prefix} must be numbered from 0 without gaps, got {numbers}")
        return len(numbers)

    def first_ordinary(self, depth: int) -> int | None:
        """The transformer block from which on all of them are ordinary ones; None where none is."""
        ordinary = [block for block in range(depth) if f"blocks.{block}.attn.qkv.weight" in self]
        if ordinary != list(range(depth - len(ordinary), depth)):
            raise UsageError(f"ordinary blocks stand after the equivariant ones, got ordinary blocks {ordinary}")
        return ordinary[0] if ordinary else None


def find_heads(width: int, num_heads: int | None) -> int:
    """The heads of a transformer: what the caller says, or those of the published network of the same width."""
    if num_heads is None and width not in _HEADS:
        known = ", ".join(f"{w}: {h}" for w, h in sorted(_HEADS.items()))
        raise UsageError(f"shapes don't tell the heads of a width of {width} (known: {known}): say num_heads")
    return _HEADS[width] if num_heads is None else num_heads


def same(value: Tensor) -> Tensor:
    return value


def ignore(value: Tensor) -> None:
    """For what the reference code stores and never applies, or what is read as an argument."""


def require_zero(value: Tensor) -> None:
    if value.any():
        raise ValueError("it must be zero, or the network would not follow the group")


Rule = tuple[str, str, Callable[..., Tensor | None]]
"""A key of theirs (`#` is a number, `@` sym or asym), our key, and what the values become.

Several keys of theirs that give one of ours are handed over together, those of sym first, then by their names.
"""
LAYERS = "(attn.qkv|attn.proj|mlp.fc1|mlp.fc2)"


def ordinary_blocks(irrep: str) -> tuple[Rule, ...]:
    """Transformer blocks after a hand-off, and the head; `irrep` is what ours call the only one that they have."""
    return (
        (f"blocks.#.{LAYERS}.(weight|bias)", rf"blocks.\1.\2.{irrep}.\3", same),
        ("(blocks.#.norm#|norm).weight", rf"\1.weight.{irrep}", same),
        ("(blocks.#.norm#|norm).bias", r"\1.bias", same),
        ("blocks.#.gamma_#", rf"blocks.\1.ls\2.gamma.{irrep}", same),
        ("blocks.#.ls#.gamma", rf"blocks.\1.ls\2.gamma.{irrep}", same),
        ("head.(weight|bias)", r"head.\1", same),
    )


@dataclass(frozen=True)
class Family:
    """An architecture of a foreign code base: of the paper's reference code, or of octic-vits."""

    mark: str
    """A part of keys that no other family has."""
    model: type[Backbone]
    find_args: Callable[..., dict[str, Any]]
    """The arguments of our class, from the weights and from the hints that callers give."""
    rules: tuple[Rule, ...]


def translate_weights(source: Source, rules: tuple[Rule, ...]) -> dict[str, tuple[tuple[str, ...], Tensor]]:
    """Our weights by their names, each with the keys that it was made of. Keys without a rule are refused."""
    patterns = [
        (re.compile(theirs.replace(".", r"\.").replace("#", r"(\d+)").replace("@", "(a?sym)")), ours, change)
        for theirs, ours, change in rules
    ]
    groups: dict[tuple[str, Callable[..., Tensor | None]], list[str]] = {}
    strange = []
    for key in sorted(source, key=lambda key: ("asym_to_" in key, key)):
        for pattern, ours, change in patterns:
            if match := pattern.fullmatch(key):
                name = match.expand(ours).replace("asym", "odd").replace("sym", "even") or key
                groups.setdefault((name, change), []).append(key)
                break
        else:
            strange.append(key)
    if strange:
        raise UsageError(f"no network that can be converted has such weights: {', '.join(sorted(strange)[:4])}")
    found = {}
    for (name, change), keys in groups.items():
        # in half precision, factors would round
        values = [source[key].to(torch.promote_types(source[key].dtype, torch.float32)) for key in keys]
        try:
            value = change(*values)
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            shapes = ", ".join(f"{key} {tuple(source[key].shape)}" for key in keys)
            raise UsageError(f"{shapes} can't become {name}: {error}") from error
        if value is not None:
            found[name] = tuple(keys), value
    return found
