"""Text from the templates of this package."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_template(name: str, **values: Any) -> str:
    """The text of a template."""
    return _environment().get_template(f"{name}.j2").render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("flopping.lab", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = escape_markdown
    return environment


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> escape_markdown("<b>|[x](y)_*`")
    '&lt;b>\\|\\[x\\](y)\\_\\*\\`'
    """
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
