"""One picture that explains the idea: maps as images, and the words beside them. Needs matplotlib.

The right half of the figure is laid out as the mirror image of the left half, so whatever a network doesn't mirror is
seen at once. Lengths are inches, from the left and from the top.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flopping.data.fashion import EMBEDDED, open_fashion_mnist
from flopping.data.photos import Photo, UnreadableError, read_photo, silence_pillow
from flopping.deploy.classifier import Classifier
from flopping.errors import UsageError
from flopping.lab.capture import Captured, capture, choose_channels, parities
from flopping.lab.drawing import COLOURS, GRID, INK, WIDTH, style
from flopping.models.zoo import names_in_paper
from flopping.testing import relative_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RGB = NDArray[np.uint8]
SAME = 1e-4
"""Relative differences up to here are rounding."""
SHOWN_CLASSES = 5
DIVERGING = ["#00304d", COLOURS["ViT"], "#ffffff", COLOURS["ResMLP"], "#5c2900"]
"""From blue by white at 0 to orange: told apart by colour-blind eyes."""

MARGIN, MIDDLE, GAP = 0.3, 0.5, 0.12
HALF = (WIDTH - 2 * MARGIN - MIDDLE) / 2
TITLE, HEADING, LINE, BAR = 0.3, 0.34, 0.17, 0.24
LARGEST = 1.9
"""The longest side of a panel."""
NAMES = 1.15
"""Half of the room between the bars, for the names of classes."""
SOFT = "#59636e"


@dataclass(frozen=True)
class Panel:
    """An image `(H, W, 3)` on the left, its counterpart on the right, and what is written below them."""

    captions: tuple[str, str]
    image: RGB | None
    """None where only the right side has something to show."""
    mirrored: RGB


@dataclass(frozen=True)
class Section:
    heading: str
    caption: str
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Score:
    """What is said about a class, for the image and for the mirror image."""

    label: str
    logits: tuple[float, float]
    probabilities: tuple[float, float]

    @property
    def texts(self) -> list[str]:
        """
        >>> Score("cat", (7.3, -1), (0.9876, 2e-9)).texts
        ['98.8 % (7.30)', '< 0.01 % (-1.00)']
        """
        shares = ["< 0.01" if p < 1e-4 else f"{100 * p:.{1 if p >= 0.01 else 2}f}" for p in self.probabilities]
        return [f"{share} % ({logit:.2f})" for share, logit in zip(shares, self.logits, strict=True)]


@dataclass(frozen=True)
class View:
    """A network's view of an image and of its mirror image."""

    title: str
    summary: str
    aspect: float
    """Height over width of all panels."""
    sections: tuple[Section, ...]
    answer: Section
    scores: tuple[Score, ...]
    """Of the classes that come first for one image or the other; none without classes."""
    numbers: dict[str, Any]
    """For JSON. Differences are the largest ones, relative to the largest value."""


def open_picture(name: str) -> Image.Image:
    """An image from a file, upright as its camera says, or "fashion-mnist:NUMBER": a test image in the package.

    >>> open_picture("fashion-mnist:0").size
    (28, 28)
    """
    if re.fullmatch(rf"{EMBEDDED}:\d+", name):
        source, number = open_fashion_mnist("test"), name.partition(":")[2]
        if len(number) > 9 or int(number) >= len(source):
            raise UsageError(f"{EMBEDDED} has the test images 0 to {len(source) - 1}, got {name!r}")
        return source.read(int(number))[0]
    if not Path(name).is_file():
        problem = "is no file" if Path(name).exists() else "doesn't exist"
        raise UsageError(f"{name!r} {problem}: name an image file, or {EMBEDDED}:NUMBER for one in the package")
    try:
        with silence_pillow():
            return read_photo(Photo(name))
    except UnreadableError as error:
        raise UsageError(f"{name!r} can't be shown: {error}") from error


