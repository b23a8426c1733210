"""The blocks that a network repeats, ours or timm's, and which of them are of the same kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a network: what lies in a list called `blocks`.

    >>> from flopping.models import ConvNeXt
    >>> len(find_blocks(ConvNeXt(depths=(1, 2), dims=(8, 16))))
    3
    """
    lists = [layer for name, layer in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    return [block for found in lists for block in found.children()]


def group_blocks(blocks: list[nn.Module]) -> list[list[nn.Module]]:
    """Blocks of the same kind together: equal types, settings and shapes, layer by layer. One graph serves a kind.

    >>> from flopping.models import ConvNeXt
    >>> [len(kind) for kind in group_blocks(find_blocks(ConvNeXt(depths=(1, 2), dims=(8, 16))))]
    [1, 2]
    """
    kinds: list[tuple[object, list[nn.Module]]] = []
    for block in blocks:
        description = _describe(block)
        same = next((members for other, members in kinds if other == description), None)
        if same is None:
            kinds.append((description, [block]))
        else:
            same.append(block)
    return [members for _, members in kinds]


def _describe(block: nn.Module) -> list[tuple[str, type, dict[str, Any], list[tuple[str, torch.Size, torch.dtype]]]]:
    """Names, types, public attributes, and shapes of the tensors of all layers of a block."""
    found = []
    for name, layer in block.named_modules():
        settings = {key: value for key, value in vars(layer).items() if key[0] != "_" and key != "training"}
        tensors = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        found.append((name, type(layer), settings, [(key, value.shape, value.dtype) for key, value in tensors]))
    return found
