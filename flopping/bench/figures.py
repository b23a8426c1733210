"""The paper's figures, with what was counted and measured here. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from flopping.bench.comparison import FAMILIES, OTHERS, Row, groups
from flopping.bench.drawing import (
    BACKGROUND,
    COLOURS,
    INK,
    MARKERS,
    across,
    finished,
    label,
    legend,
    lines,
    logarithmic,
    nice,
    panels,
    style,
)
from flopping.bench.notes import title
from flopping.models import paper_names
from flopping.overview import Row as Cost
from flopping.overview import row as cost_of
from flopping.paper import family, ordinary_name, results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ISOTROPIC = "(iso.)"
"""How the paper's names of isotropic networks end."""


def paper_costs(progress: Callable[[], object] | None = None) -> list[Cost]:
    """What all networks of the paper's table cost, counted now."""
    found = []
    for paper in results():
        found.append(cost_of(paper_names()[paper], paper))
        if progress is not None:
            progress()
    return found


def flops_against_parameters(costs: Sequence[Cost]) -> Figure:
    """Our networks filled, the paper's hollow around them; a line leads from X to E(X)."""
    with style():
        figure, grid = panels(len(FAMILIES), 3.5)
        for name, axes in zip(FAMILIES, grid, strict=True):
            own = {c.paper: c for c in costs if c.paper and family(c.paper) == name}
            for paper, c in own.items():
                x, y, marker = c.params / 1e6, c.flops / 1e9, MARKERS[_kind(paper)]
                axes.plot(x, y, marker, color=COLOURS[name], ms=4, label=f"_ours {paper}")
                if c.reported is not None:
                    at = c.reported.params_m, c.reported.flops_g
                    axes.plot(*at, marker, color=COLOURS[name], mfc="none", ms=8.5, mew=0.9, label=f"_paper {paper}")
                if _kind(paper) == "X":
                    label(axes, _size(paper), (x, y), (-7, 5), "right")
                elif _kind(paper) == "E" and ordinary_name(paper) in own:
                    start = own[ordinary_name(paper)]
                    ends = (start.params / 1e6, x), (start.flops / 1e9, y)
                    axes.plot(*ends, "-", color=COLOURS[name], lw=0.8, alpha=0.5, zorder=1)
            axes.set_title(name, color=COLOURS[name])
            logarithmic(axes.xaxis, (10, 20, 50, 100, 200, 500), (6, 900))
            logarithmic(axes.yaxis, (2, 5, 10, 20, 50, 100, 200), (1.2, 240))
            axes.set_xlabel("parameters (M)")
        grid[0].set_ylabel("FLOPs (G per image)")
        legend(figure, MARKERS, hollow="the paper's")
        return finished(figure)


def accuracy_against_flops() -> Figure:
    """The paper's accuracies and FLOPs: a line joins the sizes of X, another those of E(X), and so on."""
    with style():
        figure, grid = panels(len(FAMILIES), 3.5, share=False)
        for name, axes in zip(FAMILIES, grid, strict=True):
            kinds = {_kind(paper) for paper in results() if family(paper) == name}
            for kind, marker in MARKERS.items():
                line = [r for r in results().values() if family(r.name) == name and _kind(r.name) == kind]
                points = sorted((r.flops_g, r.top1, _size(r.name)) for r in line if r.top1 is not None)
                if not points:
                    continue
                xs, ys, sizes = zip(*points, strict=True)
                look: dict[str, Any] = {"ls": "--" if kind in "HI" else "-", "lw": 2.0 if kind == "E" else 1.0}
                face = BACKGROUND if kind == "X" else COLOURS[name]
                axes.plot(xs, ys, marker=marker, color=COLOURS[name], mfc=face, ms=6, label=f"_{kind} {name}", **look)
                below = kind == "X" or "H" in kinds  # above E are the hybrids, where there are any
                for x, y, size in zip(xs, ys, sizes, strict=True):
                    if kind in "XE":
                        shift, ha = ((6, -7), "left") if below else ((-6, 7), "right")
                        label(axes, size if kind == "X" else f"E({size})", (x, y), shift, ha)
            axes.set_title(name, color=COLOURS[name])
            logarithmic(axes.xaxis, (2, 5, 10, 20, 50, 100, 200))
            axes.margins(x=0.26, y=0.12)
            axes.set_xlabel("FLOPs (G per image)")
        grid[0].set_ylabel("top-1 on ImageNet (%)")
        legend(figure, MARKERS, hollow_x=True)
        return finished(figure)


