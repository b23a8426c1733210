"""The figure of a probe: what is even and odd over the depth of a network, and how sure that is. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopping.lab.drawing import BACKGROUND, INK, finished, logarithmic, panels, style
from flopping.lab.probe.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVEN, ODD, NEITHER, INVARIANCE = "#0072b2", "#d55e00", "#c4cbd2", "#7d8590"
MOST_TICKS, MOST_CURVES = 13, 6
SMALLEST = 0.001
"""Smaller errors are drawn here: rounding errors of an equivariant network would take all of the axis."""


def draw(report: Report, title: str) -> Figure:
    """Four panels: shares of directions and of variance by layer, all correlations, and errors by layer."""
    with style():
        figure, (counts, variances, spectrum, errors) = panels(4, 2.9, share=False)
        _draw_shares(counts, report, "counts")
        _draw_shares(variances, report, "variances")
        counts.set(title="Directions", ylabel="share")
        variances.set_title("Variance")
        _draw_spectrum(spectrum, report)
        _draw_errors(errors, report)
        for axes in (counts, variances, errors):
            _name_layers(axes, report)
        handles, labels = counts.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return finished(figure)


def _draw_shares(axes: Axes, report: Report, kind: str) -> None:
    """Stacked bars: even at the bottom, odd at the top."""
    below = [0.0] * len(report.layers)
    for name, colour, label in (
        ("even", EVEN, "even"),
        ("neither", NEITHER, "not predicted by the mirror image"),
        ("odd", ODD, "odd"),
    ):
        heights = [getattr(getattr(layer, kind), name) for layer in report.layers]
        axes.bar(range(len(heights)), heights, 0.8, bottom=below, color=colour, label=label)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.axhline(0.5, color=INK, lw=0.8, ls=":")
    axes.set_ylim(0, 1)


def _draw_spectrum(axes: Axes, report: Report) -> None:
    """The correlations of a layer's directions, largest first, one step each; later layers are darker."""
    shown = report.layers[:: -max(1, -(-len(report.layers) // MOST_CURVES))][::-1]
    for place, layer in enumerate(shown, 1):
        sizes = sorted((w for w, _ in layer.spectrum), reverse=True)
        edges = [edge / len(sizes) for edge in range(len(sizes) + 1)]
        grey = 0.75 * (1 - place / len(shown))
        axes.stairs(sizes, edges, baseline=None, color=(grey, grey, grey), lw=1.3, label=layer.name)
    axes.set(title="Spectrum", xlim=(0, 1), ylim=(-1.05, 1.05), xlabel="share of directions")
    axes.set_ylabel("correlation with the mirror image")
    axes.legend(loc="lower left", fontsize=7, labelspacing=0.25, handlelength=1.4)


def _draw_errors(axes: Axes, report: Report) -> None:
    looks: dict[str, dict[str, Any]] = {
        "identity_error": {"label": "A = I (invariance)", "color": INVARIANCE, "marker": "^", "ls": "--"},
        "involution_error": {"label": "A A = I", "color": EVEN, "marker": "s", "mfc": BACKGROUND},
        "error": {"label": "least squares", "color": INK, "marker": "o"},
    }
    for name, look in looks.items():
        values = [max(SMALLEST, getattr(layer, name)) for layer in report.layers]
        axes.plot(range(len(values)), values, ms=4, lw=1.2, clip_on=False, **look)
    logarithmic(axes.yaxis, (SMALLEST, 10.0), digits=(1,))
    axes.set(title="Error of A f", ylabel=f"share of variance (at least {SMALLEST:g})")
    axes.legend(loc="upper left", ncols=3, fontsize=7, columnspacing=1.0, handlelength=1.6)


def _name_layers(axes: Axes, report: Report) -> None:
    """An axis of layers: by name if there are few, else by number."""
    names = [layer.name for layer in report.layers]
    ticks = list(range(0, len(names), -(-len(names) // MOST_TICKS)))
    named = len(names) <= 5 and all(len(name) <= 10 for name in names)
    axes.set_xticks(ticks, [names[place] if named else str(place) for place in ticks])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="x")
    if not named:
        axes.set_xlabel(f"layer, from {names[0]} to {names[-1]}")
