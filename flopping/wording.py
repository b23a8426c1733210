"""How values are put into sentences."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "image"), counted(0, "image"), counted(2, "test image")
    ('1 image', '0 images', '2 test images')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 10) -> str:
    """The first of many names, and how many there are beside them.

    >>> some(["a", "b", "c", "d"], most=2), some(["a", "b"], most=2)
    ('a, b and 2 more', 'a, b')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
