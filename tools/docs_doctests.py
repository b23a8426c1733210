"""An extension of griffe (mkdocs.yml): doctests stand in docstrings as they are, and become code blocks on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)


def with_blocks(text: str) -> str:
    """A docstring whose doctests are fenced: each begins with >>> and ends with an empty line.

    >>> with_blocks("The law.\\n\\n>>> 1 + 1\\n2\\n\\nMore.")
    'The law.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nMore.'
    """
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


class Doctests(griffe.Extension):
    """Every docstring that griffe reads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)
