"""What the paper reports, as data."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

_LETTERS = {"baseline": "", "equivariant": "E", "hybrid": "H", "invariant": "I"}


@dataclass(frozen=True)
class Result:
    """A row of the paper's table of networks."""

    name: str
    """ViT-B, or E(ViT-B), H(ViT-B), I(ViT-B)."""
    params_m: float
    flops_g: float
    throughput: float
    """Images per second on an A100."""
    memory_mb: float
    top1: float | None
    """Per cent on ImageNet; E(ViT-S) did not converge."""

    @property
    def ordinary(self) -> str:
        """The name of X, for X itself, E(X), H(X) and I(X)."""
        return ordinary_name(self.name)


def split_name(name: str) -> tuple[str, str, str]:
    """A name as its group (flop where none is named), the letter of its kind, and X; X itself is trivial and an "X".

    >>> split_name("octic H(ViT-L)"), split_name("E(ConvNeXt-S (iso.))"), split_name("ConvNeXt-S (iso.)")
    (('octic', 'H', 'ViT-L'), ('flop', 'E', 'ConvNeXt-S (iso.)'), ('trivial', 'X', 'ConvNeXt-S (iso.)'))
    """
    match = re.fullmatch(r"(?:(\w+) )?([A-Z])\((.*)\)", name)
    return (match[1] or "flop", match[2], match[3]) if match else ("trivial", "X", name)


def ordinary_name(name: str) -> str:
    """X, from the name of X, E(X), H(X), I(X) or one of them behind a group.

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
    with files(__name__).joinpath("table1.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            letter = _LETTERS[row["variant"]]
            name = f"{letter}({row['model']})" if letter else row["model"]
            found[name] = Result(
                name,
                float(row["params_m"]),
                float(row["flops_g"]),
                float(row["throughput_a100"]),
                float(row["peak_mem_mb"]),
                float(row["top1"]) if row["top1"] else None,
            )
    return found
