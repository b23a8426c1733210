"""Whether an exported network is the network: read back, and compared with it number by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.models.backbone import Backbone
from flopping.testing import relative_error
from flopping.training.networks import ignores_mirroring
from flopping.training.trained import normalisation_of

Run = Callable[[Tensor], Tensor]
"""From images `(B, C, H, W)` to logits `(B, classes)`."""
TOLERANCE = 1e-4
"""The largest difference of two logits, as a share of the largest logit, that rounding may account for."""


class CheckFailedError(RuntimeError):
    """What was written doesn't do what the network does."""


@dataclass(frozen=True)
class Checked:
    """What a check found; differences are shares of the largest logit."""

    batches: tuple[int, ...]
    """How many images there were at a time."""
    difference: float
    """Between the logits of what was written and those of the network."""
    mirror_difference: float
    """Between the logits of images and of mirrored images, both by what was written."""
    ignores_mirroring: bool
    """Whether the network gives the same logits for both: E(X) and I(X) do, H(X) and X don't."""


def pictures(model: nn.Module, size: tuple[int, int, int], batch: int) -> Tensor:
    """Made-up pictures `(batch, *size)`, normalised as the network wants it: soft shapes and a little noise.

    >>> tuple(pictures(nn.Identity(), (3, 8, 8), batch=2).shape)
    (2, 3, 8, 8)
    """
    normal = normalisation_of(model, size[0])
    generator = torch.Generator().manual_seed(batch)
    coarse = torch.rand(batch, size[0], 6, 6, generator=generator)
    shapes = F.interpolate(coarse, size=size[1:], mode="bicubic")
    pixels = (shapes + 0.05 * torch.randn(batch, *size, generator=generator)).clamp(0, 1)
    shift, scale = (torch.tensor(values)[:, None, None] for values in (normal.mean, normal.std))
    return (pixels - shift) / scale


def has_mirror_property(model: nn.Module, images: Tensor) -> bool:
    """Whether mirrored images have the same logits: by construction for our networks, for others as these ones say."""
    if isinstance(model, Backbone):
        return ignores_mirroring(model)
    return relative_error(model(images.flip(-1)), model(images)) < TOLERANCE / 10


@torch.no_grad()
def check(run: Run, model: nn.Module, batches: Sequence[Tensor]) -> Checked:
    """Compare what was written with the network itself, on images and mirrored images, in batches of several sizes."""
    difference = mirror = 0.0
    expected = True
    for images in batches:
        expected = expected and has_mirror_property(model, images)
        mirrored = images.flip(-1)
        logits, mirrored_logits = run(images), run(mirrored)
        difference = max(
            difference, relative_error(logits, model(images)), relative_error(mirrored_logits, model(mirrored))
        )
        mirror = max(mirror, relative_error(mirrored_logits, logits))
    found = Checked(tuple(len(images) for images in batches), difference, mirror, expected)
    if difference > TOLERANCE:
        raise CheckFailedError(f"its logits differ from the network's by {difference:.1e} of the largest")
    if expected and mirror > TOLERANCE:
        raise CheckFailedError(f"its logits for mirrored images differ by {mirror:.1e} of the largest")
    return found
