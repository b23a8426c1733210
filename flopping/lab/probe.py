"""How equivariant a network is already: a steering matrix for every layer, fitted to images and their mirror images.

The figure shows what is even and odd over the depth of a network, and how sure that is; it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from flopping.data.augment import Preparation
from flopping.data.batches import read_evaluation_batches
from flopping.data.datasets import is_named, open_dataset
from flopping.data.folders import SPLITS, UnlabelledFolder
from flopping.data.images import ImageDataset
from flopping.errors import UsageError, as_usage_error
from flopping.lab.capture import layer_names
from flopping.lab.drawing import BACKGROUND, INK, finished, logarithmic, panels, style
from flopping.lab.steering import Moments, best_ridge, correlate, error_of, require_enough, steer
from flopping.testing import run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDS = torch.tensor([0, 0, 1, 2])
"""Of four images in a row two are for the fit, one for the choice of the ridge, one for the test."""
PLACES = 16
"""Places of an image that are read in every layer, if it has as many."""
PAIRS = 16
"""Pairs for each channel that are wanted of all images together, by more places where a layer is wide."""
PREDICTED = 0.5
"""A direction is even or odd if the mirror image predicts at least this share of it: w² >= 1/2."""
EIGHTHS = 8
"""Shares of invariant channels in these steps make whole channels, and whole heads, in all networks of the paper."""

EVEN, ODD, NEITHER, INVARIANCE = "#0072b2", "#d55e00", "#c4cbd2", "#7d8590"
MOST_TICKS, MOST_CURVES = 13, 6
SMALLEST = 0.001
"""Smaller errors are drawn here: rounding errors of an equivariant network would take all of the axis."""
ERRORS: dict[str, dict[str, Any]] = {
    "identity_error": {"label": "A = I (invariance)", "color": INVARIANCE, "marker": "^", "ls": "--"},
    "involution_error": {"label": "A A = I", "color": EVEN, "marker": "s", "mfc": BACKGROUND},
    "error": {"label": "least squares", "color": INK, "marker": "o"},
}


class Shares(NamedTuple):
    """How a whole splits into what is even, what is odd, and what the mirror image doesn't predict."""

    even: float
    odd: float
    neither: float


@dataclass(frozen=True)
class LayerReport:
    """A layer. Errors are shares of the variance of its features on images that the fit hasn't seen."""

    name: str
    channels: int
    pairs: int
    """Pairs of places in the test."""
    ridge: float
    error: float
    """Error of A f, for the A of least squares."""
    involution_error: float
    """The same for the nearest A with A A = I, as an equivariant layer has it."""
    identity_error: float
    """The same for A = I: 0 if the layer is invariant, 2 if features of image and mirror image are independent."""
    spectrum: tuple[tuple[float, float], ...]
    """The correlation of every direction with its mirror image, largest in the fit first, and its share of variance."""

    @property
    def live(self) -> int:
        """Directions in which features differ: fewer than channels where some are dead or depend on others."""
        return len(self.spectrum)

    @cached_property
    def counts(self) -> Shares:
        """The split of directions, each of which counts the same."""
        return Shares(*(number / self.live for number in _split([(w, 1.0) for w, _ in self.spectrum])))

    @cached_property
    def variances(self) -> Shares:
        """The split of variance."""
        return _split(self.spectrum)

    @property
    def even(self) -> int:
        return round(self.counts.even * self.live)

    @property
    def odd(self) -> int:
        return round(self.counts.odd * self.live)

    @property
    def extra_share(self) -> float:
        """The trace of A over its size: a direction counts as (1 + w) / 2 even and (1 - w) / 2 odd.

        A layout with the share s of invariant channels has (1 + s) / 2 even and (1 - s) / 2 odd ones.
        """
        return sum(w for w, _ in self.spectrum) / self.live

    def as_dict(self) -> dict[str, Any]:
        shares = {"counts": self.counts._asdict(), "variances": self.variances._asdict()}
        return asdict(self) | shares | {key: getattr(self, key) for key in ("live", "even", "odd", "extra_share")}


@dataclass(frozen=True)
class Report:
    """All layers of a network, in their order."""

    images: int
    layers: tuple[LayerReport, ...]

    @property
    def extra_share(self) -> float:
        """The mean over the layers: our networks have one share for all of their blocks."""
        return sum(layer.extra_share for layer in self.layers) / len(self.layers)

    @property
    def suggested_share(self) -> float:
        """The nearest eighth that our networks take; they have no fewer even channels than odd ones."""
        return max(0, round(EIGHTHS * self.extra_share)) / EIGHTHS

    def verdict(self) -> str:
        """The mean shares, and the network that they suggest."""
        columns = zip(*(layer.counts for layer in self.layers), strict=True)
        even, odd, neither = (sum(column) / len(self.layers) for column in columns)
        share = self.extra_share
        more = " (it has more odd directions than even ones, which no network of ours has)"
        return (
            f"Of all directions, {even:.0%} are even, {odd:.0%} odd, and {neither:.0%} are not predicted by the mirror"
            f" image. Each counted by its correlation, that is {(1 + share) / 2:.0%} even and {(1 - share) / 2:.0%}"
            f" odd: an equivariant network with extra_share={self.suggested_share:g}"
            f"{more if share <= -0.5 / EIGHTHS else ''}."
        )


