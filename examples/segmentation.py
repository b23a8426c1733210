"""Segmentation whose mask flops with the image: an equivariant backbone, an equivariant head, a few dozen steps.

The pictures are made on the fly: a fish in noisy water, to be split into body and tail. In training every fish swims to
the left. The equivariant network then knows fish that swim to the right too; with an ordinary head on the very same
backbone it doesn't.

    python examples/segmentation.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping import Feature, Layout, flop, functional
from flopping import nn as fnn

CLASSES = ("water", "body", "tail")
SIZE = 64


def fish(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images `(B, 3, 64, 64)` of fish that swim to the left, and their masks `(B, 64, 64)` of class numbers."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    axis = torch.linspace(-1, 1, SIZE)
    length = uniform(0.35, 0.55, 1, 1)
    u = (axis[None, :] - uniform(-0.4, 0.1, 1, 1)) / length
    v = (axis[:, None] - uniform(-0.4, 0.4, 1, 1)) / (length * uniform(0.6, 0.9, 1, 1))
    tail = (u > 0.8) & (u < 1.7) & (v.abs() < u - 0.6)
    body = u.square() + v.square() < 1
    mask = torch.where(body, 1, torch.where(tail, 2, 0))

    water, skin = uniform(-1.5, 0, 3, 1, 1), uniform(0, 1.5, 3, 1, 1)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return torch.where((mask > 0)[:, None], skin, water) + 0.5 * noise, mask


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear, which treats left and right alike."""
    return F.interpolate(x, size=tuple(size), mode="bilinear")


class EquivariantHead(nn.Module):
    """Maps of several scales `(B, C, H, W)`, channels [even | odd], to logits of every place of the finest one.

    All layers but the last take and give (even, odd). The last reads even only, so its logits move with the image.
    """

    def __init__(self, layouts: Sequence[Layout], width: Layout, num_classes: int) -> None:
        super().__init__()
        self.layouts, self.width = layouts, width
        self.laterals = nn.ModuleList(fnn.Linear(layout, width) for layout in layouts)
        self.smooth = fnn.Sequential(fnn.DepthwiseConv2d(width, 3), fnn.LayerNorm(width), fnn.Mlp(width, width * 2))
        self.logits = fnn.InvariantHead(width, num_classes, pool=None)

    def fuse(self, maps: Sequence[Tensor]) -> Feature:
        """Every scale at one width and the finest size, summed."""
        total = maps[0].new_zeros(())
        for x, layout, lateral in zip(maps, self.layouts, self.laterals, strict=True):
            packed = self.width.merge(lateral(layout.split(channels_last(x))))
            total = total + resize(channels_first(packed), maps[0].shape[2:])
        return self.width.split(channels_last(total))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        x = self.fuse(maps)
        return channels_first(self.logits(functional.add(x, self.smooth(x))))


class OrdinaryHead(nn.Module):
    """What one would write for any backbone: it takes odd channels for ordinary ones, and that breaks the symmetry."""

    def __init__(self, channels: Sequence[int], width: int, num_classes: int) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(nn.Conv2d(c, width, 1) for c in channels)
        self.logits = nn.Sequential(nn.GELU(), nn.Conv2d(width, num_classes, 1))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        wide = [resize(lateral(x), maps[0].shape[2:]) for x, lateral in zip(maps, self.laterals, strict=True)]
        logits: Tensor = self.logits(torch.stack(wide).sum(0))
        return logits


class Segmenter(nn.Module):
    """A backbone with maps at 1/4, 1/8 and 1/16, a head, and logits `(B, classes, H, W)` for every pixel."""

    def __init__(self, equivariant: bool) -> None:
        super().__init__()
        # without layer scales, which start blocks at almost nothing: a few dozen steps don't wake them up
        self.backbone = timm.create_model(
            "convnext_flop_test", features_only=True, out_indices=(0, 1, 2), init_values=None
        )
        self.head: nn.Module
        if equivariant:
            layouts = [self.backbone.model.layouts[i] for i in self.backbone.out_indices]
            self.head = EquivariantHead(layouts, Layout.regular(flop, 32), len(CLASSES))
        else:
            self.head = OrdinaryHead(self.backbone.feature_info.channels(), 32, len(CLASSES))

    def forward(self, image: Tensor) -> Tensor:
        return resize(self.head(self.backbone(image)), image.shape[2:])


def train(model: nn.Module, steps: int, batch: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    model.train()
    for _ in range(steps):
        images, masks = fish(batch, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images), masks).backward()
        optimizer.step()
        schedule.step()
    model.eval()


def mean_iou(predicted: Tensor, masks: Tensor) -> float:
    """Intersection over union, mean over the classes. All water scores below 1/3."""
    pairs = [(predicted == c, masks == c) for c in range(len(CLASSES))]
    return sum(float((p & m).sum() / (p | m).sum()) for p, m in pairs) / len(CLASSES)


class Report(NamedTuple):
    """What one network did; the mirror error is that of logits, relative to the largest."""

    before: float
    after: float
    mirrored: float
    """Mean IoU on the held-out images flopped: fish that swim to the right."""
    mirror_error: float
    mask_flops: bool


@torch.no_grad()
def mirror_check(model: nn.Module, images: Tensor) -> tuple[float, bool]:
    """How far logits of flopped images are from flopped logits, and whether the masks agree in every pixel."""
    logits, flopped = model(images), model(images.flip(-1)).flip(-1)
    error = (logits - flopped).abs().max() / logits.abs().max()
    # Masks in float64: among 10^5 pixels, a few may have two classes within the rounding of float32 of each other.
    model.double()
    mask, flopped_mask = (model(x.double()).argmax(1) for x in (images, images.flip(-1)))
    model.float()
    return float(error), torch.equal(mask, flopped_mask.flip(-1))


def run(equivariant: bool, steps: int, batch: int, held_out: int, seed: int = 0) -> Report:
    """Train one network and look at it before and after, on images that it hasn't seen."""
    torch.manual_seed(seed)
    model = Segmenter(equivariant).eval()
    images, masks = fish(held_out, torch.Generator().manual_seed(seed + 1))

    @torch.no_grad()
    def score(images: Tensor, masks: Tensor) -> float:
        return mean_iou(model(images).argmax(1), masks)

    before = score(images, masks)
    train(model, steps, batch, torch.Generator().manual_seed(seed + 2))
    after, mirrored = score(images, masks), score(images.flip(-1), masks.flip(-1))
    return Report(before, after, mirrored, *mirror_check(model, images))


def main(steps: int = 60, batch: int = 16, held_out: int = 64) -> dict[str, Report]:
    """Train both networks, print what they do, and check that the equivariant one's mask flops with the image."""
    torch.set_num_threads(1)  # the maps are so small that more threads mostly wait for each other
    reports = {name: run(name == "equivariant", steps, batch, held_out) for name in ("equivariant", "ordinary")}
    print("mean IoU on held-out fish; swimming to the right was never trained\n")
    print(f"{'head':12} {'untrained':>9} {'left':>6} {'right':>6} {'mirror error':>13}  mask flops")
    for name, r in reports.items():
        flops = "yes" if r.mask_flops else "no"
        print(f"{name:12} {r.before:9.2f} {r.after:6.2f} {r.mirrored:6.2f} {r.mirror_error:13.1e}  {flops}")
    assert reports["equivariant"].mirror_error < 1e-4
    assert reports["equivariant"].mask_flops
    assert not reports["ordinary"].mask_flops
    return reports


if __name__ == "__main__":
    main()
