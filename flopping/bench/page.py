"""One page of HTML with all tables and figures: it needs no network, no script and no other file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from flopping.bench.comparison import Row, groups, printable
from flopping.bench.drawing import BACKGROUND, COLOURS, GRID, INK
from flopping.bench.notes import MEANING, machines, mark, notes, title
from flopping.bench.records import Record
from flopping.bench.tables import Column, by_family, columns, headings
from flopping.pages import document, generator

COMMAND = "report"
GENERATOR = generator(COMMAND)

CAPTIONS = {
    "gain": "Speed-up over the FLOPs of the ordinary network, with 95 % confidence intervals. Hollow: the paper's, on"
    " an A100. The short lines are what the speed-up would be if time were FLOPs.",
    "flops": "FLOPs over parameters of all networks of the paper. Filled: counted here. Hollow: the paper's.",
    "accuracy": "Accuracy over FLOPs, both as the paper reports them; each panel has a scale of its own.",
}
"""Figures by the names of their files, in the order of the page."""

STYLE = """
.notes { font-size: .9rem; color: var(--soft); padding-left: 0; list-style: none; }
.notes li { margin: .3rem 0; }
figure { margin: 1rem 0 2rem; }
figure > div { overflow-x: auto; }
figure svg { display: block; max-width: 72rem; width: 100%; height: auto; color: var(--ink); }
figcaption { font-size: .9rem; margin-top: .4rem; }
.scroll { overflow-x: auto; margin-top: 1.2rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
caption { text-align: left; font-weight: 600; font-size: .95rem; padding-bottom: .5rem; color: var(--ink); }
caption span { display: block; position: sticky; left: 0; width: fit-content; max-width: calc(100vw - 2rem);
  white-space: normal; }
th, td { padding: .28rem .42rem; text-align: right; }
th { font-weight: 600; }
thead th { border-bottom: 1px solid var(--line); vertical-align: bottom; }
thead th[colspan] { text-align: center; }
tbody th, th.model { text-align: left; position: sticky; left: 0; background: var(--paper); }
tbody th { font-weight: 500; }
tbody th.family { font-weight: 700; padding-top: .8rem; position: static; }
tbody tr:hover > * { background: var(--band); }
.of-paper { color: var(--soft); font-weight: 400; }
.ratio { font-weight: 700; }
pre { background: var(--band); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem;
  font-size: .85rem; overflow-x: auto; }
a { color: inherit; }
@media (max-width: 40rem) {
  tbody th, th.model { position: static; }
  figure svg { min-width: 42rem; }
}
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  table { font-size: .6rem; } th, td { padding: .15rem .3rem; }
  .scroll, figure > div { overflow: visible; }
}
"""


def page(rows: Sequence[Row], records: Sequence[Record], figures: Mapping[str, str], files: Sequence[str] = ()) -> str:
    """The page as text. `figures` are SVG by the names of `CAPTIONS`, `files` lie beside the page."""
    tables = groups(rows)
    drawn = {name: _figure(name, figures[name]) for name in CAPTIONS if name in figures}
    gain = drawn.pop("gain", "<p>No speed-up was measured, so there is no figure of it.</p>")
    links = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in files)
    body = f"""<h1>What equivariance costs</h1>
