"""The picture as a page of HTML: the same panels and words, laid out by the browser for any screen."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Any

from PIL import Image

from flopping.pages import document
from flopping.show import words
from flopping.show.figure import changed, colourful, heat, looks, painted
from flopping.show.view import Pair, Row, View

STYLE = """
main { max-width: 66rem; margin: 0 auto; }
h2 { margin-bottom: .3rem; }
h2 + p { margin: 0 0 .8rem; font-size: .9rem; }
.mirror { display: grid; gap: .6rem;
  grid-template-columns: repeat(var(--n), minmax(0, 1fr)) 1.2rem repeat(var(--n), minmax(0, 1fr)); }
.mirror::before { content: ""; grid-column: calc(var(--n) + 1); grid-row: 1; justify-self: center;
  border-left: 1px dashed var(--soft); }
.mirror figure { margin: 0; grid-column: var(--column); grid-row: 1; }
.mirror img { display: block; width: 100%; height: auto; aspect-ratio: var(--shape); border: 1px solid var(--line);
  image-rendering: pixelated; }
figcaption { font-size: .8rem; text-align: center; }
.changes { margin-top: .6rem; }
.changes p { grid-column: 1 / calc(var(--n) + 1); grid-row: 1; margin: 0; align-self: center; text-align: right; }
table { width: 100%; table-layout: fixed; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; font-size: .9rem; overflow-wrap: anywhere; vertical-align: middle; }
thead th { font-weight: 400; color: var(--soft); }
tbody th { font-weight: 600; text-align: center; }
.image { text-align: right; } .mirrored { text-align: left; }
.bar { display: block; height: .55rem; background: var(--convnext, #009e73); }
.image .bar { margin-left: auto; }
@media (max-width: 40rem) {
  .mirror { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .mirror::before { content: none; }
  .mirror figure { grid-column: var(--side); grid-row: var(--row); }
  .changes p { grid-column: 1 / 3; text-align: left; }
  .changes figure { grid-column: auto; grid-row: auto; }
  th, td { padding: .3rem .2rem; }
}
"""


def page(view: View, image: str) -> str:
    """The page as text; `image` is what the image is called."""
    shape = f"{view.pixels.shape[1]} / {view.pixels.shape[0]}"
    sections = [_focus(view), *(_maps(row, view) for row in view.rows)]
    if view.scores:
        sections.append(_answers(view))
    body = f"""<h1>{escape(words.title(view))}</h1>
<p>{escape(words.summary(view))}</p>
<p class="soft">{escape(image)}, as the network gets it; the right side is laid out as a mirror image of the left.</p>
<div style="--shape: {shape}">
{"".join(sections)}</div>"""
    return document(words.title(view), "show", STYLE, body)


def _focus(view: View) -> str:
    pixels = colourful(view.pixels)
    mirrored = pixels[:, ::-1]
    what = "attention of the class token" if view.is_attention else "strength of the features"
    panels = [
        (_uri(pixels), "The image", words.COLUMNS[0]),
        (_uri(mirrored), "The mirror image", words.COLUMNS[1]),
        (_uri(heat(pixels, view.focus.image, view.focus.limits)), f"The image under the {what}", what),
        (_uri(heat(mirrored, view.focus.mirrored, view.focus.limits)), f"The mirror image under the {what}", what),
    ]
    return _section(words.focus_heading(view), words.focus_caption(view), _mirror(panels))


def _maps(row: Row, view: View) -> str:
    kind = "" if row.kind == "plain" else f"{row.kind} "
    panels = []
    for pair in row.pairs:
        look = looks(row, pair)
        for values, side in ((pair.image, "image"), (pair.mirrored, "mirror image")):
            alt = f"Map of {kind}{pair.name} for the {side}"
            panels.append((_uri(painted(values, *look)), alt, pair.name))
    more = _changes(row.pairs) if row.kind == "plain" else ""
    return _section(words.row_heading(row), words.row_caption(row, view), _mirror(panels) + more)


def _changes(pairs: Sequence[Pair]) -> str:
    """What ordinary channels have beyond the mirrored maps, below the right side."""
    number = len(pairs)
    figures = "".join(
        _panel(
            _uri(painted(pair.change, *changed(pair))),
            f"What {pair.name} has for the mirror image beyond the mirrored map",
            pair.name,
            f"--column: {2 * number + 1 - index}",
        )
        for index, pair in enumerate(pairs)
    )
    text = escape(" ".join(words.CHANGES))
    return f'<div class="mirror changes" style="--n: {number}">\n<p>{text}</p>\n{figures}</div>\n'


def _answers(view: View) -> str:
    longest = max(max(score.probabilities) for score in view.scores) or 1.0
    lines = []
    for score in view.scores:
        cells = [
            f'<td class="{side}">{escape(words.said(share, logit))}'
            f'<span class="bar" style="width: {100 * share / longest:.2f}%"></span></td>'
            for side, share, logit in zip(("image", "mirrored"), score.probabilities, score.logits, strict=True)
        ]
        lines.append(f'<tr>{cells[0]}<th scope="row">{escape(score.label)}</th>{cells[1]}</tr>')
    before, after = words.COLUMNS
    table = (
        f'<table>\n<thead><tr><th scope="col" class="image">{before}</th><th scope="col">class</th>'
        f'<th scope="col" class="mirrored">{after}</th></tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table>"
    )
    return _section(words.answer_heading(view), words.answer_caption(view), table)


def _section(heading: str, caption: str, content: str) -> str:
    return f'<section>\n<h2>{escape(heading)}</h2>\n<p class="soft">{escape(caption)}</p>\n{content}\n</section>\n'


def _mirror(panels: Sequence[tuple[str, str, str]]) -> str:
    """Panels in pairs: on a wide screen from the edges inwards, on a narrow one side by side."""
    number = len(panels) // 2
    figures = []
    for place, (source, alt, caption) in enumerate(panels):
        pair, side = divmod(place, 2)
        column = 2 * number + 1 - pair if side else pair + 1
        figures.append(_panel(source, alt, caption, f"--column: {column}; --side: {side + 1}; --row: {pair + 1}"))
    return f'<div class="mirror" style="--n: {number}">\n{"".join(figures)}</div>\n'


def _panel(source: str, alt: str, caption: str, style: str) -> str:
    image = f'<img src="{source}" alt="{escape(alt)}">'
    return f'<figure style="{style}">{image}<figcaption>{escape(caption)}</figcaption></figure>\n'


def _uri(pixels: Any) -> str:
    """An image inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", optimize=True)
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
