"""May a file or a folder be written here? Asked before the work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def suffix_of(name: str | Path, known: Sequence[str]) -> str:
    """The suffix of what is to be written, in small letters; refused if there is nothing before it.

    >>> suffix_of("a.PNG", [".png"]), suffix_of("v1.2/mine", [".onnx"])
    ('.png', '')
    >>> suffix_of(".png", [".png"])
    Traceback (most recent call last):
    ...
    ValueError: '.png' is a suffix without a name: write it as in name.png
    """
    path = Path(name)
    if path.name in ("", "..") or not str(name):
        example = f"name{known[0]}" if known else "name"
        raise ValueError(f"{str(name)!r} is no name for what is to be written: write one as in {example}")
    if path.name.lower() in known:
        raise ValueError(f"{str(name)!r} is a suffix without a name: write it as in name{path.name}")
    return path.suffix.lower()


def require_place(path: Path, force: bool, *, folder: bool = False, option: str = "--force") -> None:
    """Refuse a place where a file, or a folder, can't be written, or where one is that `force` doesn't replace.

    `option` is what asks for it. A link that leads nowhere is something that is there.
    """
    try:
        parent = path.resolve().parent
    except (OSError, RuntimeError) as error:  # which of them depends on the version of Python
        raise ValueError(f"{str(path)!r} is a link that leads to itself") from error
    if not parent.is_dir():
        folder_name = str(parent if path.is_symlink() else path.parent)  # as given, unless a link leads elsewhere
        raise ValueError(f"there is no folder {folder_name!r} for {path.name!r}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"no permission to write in {str(parent)!r}")
    if not os.path.lexists(path):
        return
    if path.is_dir() and not folder:
        raise ValueError(f"{str(path)!r} is a folder: name a file")
    if folder and path.exists() and not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file: name a folder")
    if not force:
        raise ValueError(f"{str(path)!r} exists; {option} replaces it")