def gain_against_flops(rows: Iterable[Row]) -> Figure | None:
    """Measured speed-ups over the baseline's FLOPs, a panel for each setting; None if there are none.

    Bars are confidence intervals, hollow marks the paper's, and the short lines are bounds: the ratio of FLOPs.
    """
    tables = [[r for r in group if r.speedup and r.baseline and r.baseline.flops] for group in groups(list(rows))]
    tables = [group for group in tables if group]
    if not tables:
        return None
    with style():
        figure, grid = panels(len(tables), 3.8)
        for group, axes in zip(tables, grid, strict=True):
            for row in group:
                _gain(axes, row)
            for key in dict.fromkeys(_line_of(row) for row in group if row.family != OTHERS):
                _joined(axes, [row for row in group if _line_of(row) == key])
            axes.axhline(1, color=INK, lw=0.8, zorder=1)
            axes.set_title(lines(title(group), 90 // across(len(tables))), fontsize=8.5)
            axes.set_xlabel("FLOPs of X (G per image)")
        flops = [row.baseline.flops / 1e9 for group in tables for row in group if row.baseline and row.baseline.flops]
        for axes in grid:
            logarithmic(axes.xaxis, nice(min(flops), max(flops)), (min(flops) / 1.6, max(flops) * 1.6))
        for axes in grid[:: across(len(tables))]:
            axes.set_ylabel("speed-up: throughput over that of X")
        shown = [row for group in tables for row in group]
        kinds = {kind: mark for kind, mark in MARKERS.items() if kind in map(_kind_of, shown)}
        families = [name for name in COLOURS if name in {row.family for row in shown}]
        legend(figure, kinds, families, hollow="the paper's, A100", bound=True)
        return finished(figure)


def _gain(axes: Axes, row: Row) -> None:
    """One network: its speed-up with its interval, the paper's, and the bound."""
    x, colour, marker = _flops_of_baseline(row), COLOURS[row.family], MARKERS[_kind_of(row)]
    assert row.speedup is not None
    value, low, high = row.speedup
    bars = [[value - low], [high - value]] if isfinite(low) and isfinite(high) else None
    look: dict[str, Any] = {"color": colour, "ms": 5, "elinewidth": 1.2, "capsize": 2.5}
    axes.errorbar(x, value, bars, fmt=marker, label=f"_ours {row.name}", **look)
    if row.reported_speedup is not None:
        look = {"color": colour, "mfc": BACKGROUND, "ms": 5, "mew": 0.9}
        axes.plot(x, row.reported_speedup, marker, label=f"_paper {row.name}", **look)
    if row.flop_ratio is not None:
        axes.plot(x, row.flop_ratio, "_", color=colour, ms=11, mew=1.6, label=f"_bound {row.name}")
    if _kind_of(row) == "E":
        # the sizes of ConvNeXt lie just left of ViT's, and so do their names
        shift, ha = ((-6, 0), "right") if row.family == FAMILIES[-1] else ((6, 0), "left")
        name = f"{_size(row.record.paper)}{' iso.' * _is_isotropic(row)}" if row.record.paper else row.name
        label(axes, name if len(name) <= 24 else f"{name[:23]}…", (x, value), shift, ha, colour)


def _joined(axes: Axes, rows: Sequence[Row]) -> None:
    """Thin lines through the sizes of one architecture, ours and the paper's."""
    ours, papers = [r.speedup and r.speedup.value for r in rows], [r.reported_speedup for r in rows]
    for values, dashes in ((ours, "-"), (papers, ":")):
        points = sorted((_flops_of_baseline(r), v) for r, v in zip(rows, values, strict=True) if v is not None)
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), dashes, color=COLOURS[rows[0].family], lw=1, alpha=0.6, zorder=1)


def _line_of(row: Row) -> tuple[str, str, bool]:
    """What networks that differ in their size only have in common."""
    return row.family, _kind_of(row), _is_isotropic(row)


def _is_isotropic(row: Row) -> bool:
    """Whether it is the isotropic form of ConvNeXt, which measurements may show beside the other one."""
    return ISOTROPIC in (row.record.paper or "")


def _flops_of_baseline(row: Row) -> float:
    assert row.baseline is not None
    assert row.baseline.flops is not None
    return row.baseline.flops / 1e9


def _kind_of(row: Row) -> str:
    """What is compared and isn't the paper's counts as equivariant."""
    kind = _kind(row.record.paper or "")
    return "E" if kind == "X" else kind


def _kind(paper: str) -> str:
    """X, E, H or I."""
    return "X" if ordinary_name(paper) == paper else paper[0]


def _size(paper: str) -> str:
    """What sets a network apart within its architecture.

    >>> _size("E(ResMLP-S24)"), _size("ConvNeXt-B (iso.)")
    ('S24', 'B')
    """
    return ordinary_name(paper).partition("-")[2].removesuffix(f" {ISOTROPIC}")
