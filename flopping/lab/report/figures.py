"""The paper's figures, with what was counted and measured here. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from flopping.cost.overview import Row as Cost
from flopping.cost.overview import count_network
from flopping.lab.drawing import (
    BACKGROUND,
    COLOURS,
    INK,
    WIDTH,
    across,
    finished,
    label,
    logarithmic,
    panels,
    style,
)
from flopping.lab.report.comparison import FAMILIES, OTHERS, Row, groups
from flopping.lab.report.tables import title_of
from flopping.models import paper_names
from flopping.models.paper import family, ordinary_name, results, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"X": "o", "E": "s", "H": "D", "I": "^", "S": "v"}
PAPER_KINDS = {kind: MARKERS[kind] for kind in "XEHI"}
ISOTROPIC = "(iso.)"
"""How the paper's names of isotropic networks end."""


def paper_costs(progress: Callable[[], object] | None = None) -> list[Cost]:
    """What all networks of the paper's table cost, counted now."""
    found = []
    for paper in results():
        found.append(count_network(paper_names()[paper], paper))
        if progress is not None:
            progress()
    return found


def flops_against_parameters(costs: Sequence[Cost]) -> Figure:
    """Our networks filled, the paper's hollow around them; a line leads from X to E(X)."""
    with style():
        figure, grid = panels(len(FAMILIES), 3.5)
        for name, axes in zip(FAMILIES, grid, strict=True):
            colour = COLOURS[name]
            own = {c.paper: c for c in costs if c.paper and family(c.paper) == name}
            for paper, c in own.items():
                x, y, marker = c.params / 1e6, c.flops / 1e9, MARKERS[_kind(paper)]
                axes.plot(x, y, marker, color=colour, ms=4, label=f"_ours {paper}")
                if c.reported is not None:
                    at = c.reported.params_m, c.reported.flops_g
                    axes.plot(*at, marker, color=colour, mfc="none", ms=8.5, mew=0.9, label=f"_paper {paper}")
                start = own.get(ordinary_name(paper))
                if _kind(paper) == "X":
                    label(axes, _size(paper), (x, y), (-7, 5), "right")
                elif _kind(paper) == "E" and start is not None:
                    ends = (start.params / 1e6, x), (start.flops / 1e9, y)
                    axes.plot(*ends, "-", color=colour, lw=0.8, alpha=0.5, zorder=1)
            axes.set_title(name, color=colour)
            logarithmic(axes.xaxis, (6, 900))
            logarithmic(axes.yaxis, (1.2, 240))
            axes.set_xlabel("parameters (M)")
        grid[0].set_ylabel("FLOPs (G per image)")
        _legend(figure, PAPER_KINDS, hollow="the paper's")
        return finished(figure)


def accuracy_against_flops() -> Figure:
    """The paper's accuracies and FLOPs: a line joins the sizes of X, another those of E(X), and so on."""
    with style():
        figure, grid = panels(len(FAMILIES), 3.5, share=False)
        for name, axes in zip(FAMILIES, grid, strict=True):
            colour = COLOURS[name]
            for kind, marker in MARKERS.items():
                line = [r for r in results().values() if family(r.name) == name and _kind(r.name) == kind]
                points = sorted((r.flops_g, r.top1, _size(r.name)) for r in line if r.top1 is not None)
                if not points:
                    continue
                xs, ys, sizes = zip(*points, strict=True)
                look: dict[str, Any] = {"ls": "--" if kind in "HI" else "-", "lw": 2.0 if kind == "E" else 1.0}
                face = BACKGROUND if kind == "X" else colour
                axes.plot(xs, ys, marker=marker, color=colour, mfc=face, ms=6, label=f"_{kind} {name}", **look)
                below = kind == "X" or name == "ViT"  # whose hybrids are above E
                shift, ha = ((6, -7), "left") if below else ((-6, 7), "right")
                for x, y, size in zip(xs, ys, sizes, strict=True):
                    if kind in "XE":
                        label(axes, size if kind == "X" else f"E({size})", (x, y), shift, ha)
            axes.set_title(name, color=colour)
            logarithmic(axes.xaxis)
            axes.margins(x=0.26, y=0.12)
            axes.set_xlabel("FLOPs (G per image)")
        grid[0].set_ylabel("top-1 on ImageNet (%)")
        _legend(figure, PAPER_KINDS, hollow_x=True)
        return finished(figure)