def capture_view(classifier: Classifier, image: Image.Image, *, block: int | None = None, channels: int = 3) -> View:
    """Show an image and its mirror image to a network.

    `block` counts from 0; by default it is one that shows places well. `channels` are shown of each kind.
    """
    prepared = classifier.prepare([image])
    seen = capture(classifier.model, prepared, block)
    focus, name, focus_difference = _attention_overlay(seen, _pixels(classifier, prepared))
    sections, chosen, differences = [focus], {}, {}
    signs = parities(seen.layout)
    for kind, sign in (("plain", 1.0),) if signs is None else (("even", 1.0), ("odd", -1.0)):
        members = torch.arange(seen.features.shape[1]) if signs is None else (signs == sign).nonzero()[:, 0]
        if len(members):
            maps = seen.features[:, members]
            differences[kind] = _distance(maps, sign)
            chosen[kind] = members[choose_channels(maps[0], channels, signed=sign < 0)].tolist()
            sections += _maps(kind, seen, chosen[kind], differences[kind])
    differences |= {name: focus_difference, "logits": relative_error(seen.logits[1], seen.logits[0])}
    scores = _scores(seen.logits, classifier.labels)
    keys = ("logit", "mirrored_logit", "probability", "mirrored_probability")
    numbers = {
        "model": names_in_paper().get(classifier.name, classifier.name),
        "trained": classifier.trained,
        "group": None if seen.layout is None else seen.layout.group.name,
        "block": seen.block,
        "channels": chosen,
        "differences": differences,
        "top": [{"label": one.label, **dict(zip(keys, one.logits + one.probabilities, strict=True))} for one in scores],
    }
    return View(
        title=f"{numbers['model']}: an image and its mirror image",
        summary=_summarize(list(chosen), differences["logits"] <= SAME, classifier.trained),
        aspect=prepared.shape[2] / prepared.shape[3],
        sections=tuple(sections),
        answer=_answer(seen.logits, classifier.labels, differences["logits"]),
        scores=scores,
        numbers=numbers,
    )


def format_difference(value: float) -> str:
    """
    >>> format_difference(0.0), format_difference(3.1e-7), format_difference(0.52)
    ('no difference', 'largest difference 3e-07', 'largest difference 0.52')
    """
    if value == 0:
        return "no difference"
    return f"largest difference {value:.0e}" if value < 1e-2 else f"largest difference {value:.2g}"


