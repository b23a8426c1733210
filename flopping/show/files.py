"""The picture and the page as files, each written whole."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from flopping.places import require_place, suffix_of
from flopping.show.figure import png
from flopping.show.page import page
from flopping.show.view import View
from flopping.whole import whole


def paths(picture: Path, html: bool, force: bool) -> list[Path]:
    """The files to write, a picture and a page beside it if asked for; refused where one is there already.

    >>> [path.name for path in paths(Path("butterfly.png"), html=True, force=False)]
    ['butterfly.png', 'butterfly.html']
    """
    if suffix_of(picture, [".png"]) != ".png":
        raise ValueError(f"the picture is a PNG file, so its name ends with .png, got {str(picture)!r}")
    found = [picture, picture.with_suffix(".html")] if html else [picture]
    for path in found:
        require_place(path, force)
    return found


def write(view: View, image: str, files: list[Path]) -> None:
    """Write what `paths` has found; `image` is what the image is called."""
    contents = [png(view) if path.suffix != ".html" else page(view, image).encode() for path in files]
    with ExitStack() as all_of_them:  # none has its name before there was room for all
        for path, content in zip(files, contents, strict=True):
            all_of_them.enter_context(whole(path)).write_bytes(content)