def _split(weighted: Sequence[tuple[float, float]]) -> Shares:
    """Weights of correlations, by whether they are near 1, near -1, or neither.

    >>> _split([(1.0, 0.25), (-0.9, 0.25), (0.5, 0.5)])
    Shares(even=0.25, odd=0.25, neither=0.5)
    """
    even = sum(weight for w, weight in weighted if w > 0 and w * w >= PREDICTED)
    odd = sum(weight for w, weight in weighted if w < 0 and w * w >= PREDICTED)
    return Shares(even, odd, sum(weight for w, weight in weighted if w * w < PREDICTED))


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
    of them are used. `layers` as for `read_features`. Memory is needed for six matrices C x C in float64 per layer,
    and the features of one batch. The network runs in evaluation mode, and is left as it was.

    >>> from flopping.models import VisionTransformer
    >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, extra_share=0.5)
    >>> layer = probe(model, torch.randn(4, 8, 3, 32, 32), images=32).layers[-1]
    >>> layer.name, layer.even, layer.odd, layer.error < 1e-6
    ('blocks.1', 12, 4, True)
    """
    generator = torch.Generator().manual_seed(seed)
    moments: dict[str, list[Moments]] = {}  # of each layer, one for each fold; no image is in two folds
    number = 0
    for batch in batches:
        batch = batch[: images - number]
        folds = FOLDS[torch.arange(number, number + len(batch)) % len(FOLDS)].to(batch.device)
        features, mirrored = (read_features(model, each, layers) for each in (batch, batch.flip(-1)))
        for name, one in features.items():
            _, channels, height, width = one.maps.shape
            wanted = max(PLACES, -(-PAIRS * channels // images))
            places = torch.randperm(height * width, generator=generator)[:wanted].to(batch.device)
            f, g = one.at(places), Features(mirrored[name].maps.flip(-1), mirrored[name].prefix).at(places)
            for fold, moment in enumerate(moments.setdefault(name, [Moments(channels, f.device) for _ in range(3)])):
                moment.add(f[folds == fold].flatten(0, 1), g[folds == fold].flatten(0, 1))
        number += len(batch)
        each(number)
        if number >= images:
            break
    if number < len(FOLDS):
        raise UsageError(f"a probe takes {len(FOLDS)} images at least, got {number}")
    return Report(number, tuple(examine(name, *folds) for name, folds in moments.items()))


class Features(NamedTuple):
    """The features of a layer: maps `(B, C, H, W)`, and P tokens without a place `(B, P, C)`, as the class token."""

    maps: Tensor
    prefix: Tensor

    def at(self, places: Tensor) -> Tensor:
        """Features `(B, P + K, C)` of the tokens without a place, and of places, counted row by row `(K,)`."""
        return torch.cat((self.prefix, self.maps.flatten(2)[:, :, places].mT), 1)


def read_features(model: nn.Module, images: Tensor, patterns: Sequence[str] = ()) -> dict[str, Features]:
    """The features that `forward_intermediates` gives for images `(B, C, H, W)` in eval mode, by the names of layers.

    `patterns` choose among the names, with * and ?; each has to fit one.
    """
    network: Any = model
    names = layer_names(model)
    options = {"intermediates_only": True, "output_fmt": "NCHW"}
    options["return_prefix_tokens"] = bool(getattr(model, "num_prefix_tokens", 0))
    known = signature(network.forward_intermediates).parameters
    context = f"{type(model).__name__} can't be probed with images of {' x '.join(map(str, images.shape[1:]))}"
    with as_usage_error(AssertionError, RuntimeError, TypeError, ValueError, context=context):
        chosen = {key: options[key] for key in options if key in known}
        found: Any = run(model, images, lambda x: network.forward_intermediates(x, **chosen))
    if len(set(names)) != len(found):  # as some networks of timm have it
        names = list(map(str, range(len(found))))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no layer is called {pattern!r}; those that are probed are {', '.join(names)}")
    return {
        name: Features(one, one.new_zeros(len(one), 0, one.shape[1])) if isinstance(one, Tensor) else Features(*one)
        for name, one in zip(names, found, strict=True)
        if any(fnmatchcase(name, pattern) for pattern in patterns or ["*"])
    }


def examine(name: str, fit: Moments, choose: Moments, test: Moments) -> LayerReport:
    """Choose the ridge, fit to all images but those of the test, and test."""
    require_enough(fit, name)
    ridge = best_ridge(fit, choose)
    found = steer(fit + choose, ridge)
    correlations, weights = correlate(found, test)
    matrices = found.matrix, found.involution, torch.eye(fit.channels, dtype=torch.float64, device=found.mean.device)
    best, involution, identity = (error_of(matrix, found.mean, test) for matrix in matrices)
    spectrum = tuple(zip(correlations.tolist(), weights.tolist(), strict=True))
    return LayerReport(name, fit.channels, test.pairs, ridge, best, involution, identity, spectrum)


class Subset(ImageDataset):
    """Some images of a data set, in an order of their own."""

    def __init__(self, source: ImageDataset, indices: Sequence[int]) -> None:
        self.source, self.indices = source, indices
        self.name, self.classes = source.name, source.classes

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> tuple[Image.Image, int]:
        return self.source.read(self.indices[index])

    def locate(self, index: int) -> str:
        return self.source.locate(self.indices[index])


def open_images(data: str, root: str | None, number: int, seed: int) -> ImageDataset:
    """At most `number` images, chosen at random.

    `data` is the name of a data set, of which the test images are taken; or a folder: the images in its folder of test
    images (val/), or if there is none, all images in it and below. Classes don't matter.
    """
    if is_named(data):
        images = open_dataset(data, "test", root)
    elif root is not None:
        raise UsageError(f"--root goes with a data set by name, and {data!r} is a folder")
    else:
        folder = Path(data)
        images = UnlabelledFolder(next((folder / name for name in SPLITS["test"] if (folder / name).is_dir()), folder))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return Subset(images, order[:number].tolist())


def read_batches(
    images: ImageDataset, preparation: Preparation, batch: int, workers: int, unreadable: set[str]
) -> Iterator[Tensor]:
    """Batches `(B, C, H, W)` as a network takes them. What can't be read is left out and added to `unreadable`."""
    for found in read_evaluation_batches(images, preparation, batch, workers):
        unreadable.update(map(images.locate, found.unreadable))
        readable = (found.labels >= 0).to(found.images.device)
        if readable.any():
            yield found.images[readable]