def paint(values: NDArray[np.float32], colours: str, low: float, high: float) -> RGB:
    """A map `(h, w)` in colours `(h, w, 3)`: the name of a colour map of matplotlib, or "diverging"."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    table = colormaps[colours] if colours != "diverging" else LinearSegmentedColormap.from_list(colours, DIVERGING)
    image: RGB = table((values - low) / (high - low or 1.0), bytes=True)[..., :3]
    return image


def _pixels(classifier: Classifier, prepared: Tensor) -> RGB:
    """The image `(H, W, 3)` that the network got, before it was shifted and scaled."""
    preparation = classifier.preparation
    bytes_CHW = (prepared[0] * preparation.std + preparation.mean).round().clamp(0, 255).byte().cpu()
    pixels: RGB = bytes_CHW.permute(1, 2, 0).expand(-1, -1, 3).numpy()
    return pixels


def _attention_overlay(seen: Captured, pixels: RGB) -> tuple[Section, str, float]:
    """The image under the attention of the class token, or under the strength of the features."""
    name, heading, how = "attention", "Attention of the class token", f"{seen.attention_layer}, mean over heads"
    maps = seen.attention
    if maps is None:
        name, heading, how = "strength", "Strength of the features", f"{seen.layer}, root mean square of channels"
        maps = seen.features.square().mean(1).sqrt()
    both = (pixels, pixels[:, ::-1])
    mixed = []
    for image, focus in zip(both, maps.float().cpu().numpy(), strict=True):  # each place of the map covers its patch
        rows, columns = (np.arange(n) * m // n for n, m in zip(image.shape[:2], focus.shape, strict=True))
        colours = paint(focus[rows][:, columns], "inferno", maps.min().item(), maps.max().item())
        mixed.append((0.35 * image.mean(2, keepdims=True) + 0.65 * colours).round().astype(np.uint8))
    difference = _distance(maps)
    panels = Panel(("the image", "its mirror image"), *both), Panel((name, name), *mixed)
    return (
        Section(f"{heading}: {_mirrored(difference)}", f"{how}; {format_difference(difference)}", panels),
        name,
        difference,
    )


def _maps(kind: str, seen: Captured, chosen: list[int], difference: float) -> list[Section]:
    """Channels of one kind; of ordinary ones also what a mirror changes beyond mirroring them."""
    panels, changes = [], []
    for number in chosen:
        image, mirrored = seen.features[:, number].float().cpu().numpy()
        low, high = min(image.min(), mirrored.min()).item(), max(image.max(), mirrored.max()).item()
        largest = max(abs(low), abs(high))
        look = ("diverging", -largest, largest) if kind == "odd" else ("viridis", low, high)
        names = (f"channel {number}",) * 2
        panels.append(Panel(names, paint(image, *look), paint(mirrored, *look)))
        changes.append(Panel(names, None, paint(mirrored - image[:, ::-1], "diverging", low - high, high - low)))
    heading = f"{'Channels' if kind == 'plain' else f'{kind.capitalize()} channels'}: {_mirrored(difference)}"
    caption = f"{seen.layer}; {format_difference(difference)}"
    if kind == "odd":
        heading, caption = f"{heading}, and orange becomes blue", f"orange above 0, blue below; {caption}"
    sections = [Section(heading, caption, tuple(panels))]
    if kind == "plain":
        caption = "the maps on the right minus the mirrored maps from the left"
        sections.append(Section("What the mirror changes in these channels", caption, tuple(changes)))
    return sections


def _scores(logits: Tensor, labels: tuple[str, ...]) -> tuple[Score, ...]:
    """The classes with the highest probabilities, for one image or the other; the image's order."""
    if not logits.numel():
        return ()
    shares = logits.softmax(1)
    first = shares.amax(0).topk(min(SHOWN_CLASSES, len(labels))).indices.tolist()
    first.sort(key=lambda number: -float(shares[0, number]))
    pairs = ((number, *(tuple(both[:, number].tolist()) for both in (logits, shares))) for number in first)
    return tuple(Score(_short(labels[number]), values, likely) for number, values, likely in pairs)


def _answer(logits: Tensor, labels: tuple[str, ...], difference: float) -> Section:
    if not logits.numel():
        return Section("", "")
    before, after = (_short(labels[number]) for number in logits.argmax(1).tolist())
    heading = f"The answer changes: {before} becomes {after}"
    if difference <= SAME:
        heading = f"The answer is the same: {before}"
    elif before == after:
        heading = f"The answer is {before} both times, but not with the same logits"
    return Section(heading, f"probability (logit); {format_difference(difference)}")


def _summarize(kinds: list[str], same: bool, trained: bool | None) -> str:
    """The whole picture in two or three sentences."""
    if "plain" in kinds:
        law = "These are ordinary channels: mirror the image, and they show something else. So the answer may change."
    else:
        signs = "; odd ones also change their sign" if "odd" in kinds else ""
        answer = "So the answer stays." if same else "But later blocks are ordinary ones, so the answer may change."
        law = f"Mirror the image, and its features are mirrored{signs}. {answer}"
    return f"{law} The network is untrained: its answer means nothing yet." if trained is False else law


def _distance(both: Tensor, sign: float = 1.0) -> float:
    """How far maps of the mirror image are from the mirrored maps, times a sign."""
    return relative_error(both[1], sign * both[0].flip(-1))


def _mirrored(difference: float) -> str:
    return "mirrored" if difference <= SAME else "not mirrored"


def _short(label: str) -> str:
    """ImageNet's names of classes without their synonyms.

    >>> _short("goldfish, Carassius auratus")
    'goldfish'
    """
    return label.partition(",")[0].strip() or label


