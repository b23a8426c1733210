"""Measurements as tables: one list of columns, written for the terminal, in Markdown, in LaTeX, and on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, isfinite, log10
from operator import attrgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from flopping.bench.comparison import Row, groups
from flopping.bench.notes import closing, mark, notes, title
from flopping.bench.timing import Interval

TERMINAL, DOCUMENT = "terminal", "document"
EVERYWHERE = frozenset((TERMINAL, DOCUMENT))
ON_PAPER = frozenset((DOCUMENT,))


def digits(value: float, significant: int = 4) -> str:
    """A number with so many digits that count, three behind the point at most.

    >>> [digits(x) for x in (17.678, 0.61234, 12133.0, 0.0)], digits(338.4, 3), digits(9.999)
    (['17.68', '0.612', '12133', '0.000'], '338', '9.999')
    """
    before = floor(log10(abs(value))) + 1 if value else 1
    return f"{value:.{min(3, max(0, significant - before))}f}"


def _with_spread(row: Row) -> str | None:
    """Median and inter-quartile range, with the same number of decimals."""
    if row.milliseconds is None or row.quartiles is None:
        return None
    median = digits(row.milliseconds)
    return f"{median} ({row.quartiles[1] - row.quartiles[0]:.{len(median.partition('.')[2])}f})"


def interval(found: Interval) -> str:
    """A ratio and its bounds, if it has any.

    >>> interval(Interval(1.709, 1.681, 1.75)), interval(Interval(1.5, float("-inf"), float("inf")))
    ('1.71 [1.68, 1.75]', '1.50')
    """
    bounds = f" [{found.low:.2f}, {found.high:.2f}]" if isfinite(found.low) and isfinite(found.high) else ""
    return f"{found.value:.2f}{bounds}"


@dataclass(frozen=True)
class Column:
    """What a column shows, whose figure that is, how it is found in a row and written, and where it is shown."""

    heading: str
    value: Callable[[Row], Any]
    write: Callable[[Any], str] = str
    of_paper: bool = False
    media: frozenset[str] = EVERYWHERE

    def cell(self, row: Row) -> str:
        """Empty where there is nothing to say."""
        value = self.value(row)
        return "" if value is None else self.write(value)


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _reported(path: str) -> Callable[[Row], Any]:
    """A figure of the paper, where it has one."""
    start, _, name = path.partition(".")
    return lambda row: getattr(getattr(row, start), name, None)


COLUMNS = (
    Column("params M", lambda row: row.record.params / 1e6 or None, digits, media=ON_PAPER),
    Column("params M", _reported("reported.params_m"), of_paper=True, media=ON_PAPER),
    Column("im/s", attrgetter("throughput"), digits),
    Column("im/s", _reported("reported_cost.throughput"), "{:.0f}".format, of_paper=True),
    Column("ms (IQR)", _with_spread),
    Column("speed-up", attrgetter("speedup"), interval),
    Column("speed-up", attrgetter("reported_speedup"), _ratio, of_paper=True),
    Column("FLOPs G", lambda row: None if row.record.flops is None else row.record.flops / 1e9, digits),
    Column("FLOPs G", _reported("reported_cost.flops_g"), of_paper=True),
    Column("FLOPs X/E", attrgetter("flop_ratio"), _ratio),
    Column("efficiency", attrgetter("efficiency"), _ratio),
    Column("efficiency", attrgetter("reported_efficiency"), _ratio, of_paper=True),
    Column("memory MB", attrgetter("memory_mb"), lambda value: digits(value, 3)),
    Column("memory MB", _reported("reported_cost.memory_mb"), "{:.0f}".format, of_paper=True),
    Column("compile s", attrgetter("record.compile_seconds"), lambda value: digits(value, 3)),
    Column("top-1 %", _reported("reported.top1"), of_paper=True, media=ON_PAPER),
)


def columns(rows: Sequence[Row], medium: str = DOCUMENT) -> list[Column]:
    """Those that are shown there and in which some row has a figure."""
    return [c for c in COLUMNS if medium in c.media and any(c.cell(row) for row in rows)]


def by_family(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a table in their order, one architecture after the other."""
    for name, members in groupby(rows, attrgetter("family")):
        yield name, list(members)


