"""A report as a page of Markdown, and its figure of speed-ups. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopping.files import write_text
from flopping.lab.drawing import BACKGROUND, COLOURS, INK, finished, logarithmic, panels, panels_per_row, save, style
from flopping.lab.report.comparison import FAMILIES, OTHERS, Row, groups
from flopping.lab.report.tables import markdown, title_of
from flopping.models.paper import ordinary_name, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"E": "s", "H": "D", "I": "^", "S": "v"}
ISOTROPIC = "(iso.)"
"""How the paper's names of isotropic networks end."""


def write_page(rows: Sequence[Row], path: Path) -> None:
    """Write the page, and the figure beside it if a speed-up was measured: the same rows give the same bytes."""
    figure, picture = draw(rows), path.with_suffix(".png")
    text = markdown(rows)
    if figure is not None:
        save(figure, picture)
        text = f"![Speed-up over the FLOPs of the ordinary network]({picture.name})\n\n{text}"
    write_text(path, text)


def draw(rows: Sequence[Row]) -> Figure | None:
    """Measured speed-ups over the baseline's FLOPs, a panel for each setting; None if there are none.

    Bars are confidence intervals, hollow marks the paper's, and the short lines are bounds: the ratio of FLOPs.
    """
    shown = [row for row in rows if row.figures["speedup"] is not None and row.baseline and row.baseline.flops]
    if not shown:
        return None
    tables = groups(shown)
    with style():
        figure, grid = panels(len(tables), 3.8)
        flops = list(map(_baseline_gflops, shown))
        for group, axes in zip(tables, grid, strict=True):
            for row in group:
                _draw_row(axes, row)
            for key in dict.fromkeys(_line_of(row) for row in group if row.family != OTHERS):
                _join(axes, [row for row in group if _line_of(row) == key])
            axes.axhline(1, color=INK, lw=0.8, zorder=1)
            title = title_of(group).replace(" ", "\xa0").replace(",\xa0", ", ")  # break lines after commas only
            axes.set_title(textwrap.fill(title, 90 // panels_per_row(len(tables))), fontsize=8.5)
            axes.set_xlabel("FLOPs of X (G per image)")
            logarithmic(axes.xaxis, (min(flops) / 1.6, max(flops) * 1.6))
        for axes in grid[:: panels_per_row(len(tables))]:
            axes.set_ylabel("speed-up: throughput over that of X")
        _legend(figure, shown, narrow=len(tables) == 1)
        return finished(figure)


def _draw_row(axes: Axes, row: Row) -> None:
    """One network: its speed-up with its interval, the paper's, and the bound."""
    from matplotlib.patheffects import withStroke

    x, colour, marker, figures = _baseline_gflops(row), COLOURS[row.family], MARKERS[_kind(row)], row.figures
    value, low, high = figures["speedup"], figures["speedup_low"], figures["speedup_high"]
    bars = None if low is None or high is None else [[value - low], [high - value]]
    look: dict[str, Any] = {"color": colour, "ms": 5, "elinewidth": 1.2, "capsize": 2.5}
    axes.errorbar(x, value, bars, fmt=marker, label=f"_ours {row.name}", **look)
    if figures["paper_speedup"] is not None:
        look = {"color": colour, "mfc": BACKGROUND, "ms": 5, "mew": 0.9}
        axes.plot(x, figures["paper_speedup"], marker, label=f"_paper {row.name}", **look)
    if figures["flop_ratio"] is not None:
        axes.plot(x, figures["flop_ratio"], "_", color=colour, ms=11, mew=1.6, label=f"_bound {row.name}")
    if _kind(row) == "E":
        # the sizes of ConvNeXt lie just left of ViT's, and so do their names
        shift, ha = (-6, "right") if row.family == FAMILIES[-1] else (6, "left")
        at: dict[str, Any] = {"xytext": (shift, 0), "textcoords": "offset points", "ha": ha, "va": "center"}
        word = axes.annotate(textwrap.shorten(_size(row), 24, placeholder="…"), (x, value), color=colour, size=8, **at)
        word.set_path_effects([withStroke(linewidth=2.5, foreground=BACKGROUND)])  # a rim that keeps lines away


def _join(axes: Axes, rows: Sequence[Row]) -> None:
    """Thin lines through the sizes of one architecture, ours and the paper's."""
    for figure, dashes in (("speedup", "-"), ("paper_speedup", ":")):
        points = sorted((_baseline_gflops(r), r.figures[figure]) for r in rows if r.figures[figure] is not None)
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), dashes, color=COLOURS[rows[0].family], lw=1, alpha=0.6, zorder=1)


def _legend(figure: Figure, shown: Sequence[Row], narrow: bool) -> None:
    """What colours and marks mean, under the panels."""
    from matplotlib.lines import Line2D

    def mark(marker: str, name: str, **look: Any) -> Line2D:
        settings: dict[str, Any] = {"ls": "", "marker": marker, "color": INK, "ms": 6, "label": name, **look}
        return Line2D([], [], **settings)

    kinds = [kind for kind in MARKERS if kind in map(_kind, shown)]
    families = [name for name in COLOURS if name in {row.family for row in shown}]
    marks = [mark("", name, color=COLOURS[name], ls="-", lw=4) for name in families]
    marks += [mark(MARKERS[kind], f"{kind}(X)") for kind in kinds]
    marks.append(mark(MARKERS[kinds[0]], "the paper's, A100", mfc=BACKGROUND))
    marks.append(mark("_", "FLOPs of X over those of E", ms=11, mew=1.6))
    columns = min(len(marks), 4 if narrow else 9)
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, handletextpad=0.4, columnspacing=1.6)


def _line_of(row: Row) -> tuple[str, str, bool]:
    """What networks that differ in their size only have in common."""
    return row.family, _kind(row), ISOTROPIC in (row.record.paper or "")


def _baseline_gflops(row: Row) -> float:
    assert row.baseline is not None
    assert row.baseline.flops is not None
    return row.baseline.flops / 1e9


def _kind(row: Row) -> str:
    """E, H, I or S. What is compared and has no such name counts as equivariant."""
    kind = split_name(row.record.paper or "")[1]
    return "E" if kind == "X" else kind


def _size(row: Row) -> str:
    """What distinguishes a network within its architecture, or the name of one that isn't the paper's."""
    paper = row.record.paper
    return ordinary_name(paper).partition("-")[2].replace(ISOTROPIC, "iso.") if paper else row.name