<p>FLOPs, throughput and memory of networks that know a mirrored image shows the same thing, beside ordinary ones of the
same size, and beside what the paper reports.</p>
{_list(map(_summary, tables), "summary")}
<h2 id="speed">Speed-up</h2>
{gain}
<h2 id="tables">Tables</h2>
{"".join(map(_table, tables))}
<h2 id="columns">What the columns mean</h2>
{_list(MEANING, "meaning")}
<h2 id="networks">The networks</h2>
{"".join(drawn.values())}
<h2 id="machines">Machines</h2>
{_list(machines(rows), "machines")}
<h2 id="commands">Commands</h2>
{_commands(records)}
{f"<h2>Files</h2><p>Tables and figures beside this page: {links}.</p>" if links else ""}"""
    return document("What equivariance costs: measurements of flopping", COMMAND, STYLE, body)


def inline(svg: str, prefix: str) -> str:
    """A drawing as part of a page: in the page's colours, as wide as there is room, with names of its own.

    >>> inline('<?xml?><svg width="9pt" height="4pt" viewBox="0 0 9 4"><!--x--><g id="a" x="url(#a)"/></svg>', "p")
    '<svg viewBox="0 0 9 4"><g id="p-a" x="url(#p-a)"/></svg>'
    """
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", svg)
    svg = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", svg)
    svg = re.sub(r'((?<![\w-])id="|url\(#|href="#)', rf"\1{prefix}-", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name.lower()}, {colour})")  # which only dark pages set
    return svg.replace(INK, "currentColor").replace(BACKGROUND, "var(--paper)").replace(GRID, "var(--line)").strip()


def _figure(name: str, svg: str) -> str:
    caption = escape(CAPTIONS[name])
    drawing = inline(svg, name).replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    scroll = '<div role="region" tabindex="0" aria-label="Figure">'  # a narrow screen shows a part of it
    return f'<figure id="figure-{name}">\n{scroll}{drawing}</div>\n<figcaption>{caption}</figcaption>\n</figure>\n'


def _summary(rows: Sequence[Row]) -> str:
    """What came out of one setting, in a line."""
    speedups = [row.speedup.value for row in rows if row.speedup is not None]
    efficiencies = [row.efficiency for row in rows if row.efficiency is not None]
    parts = [f"{len(rows)} network{'s' if len(rows) != 1 else ''}"]
    for what, values in (("speed-up", speedups), ("efficiency", efficiencies)):
        if values:
            low, high = f"{min(values):.2f}", f"{max(values):.2f}"
            parts.append(f"{what} {low}" if low == high else f"{what} {low} to {high}")
    failed = sum(not row.record.seconds for row in rows)
    return f"{title(rows)}: {', '.join(parts)}{f'; {failed} without times' if failed else ''}."


def _table(rows: Sequence[Row]) -> str:
    shown = columns(rows)
    top = "".join(
        f'<th scope="colgroup" colspan="{len(under)}">{escape(heading)}</th>' for heading, under in headings(shown)
    )
    whose = "".join(f'<th scope="col"{_class(c)}>{"paper" if c.of_paper else "ours"}</th>' for c in shown)
    families = list(by_family(rows))
    body = []
    for family, members in families:
        lines = []
        if len(families) > 1:
            lines.append(
                f'<tr><th class="family" scope="rowgroup" colspan="{len(shown) + 1}">{escape(family)}</th></tr>'
            )
        for row in members:
            cells = "".join(f"<td{_class(c)}>{escape(c.cell(row))}</td>" for c in shown)
            lines.append(f'<tr><th scope="row">{escape(row.name + mark(row, rows))}</th>{cells}</tr>')
        body.append("<tbody>\n" + "\n".join(lines) + "\n</tbody>\n")
    name = escape(title(rows))
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}">\n<table>\n'
        f"<caption><span>{name}</span></caption>\n"
        f'<thead>\n<tr><th class="model" scope="col" rowspan="2">model</th>{top}</tr>\n<tr>{whose}</tr>\n</thead>\n'
        f"{''.join(body)}</table>\n</div>\n{_list(notes(rows), 'notes')}"
    )


def _class(column: Column) -> str:
    """The paper's figures step back, the speed-up stands out."""
    name = "of-paper" if column.of_paper else "ratio" if column.heading == "speed-up" else ""
    return f' class="{name}"' if name else ""


def _commands(records: Sequence[Record]) -> str:
    """Every command once, with what it measured and when it began."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.command, []).append(record)
    blocks = []
    for command, made in found.items():
        names = ", ".join(dict.fromkeys(printable(record.name) for record in made))
        times = sorted({printable(record.time) for record in made})
        when = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
        blocks.append(f'<pre>{escape(printable(command))}</pre>\n<p class="soft">{escape(f"{names}; {when}.")}</p>\n')
    return "".join(blocks)


def _list(lines: Iterable[str], kind: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f'<ul class="{kind}">\n{items}</ul>\n'
