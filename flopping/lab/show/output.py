"""The picture and the page as files, each written whole."""

from __future__ import annotations

import io
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from flopping.errors import UsageError
from flopping.files import atomic_write, require_writable, suffix_of
from flopping.lab.drawing import render
from flopping.lab.pages import render_template
from flopping.lab.show.figure import draw
from flopping.lab.show.view import View


def output_paths(picture: Path, html: bool, force: bool) -> list[Path]:
    """The files to write, a picture and a page beside it if asked for; refused where one is there already.

    >>> [path.name for path in output_paths(Path("butterfly.png"), html=True, force=False)]
    ['butterfly.png', 'butterfly.html']
    """
    if suffix_of(picture, [".png"]) != ".png":
        raise UsageError(f"the picture is a PNG file, so its name ends with .png, got {str(picture)!r}")
    found = [picture, picture.with_suffix(".html")] if html else [picture]
    for path in found:
        require_writable(path, force)
    return found


def write_files(view: View, image: str, paths: list[Path]) -> None:
    """Write what `output_paths` has found; `image` is what the image is called."""
    contents = [render_png(view) if path.suffix != ".html" else render_page(view, image).encode() for path in paths]
    with ExitStack() as stack:  # none gets its name before there was room for all
        for path, content in zip(paths, contents, strict=True):
            stack.enter_context(atomic_write(path)).write_bytes(content)


def render_png(view: View) -> bytes:
    return render(draw(view), "png")


def render_page(view: View, image: str) -> str:
    """The page of HTML: the same panels and words, laid out by the browser for any screen."""
    longest = max((max(score.probabilities) for score in view.scores), default=0) or 1.0
    return render_template("show.html", command="show", view=view, image=image, longest=longest, embed=_embed)


def _embed(pixels: Any) -> str:
    """An image as an address that holds it."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", optimize=True)
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
