"""Which features of a network are probed, and how a place finds its mirror image.

B images, C channels, H x W places, P tokens without a place (the class token), K chosen places, N tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.grid import Grid

MOST_PREFIX = 8
"""No known network has more class and register tokens than this."""


@dataclass(frozen=True)
class Taken:
    """The features of a layer: maps `(B, C, H, W)`, and tokens without a place `(B, P, C)`."""

    maps: Tensor
    prefix: Tensor

    @property
    def channels(self) -> int:
        return self.maps.shape[1]

    @property
    def grid(self) -> Grid:
        return self.maps.shape[2], self.maps.shape[3]

    def mirrored(self) -> Taken:
        """The columns of the maps in reverse order; the class token stays."""
        return Taken(self.maps.flip(-1), self.prefix)

    def at(self, places: Tensor) -> Tensor:
        """Features `(B, P + K, C)` of the tokens without a place and of places, counted row by row `(K,)`."""
        chosen = self.maps.flatten(2)[:, :, places].transpose(1, 2)
        return torch.cat((self.prefix, chosen), 1)


class Taps(ABC):
    """Takes features of a network at layers, which have names."""

    names: tuple[str, ...]

    @abstractmethod
    def __call__(self, images: Tensor) -> list[Taken]: ...


class Intermediates(Taps):
    """By `forward_intermediates`, as most networks of timm and ours have it."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model
        self.options: dict[str, Any] = {"intermediates_only": True, "output_fmt": "NCHW"}
        self.has_prefix = bool(getattr(model, "num_prefix_tokens", 0)) and (
            "return_prefix_tokens" in signature(self._function).parameters
        )
        if self.has_prefix:
            self.options["return_prefix_tokens"] = True
        number = len(self(example))
        info = getattr(model, "feature_info", None) or []
        modules = [entry["module"] for entry in info] if isinstance(info, list) else []
        self.names = tuple(modules if len(set(modules)) == number else map(str, range(number)))

    @property
    def _function(self) -> Any:
        return self.model.forward_intermediates

    def only(self, names: Sequence[str]) -> Intermediates:
        """The same for some layers; the network stops after the last of them."""
        self.options |= {"indices": [self.names.index(name) for name in names], "stop_early": True}
        self.names = tuple(names)
        return self

    def __call__(self, images: Tensor) -> list[Taken]:
        found = self._function(images, **self.options)
        return [Taken(*taken) if self.has_prefix else Taken(taken, _no_prefix(taken)) for taken in found]


class Hooked(Taps):
    """By hooks on modules, for all other networks; those whose results have no places are left out."""

    def __init__(self, model: nn.Module, names: Sequence[str], example: Tensor) -> None:
        self.model = model
        self.names = tuple(names)
        found = self._run(example)
        self.names = tuple(name for name in names if found.get(name) is not None)

    def _run(self, images: Tensor) -> dict[str, Taken | None]:
        found: dict[str, Taken | None] = {}

        def hook(name: str) -> Any:
            def keep(module: nn.Module, _: object, result: object) -> None:
                found[name] = taken_from(module, result, (images.shape[2], images.shape[3]))

            return keep

        handles = [self.model.get_submodule(name).register_forward_hook(hook(name)) for name in self.names]
        try:
            # a head that reads even channels only may keep the last block from computing the others
            getattr(self.model, "forward_features", self.model)(images)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def __call__(self, images: Tensor) -> list[Taken]:
        found = [taken for taken in map(self._run(images).get, self.names) if taken is not None]
        if len(found) != len(self.names):
            raise ValueError(f"a layer of {', '.join(self.names)} gives other features than it did for the first image")
        return found


def open_taps(model: nn.Module, example: Tensor, layers: Sequence[str] = ()) -> Taps:
    """Where features are taken, found out by running the network on an example `(B, C, H, W)`.

    These are the layers that `forward_intermediates` of a network of timm or of ours gives: the blocks of a
    transformer, the stages of a convolutional network. Where there is none, it is the modules that `feature_info` of a
    network of timm names, else the children of your network, those of its sequences one by one. `layers` chooses among
    them by name, with * and ?; what is none of these names may be that of any module inside. Modules give maps
    `(B, C, H, W)`, tokens `(B, N, C)` in the order of the image's rows behind a few class tokens, or features of our
    layers.
    """
    usual = _usual(model, example)
    if not layers:
        if not usual.names:
            raise ValueError(
                f"no layer of {type(model).__name__} gives maps (B, C, H, W) or tokens (B, N, C) that lie on a grid"
                " of the image, so there is nothing to probe"
            )
        return usual
    chosen = _matching(usual.names, layers)
    if chosen is not None:
        return usual.only(chosen) if isinstance(usual, Intermediates) else Hooked(model, chosen, example)
    everything = [name for name, _ in model.named_modules() if name]
    inside = _matching(everything, layers)
    if inside is None:
        unknown = next(layer for layer in layers if _matching(everything, [layer]) is None)
        raise ValueError(
            f"no layer is called {unknown!r}; those that are probed by default are {', '.join(usual.names) or 'none'}"
        )
    taps = Hooked(model, inside, example)
    if not taps.names:
        raise ValueError(f"{', '.join(layers)}: gives no maps (B, C, H, W) or tokens (B, N, C) on a grid of the image")
    return taps


def _usual(model: nn.Module, example: Tensor) -> Intermediates | Hooked:
    try:
        if hasattr(model, "forward_intermediates"):
            return Intermediates(model, example)
        info = getattr(model, "feature_info", None)
        known = [entry["module"] for entry in info] if isinstance(info, list) else []
        modules = dict(model.named_modules())
        named = [name for name in known if name in modules]
        return Hooked(model, named or list(_children(model)), example)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        shape = " x ".join(map(str, example.shape[1:]))
        reason = " ".join(str(error).split())
        raise ValueError(f"{type(model).__name__} can't be probed with images of {shape}: {reason}") from error


def _children(model: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in model.named_children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            yield from _children(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str] | None:
    """Names that fit a pattern, in their order; None if a pattern fits no name."""
    if not all(any(fnmatchcase(name, pattern) for name in names) for pattern in patterns):
        return None
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def taken_from(module: nn.Module, result: object, img_size: Grid) -> Taken | None:
    """What a module gave as features on a grid, None where it is nothing of the kind."""
    layout = module.out_layout if isinstance(module, fnn.Module) else None
    if layout is not None and isinstance(result, tuple):
        result = layout.merge(result)
        if result.dim() == 4:
            result = result.permute(0, 3, 1, 2)
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return None
    if result.dim() == 4:
        return Taken(result, _no_prefix(result))
    grid = token_grid(result.shape[1], img_size) if result.dim() == 3 else None
    if grid is None:
        return None
    first = result.shape[1] - grid[0] * grid[1]
    maps = result[:, first:].transpose(1, 2).unflatten(2, grid)
    return Taken(maps, result[:, :first])


def token_grid(tokens: int, img_size: Grid) -> Grid | None:
    """How so many tokens lie: on the largest grid of square patches that leaves a few class tokens over.

    >>> token_grid(197, (224, 224)), token_grid(24, (64, 96)), token_grid(150, (224, 224))
    ((14, 14), (4, 6), None)
    """
    height, width = img_size
    for patch in range(1, min(img_size) + 1):
        if height % patch or width % patch:
            continue
        grid = height // patch, width // patch
        over = tokens - grid[0] * grid[1]
        if over >= 0:
            return grid if over <= MOST_PREFIX else None
    return None


def _no_prefix(maps: Tensor) -> Tensor:
    return maps.new_zeros(len(maps), 0, maps.shape[1])
