"""All that the picture and the page show, in numbers and in words: chosen once, drawn by both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flopping.classifier import Classifier
from flopping.models.zoo import names_in_paper
from flopping.show.capture import Captured, capture
from flopping.show.channels import chosen
from flopping.testing import relative_error

Map = NDArray[np.float32]
Kind = Literal["even", "odd", "plain"]
SAME = 1e-4
"""Relative differences up to here are rounding."""
SHOWN_CLASSES = 5


@dataclass(frozen=True)
class Pair:
    """A map `(h, w)` of the image, and the same of the mirror image."""

    name: str
    image: Map
    mirrored: Map

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value of both: one scale of colours for two maps."""
        return min(self.image.min(), self.mirrored.min()).item(), max(self.image.max(), self.mirrored.max()).item()

    @property
    def symmetric_limits(self) -> tuple[float, float]:
        """The same around 0, where the sign counts."""
        largest = max(map(abs, self.limits))
        return -largest, largest

    @property
    def change(self) -> Map:
        """What the mirror image's map has beyond the mirrored map."""
        return self.mirrored - self.image[:, ::-1]


@dataclass(frozen=True)
class Row:
    """Channels of one kind, and how far the network is from the law there."""

    kind: Kind
    pairs: tuple[Pair, ...]
    difference: float


@dataclass(frozen=True)
class Score:
    """What is said about a class."""

    label: str
    logits: tuple[float, float]
    probabilities: tuple[float, float]


@dataclass(frozen=True)
class View:
    """A network's view of an image. Differences are the largest ones, relative to the largest value."""

    model: str
    trained: bool | None
    """None for a module of yours, of which nobody knows."""
    group: str | None
    """What the features follow; None for networks that aren't ours."""
    pixels: NDArray[np.uint8]
    """The image as the network got it, `(H, W)` or `(H, W, 3)`."""
    block: int
    blocks: int
    unit: str
    rows: tuple[Row, ...]
    focus: Pair
    """Attention of the class token, or where features are strong."""
    is_attention: bool
    focus_block: int
    focus_difference: float
    scores: tuple[Score, ...]
    """Of the classes that come first for one image or the other."""
    logits_difference: float
    answers: tuple[str, str]
    """The class that comes first, for the image and for the mirror image; empty without classes."""

    @property
    def same(self) -> bool:
        """Whether the answer doesn't depend on the mirror."""
        return self.logits_difference <= SAME

    def numbers(self) -> dict[str, Any]:
        """What there is to know without looking, for JSON."""
        return {
            "model": self.model,
            "trained": self.trained,
            "group": self.group,
            "block": self.block,
            "blocks": self.blocks,
            "channels": {row.kind: [pair.name for pair in row.pairs] for row in self.rows},
            "differences": {
                **{row.kind: row.difference for row in self.rows},
                "attention" if self.is_attention else "strength": self.focus_difference,
                "logits": self.logits_difference,
            },
            "top": [
                {
                    "label": score.label,
                    "logit": score.logits[0],
                    "mirrored_logit": score.logits[1],
                    "probability": score.probabilities[0],
                    "mirrored_probability": score.probabilities[1],
                }
                for score in self.scores
            ],
        }


def look(classifier: Classifier, image: Image.Image, *, block: int | None = None, channels: int = 3) -> View:
    """Show an image and its mirror image to a network.

    `block` counts from 0; by default it is one that shows places well. `channels` are shown of each kind.
    """
    prepared = classifier.prepare([image])
    seen = capture(classifier.model, prepared, block)
    focus = seen.attention if seen.attention is not None else seen.features.square().mean(1).sqrt()
    name = names_in_paper().get(classifier.name, classifier.name)
    return View(
        model=name,
        trained=classifier.trained,
        group=None if seen.layout is None else seen.layout.group.name,
        pixels=_pixels(classifier, prepared),
        block=seen.block,
        blocks=seen.blocks,
        unit=seen.unit,
        rows=tuple(_rows(seen, channels)),
        focus=_pair("", focus),
        is_attention=seen.attention is not None,
        focus_block=seen.attention_block if seen.attention is not None else seen.block,
        focus_difference=_difference(focus, 1.0),
        scores=tuple(_scores(seen.logits, classifier.labels)),
        logits_difference=relative_error(seen.logits[1], seen.logits[0]),
        answers=_answers(seen.logits, classifier.labels),
    )


def _pixels(classifier: Classifier, prepared: Tensor) -> NDArray[np.uint8]:
    """The image that the network got, before it was shifted and scaled."""
    preparation = classifier.preparation
    bytes_CHW = (prepared[0] * preparation.std + preparation.mean).round().clamp(0, 255).byte().cpu()
    pixels: NDArray[np.uint8] = bytes_CHW.permute(1, 2, 0).numpy()
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels


def _rows(seen: Captured, channels: int) -> list[Row]:
    signs = seen.parities
    if signs is None:
        return [_row("plain", seen.features, list(range(seen.features.shape[1])), channels)]
    members: dict[Kind, list[int]] = {
        "even": (signs > 0).nonzero()[:, 0].tolist(),
        "odd": (signs < 0).nonzero()[:, 0].tolist(),
    }
    return [_row(kind, seen.features, numbers, channels) for kind, numbers in members.items() if numbers]


def _row(kind: Kind, features: Tensor, members: list[int], channels: int) -> Row:
    maps = features[:, members]
    best = chosen(maps[0], channels, signed=kind == "odd")
    pairs = tuple(_pair(f"channel {members[index]}", maps[:, index]) for index in best)
    return Row(kind, pairs, _difference(maps, -1.0 if kind == "odd" else 1.0))


def _pair(name: str, maps: Tensor) -> Pair:
    image, mirrored = maps.float().cpu().numpy()
    return Pair(name, image, mirrored)


def _difference(both: Tensor, sign: float) -> float:
    """How far maps of the mirror image are from the mirrored maps, times a sign."""
    return relative_error(both[1], sign * both[0].flip(-1))


def _answers(logits: Tensor, labels: tuple[str, ...]) -> tuple[str, str]:
    """The classes that come first."""
    if not logits.numel():
        return "", ""
    before, after = logits.argmax(1).tolist()
    return _short(labels[before]), _short(labels[after])


def _scores(logits: Tensor, labels: tuple[str, ...]) -> list[Score]:
    """The classes with the highest probabilities, for one image or the other; the image's order."""
    if not logits.numel():
        return []
    probabilities = logits.softmax(1)
    first = probabilities.amax(0).topk(min(SHOWN_CLASSES, len(labels))).indices.tolist()
    rows = []
    for number in sorted(first, key=lambda number: -float(probabilities[0, number])):
        of_image, of_mirrored = logits[:, number].tolist()
        likely, likely_mirrored = probabilities[:, number].tolist()
        rows.append(Score(_short(labels[number]), (of_image, of_mirrored), (likely, likely_mirrored)))
    return rows


def _short(label: str) -> str:
    """ImageNet's names of classes without their synonyms.

    >>> _short("goldfish, Carassius auratus")
    'goldfish'
    """
    return label.partition(",")[0].strip() or label
