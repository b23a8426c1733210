"""Running a probe: images and their mirror images through a network, and what is kept of their features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from flopping.probe.fit import PAIRS_PER_CHANNEL
from flopping.probe.layers import Taken, Taps, open_taps
from flopping.probe.moments import Moments
from flopping.probe.report import Folds, Report, examine

ROLES = 4
"""Of four images in a row two are for the fit, one for the choice of the ridge, one for the test."""
FIT, CHOOSE, TEST = (0, 1), (2,), (3,)
PLACES = 16
"""Places of an image that are looked at in every layer, if it has as many."""
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
    """How well the features of mirror images are foretold by those of images, layer by layer.

    `batches` are images `(B, C, H, W)` as the network takes them, in random order, on its device; the first `images`
    of them are used. `layers` as for `open_taps`. Memory is needed for six matrices C x C in float64 per layer, and
    the features of one batch. The network runs in evaluation mode, and is left as it was.

    >>> from flopping.models import VisionTransformer
    >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, invariant_share=0.5)
    >>> layer = probe(model, torch.randn(4, 8, 3, 32, 32), images=32).layers[-1]
    >>> layer.name, layer.even, layer.odd, layer.error < 1e-6
    ('blocks.1', 12, 4, True)
    """
    if images < ROLES:
        raise ValueError(f"a probe takes {ROLES} images at least, got {images}")
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
    layers: Sequence[str],
    seed: int,
    each: Callable[[int], None],
) -> Report:
    generator = torch.Generator().manual_seed(seed)
    taps: Taps | None = None
    moments: list[list[Moments]] = []
    number = 0
    for batch in batches:
        batch = batch[: images - number]
        if taps is None:
            taps = open_taps(model, batch[:1], layers)
        seen, mirrored = taps(batch), taps(batch.flip(-1))
        if not moments:
            _require_places(taps.names, seen, images)
            moments = [[Moments(taken.channels, batch.device) for _ in range(ROLES - 1)] for taken in seen]
        roles = (torch.arange(number, number + len(batch), device=batch.device)) % ROLES
        for kept, one, other in zip(moments, seen, mirrored, strict=True):
            places = chosen_places(one, images, generator).to(batch.device)
            f, g = one.at(places), other.mirrored().at(places)
            for moment, wanted in zip(kept, (FIT, CHOOSE, TEST), strict=True):
                mine = torch.isin(roles, torch.tensor(wanted, device=batch.device))
                moment.add(f[mine].flatten(0, 1), g[mine].flatten(0, 1))
        number += len(batch)
        each(number)
        if number >= images:
            break
    if taps is None or number < ROLES:
        raise ValueError(f"a probe takes {ROLES} images at least, got {number}")
    found = [examine(name, Folds(*kept)) for name, kept in zip(taps.names, moments, strict=True)]
    return Report(number, tuple(found))


def wanted_places(taken: Taken, images: int) -> int:
    """How many places of each image are looked at."""
    there = taken.grid[0] * taken.grid[1]
    return min(there, max(PLACES, -(-PAIRS * taken.channels // images)))


def chosen_places(taken: Taken, images: int, generator: torch.Generator) -> Tensor:
    """Random places `(K,)`, counted row by row."""
    there = taken.grid[0] * taken.grid[1]
    return torch.randperm(there, generator=generator)[: wanted_places(taken, images)]


def _require_places(names: Sequence[str], seen: Sequence[Taken], images: int) -> None:
    """Refuse before the work what would be refused after it: too few pairs for the channels of a layer."""
    for name, taken in zip(names, seen, strict=True):
        each = wanted_places(taken, images) + taken.prefix.shape[1]
        fitted = images * len(FIT) // ROLES
        if each * fitted < PAIRS_PER_CHANNEL * taken.channels:
            needed = -(-PAIRS_PER_CHANNEL * taken.channels * ROLES // (each * len(FIT)))
            raise ValueError(
                f"layer {name!r} has {taken.channels} channels at {each} places: that takes {needed} images at least,"
                f" got {images}. Take more, or leave the layer out"
            )
