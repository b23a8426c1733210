"""How values are put into sentences."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 10) -> str:
    """The first of many names, and how many there are beside them.

    >>> some(["a", "b", "c", "d"], most=2), some(["a", "b"], most=2)
    ('a, b and 2 more', 'a, b')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
