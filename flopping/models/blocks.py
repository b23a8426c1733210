"""The blocks that a network repeats, ours or timm's, and which of them are of the same kind."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import torch
from torch import nn

from flopping.functional.operation import allow_graphs

M = TypeVar("M", bound=nn.Module)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a network: the modules of a list `blocks`, or of `layer1`, `layer2` and so on in timm's ResNets.

    >>> from flopping.models import ConvNeXt
    >>> len(find_blocks(ConvNeXt(depths=(1, 2), dims=(8, 16))))
    3
    """
    lists = [layer for name, layer in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    if not lists:
        stages = (layer for name, layer in model.named_children() if re.fullmatch(r"layer\d+", name))
        lists = [stage for stage in stages if isinstance(stage, nn.Sequential)]
    return [block for found in lists for block in found.children()]


def group_blocks(blocks: list[nn.Module]) -> list[list[nn.Module]]:
    """Group blocks by kind: equal types, settings and shapes, layer by layer. Blocks of a kind can share a graph.

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


def layers_to_compile(model: nn.Module) -> list[nn.Module]:
    """The layers that our networks name as worth compiling, or all blocks of another network."""
    found: list[nn.Module] | None = getattr(model, "layers_to_compile", None)
    return find_blocks(model) if found is None else found


def compile_blocks(model: M, *, every: bool = False, **options: Any) -> M:
    """Compile the blocks of a network in place, each kind once: blocks of one kind share a graph.

    A whole network of 12 equal blocks takes a minute to compile, one block some seconds. What is compiled are the
    model's `layers_to_compile`, if it has them, or all blocks; `every` adds the blocks that they leave out. `options`
    are those of `torch.compile`. Returns the network.

    >>> compile_blocks(nn.Linear(2, 2))
    Traceback (most recent call last):
    ...
    ValueError: Linear has no blocks to compile: neither a list 'blocks' nor a Sequential 'layer1'
    """
    parts = layers_to_compile(model)
    if every:
        parts = list(dict.fromkeys([*parts, *find_blocks(model)]))
    if not parts:
        raise ValueError(
            f"{type(model).__name__} has no blocks to compile: neither a list 'blocks' nor a Sequential 'layer1'"
        )
    # each kind may need graphs of its own: for training, for tests, for sizes of batches, for the last block
    allow_graphs(8 * len(group_blocks(parts)))
    for part in parts:
        part.compile(**options)
    return model