def draw(report: Report, title: str) -> Figure:
    """Four panels: shares of directions and of variance by layer, all correlations, and errors by layer."""
    with style():
        figure, (counts, variances, spectrum, errors) = panels(4, 2.9, share=False)
        for axes, kind, name in ((counts, "counts", "Directions"), (variances, "variances", "Variance")):
            below = [0.0] * len(report.layers)
            for part, colour in (("even", EVEN), ("neither", NEITHER), ("odd", ODD)):
                heights = [getattr(getattr(layer, kind), part) for layer in report.layers]
                label = "not predicted by the mirror image" if part == "neither" else part
                axes.bar(range(len(heights)), heights, 0.8, bottom=below, color=colour, label=label)
                below = [base + height for base, height in zip(below, heights, strict=True)]
            axes.axhline(0.5, color=INK, lw=0.8, ls=":")
            axes.set(title=name, ylabel="share", ylim=(0, 1))
        _draw_spectrum(spectrum, report)
        for error, look in ERRORS.items():
            values = [max(SMALLEST, getattr(layer, error)) for layer in report.layers]
            errors.plot(range(len(values)), values, ms=4, lw=1.2, clip_on=False, **look)
        logarithmic(errors.yaxis, (SMALLEST, 10.0), digits=(1,))
        errors.set(title="Error of A f", ylabel=f"share of variance (at least {SMALLEST:g})")
        errors.legend(loc="upper left", ncols=3, fontsize=7, columnspacing=1.0, handlelength=1.6)
        for axes in (counts, variances, errors):
            _name_layers(axes, [layer.name for layer in report.layers])
        handles, labels = counts.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return finished(figure)


def _draw_spectrum(axes: Axes, report: Report) -> None:
    """The correlations of a layer's directions, largest first, one step each; later layers are darker."""
    shown = report.layers[:: -max(1, -(-len(report.layers) // MOST_CURVES))][::-1]
    for place, layer in enumerate(shown, 1):
        sizes = sorted((w for w, _ in layer.spectrum), reverse=True)
        edges = [edge / len(sizes) for edge in range(len(sizes) + 1)]
        grey = 0.75 * (1 - place / len(shown))
        axes.stairs(sizes, edges, baseline=None, color=(grey, grey, grey), lw=1.3, label=layer.name)
    axes.set(title="Spectrum", xlim=(0, 1), ylim=(-1.05, 1.05), xlabel="share of directions")
    axes.set_ylabel("correlation with the mirror image")
    axes.legend(loc="lower left", fontsize=7, labelspacing=0.25, handlelength=1.4)


def _name_layers(axes: Axes, names: list[str]) -> None:
    """An axis of layers: by name if there are few, else by number."""
    ticks = list(range(0, len(names), -(-len(names) // MOST_TICKS)))
    named = len(names) <= 5 and all(len(name) <= 10 for name in names)
    axes.set_xticks(ticks, [names[place] if named else str(place) for place in ticks])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="x")
    if not named:
        axes.set_xlabel(f"layer, from {names[0]} to {names[-1]}")