def draw(view: View) -> Figure:
    with style():
        from matplotlib.figure import Figure

        summary = wrap(view.summary, 125)
        sizes = [_panel_size(len(section.panels), view.aspect) for section in view.sections]
        height = 2 * MARGIN + TITLE + LINE * len(summary) + sum(HEADING + high + 2 * LINE for _, high in sizes)
        figure: Any = Figure(figsize=(WIDTH, height + (HEADING + BAR * len(view.scores) if view.scores else 0)))
        _write(figure, MARGIN, MARGIN, view.title, fontsize=13, weight="bold")
        _write(figure, MARGIN, MARGIN + TITLE, "\n".join(summary), linespacing=1.35)
        top = MARGIN + TITLE + LINE * len(summary)
        for section, size in zip(view.sections, sizes, strict=True):
            _draw_section(figure, top, section, *size)
            top += HEADING + size[1] + 2 * LINE
        if view.scores:
            _draw_answer(figure, top, view)
        return figure  # type: ignore[no-any-return]


def _panel_size(number: int, aspect: float) -> tuple[float, float]:
    """Width and height of panels that are side by side in one half."""
    width = min((HALF - GAP * (number - 1)) / number, LARGEST, LARGEST / aspect)
    return width, width * aspect


def _write(figure: Any, x: float, y: float, text: str, **look: Any) -> None:
    look = {"ha": "left", "va": "top", "fontsize": 9, **look}
    figure.text(x / WIDTH, 1 - y / figure.get_figheight(), text, **look)


def _write_heading(figure: Any, y: float, section: Section) -> None:
    _write(figure, MARGIN, y + 0.1, section.heading, weight="bold")
    _write(figure, WIDTH - MARGIN, y + 0.12, section.caption, fontsize=7.5, color=SOFT, ha="right")


def _add_axes(figure: Any, x: float, y: float, width: float, height: float, label: str) -> Any:
    high = figure.get_figheight()
    return figure.add_axes((x / WIDTH, 1 - (y + height) / high, width / WIDTH, height / high), label=label)


def _draw_section(figure: Any, y: float, section: Section, width: float, height: float) -> None:
    from matplotlib.lines import Line2D

    _write_heading(figure, y, section)
    y += HEADING
    ends = [1 - end / figure.get_figheight() for end in (y, y + height)]
    figure.add_artist(Line2D([0.5, 0.5], ends, color=INK, lw=0.8, ls=(0, (4, 3))))
    spare = HALF - len(section.panels) * (width + GAP) + GAP
    for number, panel in enumerate(section.panels):
        left = MARGIN + spare / 2 + number * (width + GAP)
        sides = (left, panel.image), (WIDTH - left - width, panel.mirrored)
        for (x, pixels), caption in zip(sides, panel.captions, strict=True):
            if pixels is not None:
                axes = _add_axes(figure, x, y, width, height, caption)
                axes.imshow(pixels, interpolation="nearest", aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
                axes.spines[:].set(visible=True, color=GRID, linewidth=0.6)
                _write(figure, x + width / 2, y + height + 0.03, caption, fontsize=7.5, color=SOFT, ha="center")


def _draw_answer(figure: Any, y: float, view: View) -> None:
    """Bars that grow from the names of classes to both sides: equal answers make a symmetric picture."""
    _write_heading(figure, y, view.answer)
    y += HEADING
    longest = max(max(score.probabilities) for score in view.scores)
    ends = (0.0, 1.45 * longest)  # room for the numbers after the bars
    for side, (x, align) in enumerate(((MARGIN, "right"), (WIDTH / 2 + NAMES, "left"))):
        axes = _add_axes(figure, x, y, WIDTH / 2 - MARGIN - NAMES, BAR * len(view.scores), "answer")
        axes.set(xlim=ends if side else ends[::-1], ylim=(len(view.scores) - 0.5, -0.5))
        axes.set_axis_off()
        for line, score in enumerate(view.scores):
            share = score.probabilities[side]
            axes.barh(line, share, height=0.7, color=COLOURS["ConvNeXt"])
            axes.text(share + 0.02 * longest, line, score.texts[side], ha=align, va="center", fontsize=8)
    for line, score in enumerate(view.scores):
        name = shorten(score.label, 30, placeholder="…")
        _write(figure, WIDTH / 2, y + BAR * (line + 0.5), name, fontsize=8, ha="center", va="center")
