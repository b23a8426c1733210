"""Running a probe: images and their mirror images through a network, and the moments of their features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from flopping.errors import UsageError
from flopping.lab.probe.fit import PAIRS_PER_CHANNEL, Moments
from flopping.lab.probe.layers import Features, Layers, find_layers
from flopping.lab.probe.report import Folds, Report, examine

ROLES = 4
FIT, CHOOSE, TEST = (0, 1), (2,), (3,)
"""Of four images in a row two are for the fit, one for the choice of the ridge, one for the test."""
PLACES = 16
"""Places of an image that are read in every layer, if it has as many."""
PAIRS = 16
"""Pairs for each channel that are wanted of all images together, by more places where a layer is wide."""


def probe(
    model: nn.Module,
    batches: Iterable[Tensor],
    images: int,
    *,
    layers: Sequence[str] = (),
    seed: int = 0,
    each: Callable[[int], None] = lambda _: None,
) -> Report:
    """How well the features of mirror images are predicted by those of images, layer by layer.

    `batches` are images `(B, C, H, W)` as the network takes them, in random order, on its device; the first `images`
    of them are used. `layers` as for `find_layers`. Memory is needed for six matrices C x C in float64 per layer, and
    the features of one batch. The network runs in evaluation mode, and is left as it was.

    >>> from flopping.models import VisionTransformer
    >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, invariant_share=0.5)
    >>> layer = probe(model, torch.randn(4, 8, 3, 32, 32), images=32).layers[-1]
    >>> layer.name, layer.even, layer.odd, layer.error < 1e-6
    ('blocks.1', 12, 4, True)
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            return _probe(model.eval(), batches, images, layers, seed, each)
    finally:
        for module, training in modes:
            module.training = training


def _probe(
    model: nn.Module,
    batches: Iterable[Tensor],
    images: int,
    patterns: Sequence[str],
    seed: int,
    each: Callable[[int], None],
) -> Report:
    generator = torch.Generator().manual_seed(seed)
    layers: Layers | None = None
    moments: list[Folds] = []
    number = 0
    for batch in batches if images >= ROLES else ():
        batch = batch[: images - number]
        if layers is None:
            layers = find_layers(model, batch[:1], patterns)
        seen, mirrored = layers.read(batch), layers.read(batch.flip(-1))
        if not moments:
            _require_places(layers.names, seen, images)
            channels = [features.maps.shape[1] for features in seen]
            moments = [Folds(*(Moments(width, batch.device) for _ in range(3))) for width in channels]
        roles = torch.arange(number, number + len(batch)) % ROLES
        for folds, one, other in zip(moments, seen, mirrored, strict=True):
            places = torch.randperm(one.places, generator=generator)[: _wanted_places(one, images)].to(batch.device)
            f, g = one.at(places), other.mirrored().at(places)
            for moment, wanted in ((folds.fit, FIT), (folds.choose, CHOOSE), (folds.test, TEST)):
                mine = torch.isin(roles, torch.tensor(wanted)).to(batch.device)
                moment.add(f[mine].flatten(0, 1), g[mine].flatten(0, 1))
        number += len(batch)
        each(number)
        if number >= images:
            break
    if layers is None or number < ROLES:
        raise UsageError(f"a probe takes {ROLES} images at least, got {min(images, number) or images}")
    return Report(number, tuple(examine(name, folds) for name, folds in zip(layers.names, moments, strict=True)))


def _wanted_places(features: Features, images: int) -> int:
    """How many places of each image are read."""
    return min(features.places, max(PLACES, -(-PAIRS * features.maps.shape[1] // images)))


def _require_places(names: Sequence[str], seen: Sequence[Features], images: int) -> None:
    """Raise early if a layer has too few pairs for its channels."""
    for name, features in zip(names, seen, strict=True):
        channels, each = features.maps.shape[1], _wanted_places(features, images) + features.prefix.shape[1]
        needed = -(-PAIRS_PER_CHANNEL * channels * ROLES // (each * len(FIT)))
        if each * (images * len(FIT) // ROLES) < PAIRS_PER_CHANNEL * channels:
            raise UsageError(
                f"layer {name!r} has {channels} channels at {each} places: that takes {needed} images at least,"
                f" got {images}. Take more, or leave the layer out"
            )
