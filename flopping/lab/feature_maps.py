"""Which features of a network are probed, and where they lie in the image.

B images, C channels, H x W places, P tokens without a place (the class token), K chosen places, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, cat, nn

from flopping import nn as fnn
from flopping.errors import UsageError, as_usage_error
from flopping.functional.grid import Grid

MOST_PREFIX = 8
"""No known network has more class and register tokens than this."""


class Features(NamedTuple):
    """The features of a layer: maps `(B, C, H, W)`, and tokens without a place `(B, P, C)`."""

    maps: Tensor
    prefix: Tensor

    def at(self, places: Tensor, *, mirrored: bool = False) -> Tensor:
        """Features `(B, P + K, C)` of the tokens without a place, and of places, counted row by row `(K,)`.

        `mirrored` gives the features at the mirrored places.
        """
        maps = self.maps.flip(-1) if mirrored else self.maps
        return cat((self.prefix, maps.flatten(2)[:, :, places].mT), 1)


class Layers(NamedTuple):
    """Layers by name, and a function that gives their features for images."""

    names: tuple[str, ...]
    read: Callable[[Tensor], list[Features]]


def find_layers(model: nn.Module, example: Tensor, patterns: Sequence[str] = ()) -> Layers:
    """The layers to probe, found by running the network on an example `(B, C, H, W)`.

    By default these are the layers of `forward_intermediates`: the blocks of a transformer, the stages of a
    convolutional network. Where there is none, they are the modules that `feature_info` of a network of timm names,
    else the children of your network, those of its sequences one by one. `patterns` choose among them by name, with *
    and ?; or among all modules. Modules give maps `(B, C, H, W)`, tokens `(B, N, C)` in the order of the image's rows
    behind a few class tokens, or features of our layers.
    """
    modules = [name for name, _ in model.named_modules() if name]
    shape = " x ".join(map(str, example.shape[1:]))
    context = f"{type(model).__name__} can't be probed with images of {shape}"
    with as_usage_error(AssertionError, RuntimeError, TypeError, ValueError, context=context):
        if hasattr(model, "forward_intermediates"):
            layers = _intermediates(model, example)
        else:
            named = [name for name in _feature_names(model) if name in modules]
            layers = _hooked(model, named or list(_children(model)), example)
    chosen = _matching(layers.names, patterns or ["*"])
    if patterns and not chosen:
        for pattern in patterns:
            if not _matching(modules, [pattern]):
                usual = ", ".join(layers.names) or "none"
                raise UsageError(f"no layer is called {pattern!r}; those that are probed by default are {usual}")
        layers = _hooked(model, _matching(modules, patterns), example)
        chosen = list(layers.names)
    if not chosen:
        what = ", ".join(patterns) or f"no layer of {type(model).__name__}"
        raise UsageError(f"{what}: probed layers give maps (B, C, H, W), or tokens (B, N, C) on a grid of the image")
    places = [layers.names.index(name) for name in chosen]
    return Layers(tuple(chosen), lambda images: list(map(layers.read(images).__getitem__, places)))


def _intermediates(model: Any, example: Tensor) -> Layers:
    """Layers by `forward_intermediates`, as most networks of timm and ours have it."""
    options: dict[str, Any] = {"intermediates_only": True, "output_fmt": "NCHW"}
    if getattr(model, "num_prefix_tokens", 0):
        options["return_prefix_tokens"] = True
    known = signature(model.forward_intermediates).parameters
    options = {name: value for name, value in options.items() if name in known}

    def read(images: Tensor) -> list[Features]:
        found = model.forward_intermediates(images, **options)
        return [_without_prefix(one) if isinstance(one, Tensor) else Features(*one) for one in found]

    names, number = _feature_names(model), len(read(example))
    return Layers(tuple(names if len(set(names)) == number else map(str, range(number))), read)


def _hooked(model: nn.Module, names: Sequence[str], example: Tensor) -> Layers:
    """Layers by hooks on modules; those whose results have no places are left out."""

    def run(images: Tensor) -> dict[str, Features]:
        found: dict[str, Features] = {}

        def hook(name: str) -> Any:
            def keep(module: nn.Module, _: object, result: object) -> None:
                features = features_of(module, result, (images.shape[2], images.shape[3]))
                if features is not None:
                    found[name] = features

            return keep

        handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]
        try:
            # a head that reads even channels only may keep the last block from computing the others
            getattr(model, "forward_features", model)(images)
        finally:
            for handle in handles:
                handle.remove()
        return found

    there = run(example)
    kept = tuple(name for name in names if name in there)
    return Layers(kept, lambda images: list(map(run(images).__getitem__, kept)))


def _feature_names(model: nn.Module) -> list[str]:
    info = getattr(model, "feature_info", None)
    return [entry["module"] for entry in info] if isinstance(info, list) else []


def _children(model: nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in model.named_children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            yield from _children(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Names that match a pattern, in their order; none if a pattern matches no name."""
    if not all(any(fnmatchcase(name, pattern) for name in names) for pattern in patterns):
        return []
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def features_of(module: nn.Module, result: object, img_size: Grid) -> Features | None:
    """The result of a module as features on a grid; None if it has no grid."""
    if isinstance(module, fnn.Module) and module.out_layout is not None and isinstance(result, tuple):
        result = module.out_layout.merge(result)
        if result.dim() == 4:
            result = result.permute(0, 3, 1, 2)
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return None
    if result.dim() == 4:
        return _without_prefix(result)
    grid = token_grid(result.shape[1], img_size) if result.dim() == 3 else None
    if grid is None:
        return None
    first = result.shape[1] - grid[0] * grid[1]
    return Features(result[:, first:].mT.unflatten(2, grid), result[:, :first])


def token_grid(tokens: int, img_size: Grid) -> Grid | None:
    """The largest grid of square patches for so many tokens, a few of which may be class tokens.

    >>> token_grid(197, (224, 224)), token_grid(24, (64, 96)), token_grid(150, (224, 224))
    ((14, 14), (4, 6), None)
    """
    for patch in range(1, min(img_size) + 1):
        grid = img_size[0] // patch, img_size[1] // patch
        over = tokens - grid[0] * grid[1]
        if img_size[0] % patch == img_size[1] % patch == 0 and over >= 0:
            return grid if over <= MOST_PREFIX else None
    return None


def _without_prefix(maps: Tensor) -> Features:
    return Features(maps, maps.new_zeros(len(maps), 0, maps.shape[1]))