def headings(shown: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbours that show the same thing, ours and the paper's, under one heading."""
    return [(name, list(members)) for name, members in groupby(shown, attrgetter("heading"))]


def terminal(rows: Sequence[Row]) -> RenderableType:
    """A table per setting and machine, with notes under each and under the last; `show` prints it in full."""
    parts: list[RenderableType] = []
    for group in groups(rows):
        parts += [_grid(group), *map(Text, notes(group)), Text()]
    return Group(*parts, *map(Text, closing(rows)))


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the tables on lines that are as long as they need: names and figures are never cut."""
    endless = console.options.update(max_width=10_000)
    needed = [Measurement.get(console, endless, _grid(group)).maximum for group in groups(rows)]
    console.width = max(console.width, *needed)
    console.print(terminal(rows))


def _grid(group: Sequence[Row]) -> Table:
    heading = Text(title(group), style="bold")
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model", no_wrap=True)
    shown = columns(group, TERMINAL)
    for column in shown:
        style = "dim" if column.of_paper else ""
        # two lines for two words: the table is wide enough
        words = "paper" if column.of_paper else column.heading.replace(" ", "\n", 1)
        table.add_column(Text(words, style=style), justify="right", no_wrap=True, style=style)
    for _, members in by_family(group):
        for row in members:
            table.add_row(Text(f"{row.name}{mark(row, group)}"), *(Text(column.cell(row)) for column in shown))
        table.add_section()
    return table


def markdown(rows: Sequence[Row]) -> str:
    """The same as GitHub's Markdown, with the columns of the paper's table."""
    blocks = []
    for group in groups(rows):
        shown = columns(group)
        names = [f"{c.heading} (paper)" if c.of_paper else c.heading for c in shown]
        lines = [_pipes(["model", *names]), "|:--" + "|--:" * len(shown) + "|"]
        families = list(by_family(group))
        for family, members in families:
            if len(families) > 1:
                lines.append(_pipes([f"**{family}**", *("" for _ in shown)]))
            for row in members:
                cells = f"{row.name}{mark(row, group)}", *(column.cell(row) for column in shown)
                lines.append(_pipes(map(_markdown_text, cells)))
        prose = "\n\n".join(map(_markdown_text, notes(group)))
        blocks.append(f"### {_markdown_text(title(group))}\n\n" + "\n".join(lines) + f"\n\n{prose}\n")
    return "\n".join((*blocks, "\n\n".join(map(_markdown_text, closing(rows))))) + "\n"


def latex(rows: Sequence[Row]) -> str:
    """The same as LaTeX for the package booktabs: a floating table over both columns for each setting."""
    blocks = ["% \\usepackage[T1]{fontenc}\n% \\usepackage{booktabs}"]
    for group in groups(rows):
        shown = columns(group)
        top, rules, at = ["model"], [], 2
        for heading, under in headings(shown):
            top.append(rf"\multicolumn{{{len(under)}}}{{c}}{{{_latex_text(heading)}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + len(under) - 1}}}")
            at += len(under)
        body = []
        for _, members in by_family(group):
            lines = [(f"{row.name}{mark(row, group)}", *(c.cell(row) for c in shown)) for row in members]
            body.append("".join(f"{' & '.join(map(_latex_text, line))} \\\\\n" for line in lines))
        caption = " ".join(_latex_text(text) for text in (f"{title(group)}.", *notes(group), *closing(group)))
        whose = " & ".join(("", *("paper" if c.of_paper else "ours" for c in shown)))
        blocks.append(
            "\\begin{table*}\n\\centering\\scriptsize\n\\setlength{\\tabcolsep}{2.5pt}\n"
            f"\\begin{{tabular}}{{l{'r' * len(shown)}}}\n\\toprule\n"
            f"{' & '.join(top)} \\\\\n{''.join(rules)}\n{whose} \\\\\n\\midrule\n"
            + "\\midrule\n".join(body)
            + f"\\bottomrule\n\\end{{tabular}}\n\\caption{{{caption}}}\n\\end{{table*}}"
        )
    return "\n\n".join(blocks) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> _markdown_text("<b>|[x](y)_*`")
    '&lt;b>\\|\\[x\\](y)\\_\\*\\`'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)


_LATEX = {c: f"\\{c}" for c in "{}$%&#_"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # in the first cell of a line it would be read as an argument of the end of the line before
    "]": "{]}",
    "*": "{*}",
    '"': r"\textquotedbl{}",
    "\N{REPLACEMENT CHARACTER}": "?",
}


def _latex_text(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    >>> print(_latex_text("50 % of a_b & {c} \\ [1]"))
    50 \% of a\_b \& \{c\} \textbackslash{} {[}1{]}
    """
    return "".join(_LATEX.get(character, character) for character in text)