def gain_against_flops(rows: Iterable[Row]) -> Figure | None:
    """Measured speed-ups over the baseline's FLOPs, a panel for each setting; None if there are none.

    Bars are confidence intervals, hollow marks the paper's, and the short lines are bounds: the ratio of FLOPs.
    """
    shown = [row for row in rows if row.figures["speedup"] is not None and row.baseline and row.baseline.flops]
    if not shown:
        return None
    tables = groups(shown)
    with style():
        figure, grid = panels(len(tables), 3.8)
        flops = [_baseline_gflops(row) for row in shown]
        for group, axes in zip(tables, grid, strict=True):
            for row in group:
                _draw_gain(axes, row)
            for key in dict.fromkeys(_line_of(row) for row in group if row.family != OTHERS):
                _join(axes, [row for row in group if _line_of(row) == key])
            axes.axhline(1, color=INK, lw=0.8, zorder=1)
            title = title_of(group).replace(" ", "\xa0").replace(",\xa0", ", ")  # break lines behind commas only
            axes.set_title(textwrap.fill(title, 90 // across(len(tables))), fontsize=8.5)
            axes.set_xlabel("FLOPs of X (G per image)")
            logarithmic(axes.xaxis, (min(flops) / 1.6, max(flops) * 1.6))
        for axes in grid[:: across(len(tables))]:
            axes.set_ylabel("speed-up: throughput over that of X")
        kinds = {kind: mark for kind, mark in MARKERS.items() if kind in map(_kind_of, shown)}
        families = [name for name in COLOURS if name in {row.family for row in shown}]
        _legend(figure, kinds, families, hollow="the paper's, A100", bound=True)
        return finished(figure)


def _draw_gain(axes: Axes, row: Row) -> None:
    """One network: its speed-up with its interval, the paper's, and the bound."""
    x, colour, marker, figures = _baseline_gflops(row), COLOURS[row.family], MARKERS[_kind_of(row)], row.figures
    value, low, high = figures["speedup"], figures["speedup_low"], figures["speedup_high"]
    bars = None if low is None or high is None else [[value - low], [high - value]]
    look: dict[str, Any] = {"color": colour, "ms": 5, "elinewidth": 1.2, "capsize": 2.5}
    axes.errorbar(x, value, bars, fmt=marker, label=f"_ours {row.name}", **look)
    if figures["paper_speedup"] is not None:
        look = {"color": colour, "mfc": BACKGROUND, "ms": 5, "mew": 0.9}
        axes.plot(x, figures["paper_speedup"], marker, label=f"_paper {row.name}", **look)
    if figures["flop_ratio"] is not None:
        axes.plot(x, figures["flop_ratio"], "_", color=colour, ms=11, mew=1.6, label=f"_bound {row.name}")
    if _kind_of(row) == "E":
        # the sizes of ConvNeXt lie just left of ViT's, and so do their names
        shift, ha = ((-6, 0), "right") if row.family == FAMILIES[-1] else ((6, 0), "left")
        name = f"{_size(row.record.paper)}{' iso.' * _is_isotropic(row)}" if row.record.paper else row.name
        label(axes, name if len(name) <= 24 else f"{name[:23]}…", (x, value), shift, ha, colour)


def _join(axes: Axes, rows: Sequence[Row]) -> None:
    """Thin lines through the sizes of one architecture, ours and the paper's."""
    for figure, dashes in (("speedup", "-"), ("paper_speedup", ":")):
        points = sorted((_baseline_gflops(r), r.figures[figure]) for r in rows if r.figures[figure] is not None)
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), dashes, color=COLOURS[rows[0].family], lw=1, alpha=0.6, zorder=1)


def _legend(
    figure: Figure,
    kinds: Iterable[str],
    families: Sequence[str] = (),
    hollow: str | None = None,
    hollow_x: bool = False,
    bound: bool = False,
) -> None:
    """What the marks mean, under the panels."""
    from matplotlib.lines import Line2D

    def mark(marker: str, name: str, **look: Any) -> Line2D:
        usual: dict[str, Any] = {"ls": "", "marker": marker, "color": INK, "ms": 6, "label": name}
        return Line2D([], [], **(usual | look))

    kinds = list(kinds)
    marks = [mark("", name, color=COLOURS[name], ls="-", lw=4) for name in families]
    for kind in kinds:
        face = {"mfc": BACKGROUND} if hollow_x and kind == "X" else {}
        marks.append(mark(MARKERS[kind], kind if kind == "X" else f"{kind}(X)", **face))
    marks += [mark(MARKERS[kinds[0]], hollow, mfc=BACKGROUND)] if hollow else []
    marks += [mark("_", "FLOPs of X over those of E", ms=11, mew=1.6)] if bound else []
    columns = len(marks)
    if figure.get_figwidth() < WIDTH and columns > 4:  # two rows, and matplotlib fills columns first
        columns = -(-columns // 2)
        marks = [mark for pair in zip_longest(marks[:columns], marks[columns:]) for mark in pair if mark is not None]
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, handletextpad=0.4, columnspacing=1.6)


def _line_of(row: Row) -> tuple[str, str, bool]:
    """What networks that differ in their size only have in common."""
    return row.family, _kind_of(row), _is_isotropic(row)


def _is_isotropic(row: Row) -> bool:
    return ISOTROPIC in (row.record.paper or "")


def _baseline_gflops(row: Row) -> float:
    assert row.baseline is not None
    assert row.baseline.flops is not None
    return row.baseline.flops / 1e9


def _kind_of(row: Row) -> str:
    """What is compared and isn't the paper's counts as equivariant."""
    kind = _kind(row.record.paper or "")
    return "E" if kind == "X" else kind


def _kind(paper: str) -> str:
    """X, E, H, I or S."""
    return split_name(paper)[1]


def _size(paper: str) -> str:
    """What distinguishes a network within its architecture.

    >>> _size("E(ResMLP-S24)"), _size("ConvNeXt-B (iso.)")
    ('S24', 'B')
    """
    return ordinary_name(paper).partition("-")[2].removesuffix(f" {ISOTROPIC}")
