"""Text from the templates of this package. Pages of HTML need no network, no script and no other file."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

_LATEX = {c: f"\\{c}" for c in "{}$%&#_"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row, an argument of the \\ before it
    "]": "{]}",
    "*": "{*}",
    '"': r"\textquotedbl{}",
    "\N{REPLACEMENT CHARACTER}": "?",
}


def render_template(name: str, **values: Any) -> str:
    """The text of a template. In pages of HTML, values are escaped, unless they are `markupsafe.Markup`."""
    return _environment().get_template(f"{name}.j2").render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("flopping.lab", "templates"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": escape_markdown, "latex": escape_latex}
    return environment


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> escape_markdown("<b>|[x](y)_*`")
    '&lt;b>\\|\\[x\\](y)\\_\\*\\`'
    """
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def escape_latex(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    >>> print(escape_latex("50 % of a_b & {c} \\ [1]"))
    50 \% of a\_b \& \{c\} \textbackslash{} {[}1{]}
    """
    return "".join(_LATEX.get(character, character) for character in text)
