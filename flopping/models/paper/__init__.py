"""What the paper and Octic Vision Transformers report, as data."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

_LETTERS = {"baseline": "", "equivariant": "E", "hybrid": "H", "invariant": "I"}


@dataclass(frozen=True)
class Published:
    """What was published about a network. Figures of octic networks are rounded to whole M and G."""

    name: str
    """ViT-B, or E(ViT-B), H(ViT-B), I(ViT-B), octic H(ViT-L)."""
    params_m: float | None
    flops_g: float
    top1: float | None
    """Per cent on ImageNet, of a linear probe for DINOv2; E(ViT-S) did not converge."""

    @property
    def ordinary(self) -> str:
        """The name of X, for X itself and its twins."""
        return ordinary_name(self.name)

    @property
    def digits(self) -> int:
        """To how many decimals the figures are rounded."""
        return 0


@dataclass(frozen=True)
class Result(Published):
    """A row of the paper's table of networks."""

    params_m: float
    throughput: float
    """Images per second on an A100."""
    memory_mb: float

    @property
    def digits(self) -> int:
        return 1


def split_name(name: str) -> tuple[str, str, str]:
    """A name as its group (flop where none is named), the letter of its kind, and X; X itself is trivial and an "X".

    >>> split_name("octic H(ViT-L)"), split_name("E(ConvNeXt-S (iso.))"), split_name("ConvNeXt-S (iso.)")
    (('octic', 'H', 'ViT-L'), ('flop', 'E', 'ConvNeXt-S (iso.)'), ('trivial', 'X', 'ConvNeXt-S (iso.)'))
    """
    match = re.fullmatch(r"(?:(\w+) )?([A-Z])\((.*)\)", name)
    return (match[1] or "flop", match[2], match[3]) if match else ("trivial", "X", name)


def ordinary_name(name: str) -> str:
    """X, from the name of X, E(X), H(X), I(X) or one of them after a group.

    >>> ordinary_name("E(ConvNeXt-S (iso.))"), ordinary_name("ViT-B"), ordinary_name("octic E(ViT-B)")
    ('ConvNeXt-S (iso.)', 'ViT-B', 'ViT-B')
    """
    return split_name(name)[2]


def family(name: str) -> str:
    """The architecture that a network of the paper belongs to.

    >>> family("H(ViT-B)"), family("E(ConvNeXt-S (iso.))")
    ('ViT', 'ConvNeXt')
    """
    return ordinary_name(name).partition("-")[0]


@lru_cache
def results() -> dict[str, Result]:
    """The paper's networks by name.

    >>> results()["E(ViT-B)"].params_m
    43.3
    """
    found = {}
    for name, row in _read("table1.csv"):
        found[name] = Result(
            name=name,
            params_m=float(row["params_m"]),
            flops_g=float(row["flops_g"]),
            top1=_number(row["top1"]),
            throughput=float(row["throughput_a100"]),
            memory_mb=float(row["peak_mem_mb"]),
        )
    return found


@lru_cache
def published() -> dict[str, Published]:
    """The paper's networks and those of Octic Vision Transformers, by name.

    >>> published()["octic H(ViT-L)"].flops_g
    38.0
    """
    found: dict[str, Published] = dict(results())
    for name, row in _read("octic.csv", "octic "):
        found[name] = Published(name, _number(row["params_m"]), float(row["flops_g"]), _number(row["top1"]))
    return found


def _read(table: str, group: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table, by the names of their networks."""
    with files(__name__).joinpath(table).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            letter = _LETTERS[row["variant"]]
            yield f"{group}{letter}({row['model']})" if letter else row["model"], row


def _number(text: str) -> float | None:
    return float(text) if text else None
