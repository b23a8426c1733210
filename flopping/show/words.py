"""What the picture and the page say, in the same words."""

from __future__ import annotations

from flopping.bench.drawing import COLOURS
from flopping.show.view import SAME, Row, View

PLUS, MINUS = COLOURS["ResMLP"], COLOURS["ViT"]
"""Colours of values above and below 0: orange and blue, told apart by colour-blind eyes."""
BARS = COLOURS["ConvNeXt"]
CHANGES = ("What the maps above have", "beyond the mirrored ones", "from the left side:")
COLUMNS = ("the image", "its mirror image")
UNTRAINED = "The network is untrained: what it says means nothing yet"


def title(view: View) -> str:
    return f"{view.model}: an image and its mirror image"


def summary(view: View) -> str:
    """The whole picture in two or three sentences."""
    kinds = [row.kind for row in view.rows]
    if "plain" in kinds:
        law = "These are ordinary channels: mirror the image, and they show something else. So the answer may change."
        note = f"{UNTRAINED}."
    else:
        signs = "; odd ones also change their sign" if "odd" in kinds else ""
        after = "So" if view.same else "But later blocks are ordinary ones, so"
        law = f"Mirror the image, and its features are mirrored{signs}. {after} the answer {_stays(view)}."
        note = f"{UNTRAINED}, but the law holds before any training."
    return f"{law} {note}" if view.trained is False else law


def focus_heading(view: View) -> str:
    if view.is_attention:
        return f"Attention of the class token: {_mirrored(view.focus_difference)}"
    return f"Strength of the features: {_mirrored(view.focus_difference)}"


def focus_caption(view: View) -> str:
    what = "mean over heads" if view.is_attention else "root mean square of all channels"
    return f"{_place(view.focus_block, view)}, {what}; {difference(view.focus_difference)}"


def row_heading(row: Row) -> str:
    """What a row shows, in a few words."""
    if row.kind == "odd":
        return f"Odd channels: {_mirrored(row.difference)}, and orange becomes blue"
    return f"{'Even channels' if row.kind == 'even' else 'Channels'}: {_mirrored(row.difference)}"


def row_caption(row: Row, view: View) -> str:
    """Where the channels are from, what colours mean, and the figure behind the heading."""
    colours = "orange above 0, blue below; " if row.kind == "odd" else ""
    return f"{colours}{_place(view.block, view)}; {difference(row.difference)}"


def answer_heading(view: View) -> str:
    before, after = view.answers
    if view.same:
        return f"The answer is the same: {before}"
    if before == after:
        return f"The answer is {before} both times, but not with the same logits"
    return f"The answer changes: {before} becomes {after}"


def answer_caption(view: View) -> str:
    return f"probability (logit); {difference(view.logits_difference)}"


def difference(value: float) -> str:
    """
    >>> difference(0.0), difference(3.1e-7), difference(0.52)
    ('no difference', 'largest difference 3e-07', 'largest difference 0.52')
    """
    if value == 0:
        return "no difference"
    return f"largest difference {value:.0e}" if value < 1e-2 else f"largest difference {value:.2g}"


def said(share: float, logit: float) -> str:
    """
    >>> said(0.9876, 7.3)
    '98.8 % (7.30)'
    """
    return f"{percent(share)} ({logit:.2f})"


def percent(share: float) -> str:
    """
    >>> percent(0.9876), percent(0.00341), percent(2e-9)
    ('98.8 %', '0.34 %', '< 0.01 %')
    """
    if share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2f} %"


def cut(text: str, length: int) -> str:
    """
    >>> cut("black-and-tan coonhound", 12)
    'black-and-t…'
    """
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _mirrored(value: float) -> str:
    return "mirrored" if value <= SAME else "not mirrored"


def _stays(view: View) -> str:
    return "stays" if view.same else "may change"


def _place(number: int, view: View) -> str:
    """A block or a stage, counted from 0 as everywhere."""
    last = view.blocks - 1
    return f"{view.unit} {number} ({'the last' if number == last else f'of 0 to {last}'})"
