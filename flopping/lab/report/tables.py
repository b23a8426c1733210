"""Measurements as tables: one list of columns for the terminal and for Markdown; and the notes below."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import floor, log10
from operator import attrgetter
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from flopping.errors import pluralize
from flopping.lab.report.comparison import Row, groups, printable
from flopping.machine import Machine

NOISY = 0.05
"""A quiet machine repeats a matrix product more closely than this; above it, a note warns."""
MEANING = (
    "X is an ordinary network; E(X), H(X) and I(X) are its equivariant, hybrid and invariant counterparts. Speed-up"
    " is the median over rounds of the throughput relative to X in the same round, so it is not exactly the quotient"
    " of the im/s columns. In brackets is its 95 % confidence interval, which covers the noise within a run. FLOPs X/E"
    " is the FLOPs of X divided by those of the network. Efficiency is speed-up divided by FLOPs X/E: 1 if the saving"
    " in time equals the saving in FLOPs.",
    "The networks of a run are timed in turn. Times are per batch, and IQR is their inter-quartile range. Parameters"
    " are in millions, FLOPs (the paper's convention) in G per image, and peak memory in MB of 10^6 bytes. On a GPU,"
    " memory is that of torch's allocator. On a CPU, it is what a network holds plus the growth of the resident set"
    " while it runs. Compile s is measured with an empty cache.",
    "Only ratios within one run are comparable: machines, days and settings differ. The paper's columns were measured"
    " on one A100-40GB at batch 64, compiled, in mixed precision.",
)
"""What the columns mean, whatever was measured."""


def digits(value: float, significant: int = 4) -> str:
    """A number with so many significant digits, at most three of them decimals.

    >>> [digits(x) for x in (17.678, 0.61234, 12133.0, 0.0)], digits(338.4, 3), digits(9.999)
    (['17.68', '0.612', '12133', '0.000'], '338', '9.999')
    """
    before = floor(log10(abs(value))) + 1 if value else 1
    return f"{value:.{min(3, max(0, significant - before))}f}"


def _time(figures: Mapping[str, Any]) -> str:
    """Median and inter-quartile range, with the same number of decimals."""
    median = digits(figures["ms"])
    decimals = len(median.partition(".")[2])
    return f"{median} ({figures['ms_third_quartile'] - figures['ms_first_quartile']:.{decimals}f})"


def _speedup(figures: Mapping[str, Any]) -> str:
    """A ratio and its confidence interval, if it has one."""
    low, high = figures["speedup_low"], figures["speedup_high"]
    return f"{figures['speedup']:.2f}" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


@dataclass(frozen=True)
class Column:
    """A column shows one of a row's figures, ours or the paper's."""

    heading: str
    figure: str
    write: Callable[[float], str] = str
    paper: bool = False
    whole: Callable[[Mapping[str, Any]], str] | None = None
    """Writes several figures, instead of `write`."""
    narrow: bool = False
    """Whether it is among the few that fit 80 columns of a terminal."""

    @property
    def label(self) -> str:
        return f"{self.heading} (paper)" if self.paper else self.heading

    def cell(self, row: Row) -> str:
        """Empty if the figure is unknown."""
        value = row.figures[self.figure]
        return "" if value is None else self.whole(row.figures) if self.whole else self.write(value)


COLUMNS = (
    Column("params M", "params", lambda value: digits(value / 1e6) if value else ""),
    Column("params M", "paper_params_m", paper=True),
    Column("im/s", "throughput", digits, narrow=True),
    Column("im/s", "paper_throughput", "{:.0f}".format, paper=True),
    Column("ms (IQR)", "ms", whole=_time),
    Column("speed-up", "speedup", whole=_speedup, narrow=True),
    Column("speed-up", "paper_speedup", "{:.2f}".format, paper=True, narrow=True),
    Column("FLOPs G", "flops", lambda value: digits(value / 1e9)),
    Column("FLOPs G", "paper_flops_g", paper=True),
    Column("FLOPs X/E", "flop_ratio", "{:.2f}".format, narrow=True),
    Column("efficiency", "efficiency", "{:.2f}".format),
    Column("efficiency", "paper_efficiency", "{:.2f}".format, paper=True),
    Column("memory MB", "memory_mb", lambda value: digits(value, 3), narrow=True),
    Column("memory MB", "paper_memory_mb", "{:.0f}".format, paper=True),
    Column("compile s", "compile_seconds", lambda value: digits(value, 3)),
    Column("top-1 %", "paper_top1", paper=True),
)


@dataclass(frozen=True)
class Table:
    """The rows of one setting on one machine, as text."""

    title: str
    columns: list[Column]
    families: list[tuple[str, list[list[str]]]]
    """The lines of each family: a name and its cells."""
    notes: list[str]


def make_tables(rows: Sequence[Row], narrow: bool = False) -> list[Table]:
    """A table for each setting and machine, with the columns in which some row has a figure."""
    found = []
    for group in groups(rows):
        columns = [c for c in COLUMNS if (c.narrow or not narrow) and any(c.cell(row) for row in group)]
        problems: list[str] = []
        families = []
        for family, members in groupby(group, attrgetter("family")):
            lines = []
            for row in members:
                name = row.name
                if row.problem is not None:
                    name += f" [{len(problems) + 1}]"
                    what = "fewer figures than were asked for" if row.record.seconds else "no times"
                    problems.append(f"[{len(problems) + 1}] {row.name} has {what}: {row.problem.rstrip('.')}.")
                lines.append([name, *(column.cell(row) for column in columns)])
            families.append((family, lines))
        found.append(Table(title_of(group), columns, families, [*problems, _how(group)]))
    return found


def show(rows: Sequence[Row], console: Console, wide: bool = False) -> None:
    """Print the tables, with the columns that fit 80 characters or with all; names and figures are never cut."""
    for table in make_tables(rows, narrow=not wide):
        grid = Grid(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        grid.add_column("model", no_wrap=True)
        for column in table.columns:
            style = "dim" if column.paper else ""
            words = "paper" if column.paper else column.heading.replace(" ", "\n", 1)
            grid.add_column(Text(words, style=style), justify="right", no_wrap=True, style=style)
        for _, lines in table.families:
            for line in lines:
                grid.add_row(*map(Text, line))
            grid.add_section()
        console.print(Text(table.title, style="bold"))
        needed = Measurement.get(console, console.options.update(max_width=10_000), grid).maximum
        console.width = max(console.width, needed)
        console.print(grid)
        console.print(*map(Text, table.notes), "", sep="\n")
    console.print(*map(Text, describe_machines_and_columns(rows)), sep="\n")


def markdown(rows: Sequence[Row]) -> str:
    return render_template("report.md", tables=make_tables(rows), closing=describe_machines_and_columns(rows))


def title_of(rows: Sequence[Row]) -> str:
    """The setting and the machine that all rows share."""
    setting, machine = rows[0].record.setting, rows[0].record.machine
    hardware = machine.gpu if setting.device.startswith("cuda") and machine.gpu else machine.processor
    text = f"{setting}, {hardware}"
    return printable(text[:1].upper() + text[1:])


def _how(rows: Sequence[Row]) -> str:
    """How many rounds ran, on what input, and how noisy the machine was."""
    records = [row.record for row in rows]
    timed = [r for r in records if r.seconds]
    if not timed:
        return "Nothing could be timed."
    sizes = ", ".join(dict.fromkeys(" x ".join(map(str, r.input_size)) for r in records if r.input_size))
    rounds, warmup = span([len(r.seconds) for r in timed], "{:.0f}"), span([r.warmup for r in timed], "{:.0f}")
    text = f"Medians of {rounds} rounds after {warmup} runs to warm up; input {sizes}."
    if records[0].setting.task == "training":
        text += " FLOPs are those of a training step, forward and backward."
    if records[0].setting.batch == 1:
        text += " The time is the latency of one image."
    noise = [r.noise for r in records if r.noise is not None]
    if noise:
        text += f" Noise: a fixed matrix product, timed in every round, had an IQR of {span(noise, '{:.1%}')}"
        text += " of its median."
    if noise and max(noise) > NOISY:
        text += f" The machine was busy (more than {NOISY:.0%}): differences below the noise may be noise."
    return text


def describe(machine: Machine) -> str:
    """Hardware, versions and flags in one line."""
    hardware = [f"{machine.processor}, {pluralize(machine.cores, 'core')}", *filter(None, [machine.gpu])]
    system = [f"{machine.memory_gib:g} GiB", machine.system, f"Python {machine.python}"]
    versions = [f"{name} {version}" for name, version in machine.versions.items()]
    flags = [f"{name}={value}" for name, value in machine.flags.items()]
    return printable(", ".join((*hardware, *system, *versions, *flags)) + ".")


def describe_machines_and_columns(rows: Sequence[Row]) -> list[str]:
    """Below the last table: every machine once, and what the columns mean."""
    machines = dict.fromkeys(describe(row.record.machine) for row in rows)
    return [*(f"Measured on {machine}" for machine in machines), *MEANING]


def span(values: Sequence[float], form: str) -> str:
    """One value, or the smallest and the largest.

    >>> span([20, 20], "{:.0f}"), span([0.012, 0.034], "{:.1%}"), span([], "{}")
    ('20', '1.2% to 3.4%', '')
    """
    ends = [form.format(end) for end in (min(values), max(values))] if values else []
    return " to ".join(dict.fromkeys(ends))


def render_template(name: str, **values: Any) -> str:
    return _environment().get_template(f"{name}.j2").render(**values)


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> escape_markdown("<b>|[x](y)_*`")
    '&lt;b>\\|\\[x\\](y)\\_\\*\\`'
    """
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


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
