"""A report as a folder of files: the page, the tables and the figures, each written whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from flopping.cost.overview import Row as Cost
from flopping.cost.records import Record
from flopping.errors import UsageError, pluralize
from flopping.files import atomic_write
from flopping.lab.drawing import BACKGROUND, COLOURS, GRID, INK, render
from flopping.lab.pages import render_template
from flopping.lab.report.comparison import Row, compare, groups, printable
from flopping.lab.report.figures import accuracy_against_flops, flops_against_parameters, gain_against_flops
from flopping.lab.report.tables import MEANING, latex, machines, make_tables, markdown, span, title_of

PAGE = "index.html"
COMMAND = "report"
GENERATOR = f'<meta name="generator" content="flopping {COMMAND}">'
"""The tag by which a page of this command is recognised."""
CAPTIONS = {
    "gain": "Speed-up over the FLOPs of the ordinary network, with 95 % confidence intervals. Hollow: the paper's, on"
    " an A100. The short lines are what the speed-up would be if time were FLOPs.",
    "flops": "FLOPs over parameters of all networks of the paper. Filled: counted here. Hollow: the paper's.",
    "accuracy": "Accuracy over FLOPs, both as the paper reports them; each panel has a scale of its own.",
}
"""Figures by the names of their files."""
FILES = (PAGE, "table.md", "table.tex", *(f"{name}.{form}" for name in CAPTIONS for form in ("svg", "png")))
"""All names that a report may write."""


def build(records: Sequence[Record], costs: Sequence[Cost]) -> dict[str, bytes]:
    """The files of a report by their names; the same records make the same bytes."""
    rows = compare(records)
    drawings = {
        "gain": gain_against_flops(rows),
        "flops": flops_against_parameters(costs),
        "accuracy": accuracy_against_flops(),
    }
    files = {"table.md": markdown(rows).encode(), "table.tex": latex(rows).encode()}
    drawn = {name: figure for name, figure in drawings.items() if figure is not None}
    files |= {f"{name}.{form}": render(figure, form) for name, figure in drawn.items() for form in ("svg", "png")}
    vectors = {name: files[f"{name}.svg"].decode() for name in drawn}
    return {PAGE: page(rows, records, vectors, list(files)).encode(), **files}


def page(rows: Sequence[Row], records: Sequence[Record], figures: Mapping[str, str], files: Sequence[str] = ()) -> str:
    """The page as text. `figures` are SVG by the names of `CAPTIONS`, `files` lie beside the page."""
    return render_template(
        "report.html",
        command=COMMAND,
        tables=make_tables(rows),
        summaries=map(_summary, groups(rows)),
        meaning=MEANING,
        machines=machines(rows),
        commands=_commands(records),
        figures={name: _inline(svg, name) for name, svg in figures.items()},
        captions=CAPTIONS,
        files=files,
        zip=zip,
    )


def _inline(svg: str, name: str) -> Markup:
    """A drawing as part of a page: in the page's colours, as wide as there is room, with ids that start with its name.

    >>> svg = '<?xml?><svg width="9pt" height="4pt" viewBox="0 0 9 4"><!--x--><g id="a" x="url(#a)"/></svg>'
    >>> _inline(svg, "gain")[-57:]
    Markup('viewBox="0 0 9 4"><g id="gain-a" x="url(#gain-a)"/></svg>')
    """
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'^(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg)
    svg = re.sub(r'((?<![\w-])id="|url\(#|href="#)', rf"\1{name}-", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(CAPTIONS[name])}" ', 1)
    for family, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{family.lower()}, {colour})")  # which only dark pages set
    svg = svg.replace(INK, "currentColor").replace(BACKGROUND, "var(--paper)").replace(GRID, "var(--line)")
    return Markup(svg.strip())


def _summary(rows: Sequence[Row]) -> str:
    """The results of one setting in a line."""
    parts = [pluralize(len(rows), "network")]
    for what in ("speedup", "efficiency"):
        values = [row.figures[what] for row in rows if row.figures[what] is not None]
        parts += [f"{what.replace('speedup', 'speed-up')} {span(values, '{:.2f}')}"] if values else []
    failed = sum(not row.record.seconds for row in rows)
    return f"{title_of(rows)}: {', '.join(parts)}{f'; {failed} without times' if failed else ''}."


def _commands(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Every command once, with the networks that it measured and when it began."""
    for command in dict.fromkeys(record.command for record in records):
        made = [record for record in records if record.command == command]
        names = ", ".join(dict.fromkeys(printable(record.name) for record in made))
        times = sorted({printable(record.time) for record in made})
        yield printable(command), f"{names}; {' to '.join(dict.fromkeys((times[0], times[-1])))}."


def require_folder(folder: Path, force: bool = False) -> None:
    """Refuse a folder in which files that aren't a report's would be replaced."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise UsageError(f"{str(nearest)!r} is a file: a report is a folder")
    index = folder / PAGE
    if index.is_file() and GENERATOR.encode() in index.read_bytes():
        return
    standing = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if standing and not force:
        raise UsageError(
            f"{str(folder)!r} has {', '.join(standing)}, not of a report: --force replaces, or name another"
        )


def write(folder: Path, files: Mapping[str, bytes], force: bool = False) -> None:
    """Write the files, the page last. What an earlier report left and this one lacks is removed."""
    require_folder(folder, force)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: name == PAGE):
        with atomic_write(folder / name) as place:
            place.write_bytes(files[name])
    for name in set(FILES) - set(files):
        (folder / name).unlink(missing_ok=True)
