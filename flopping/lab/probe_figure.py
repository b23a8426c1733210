"""The figure of a probe: what is even and odd over the depth of a network, and how sure that is. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopping.lab.drawing import BACKGROUND, INK, finished, logarithmic, panels, style
from flopping.lab.probe import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVEN, ODD, NEITHER, INVARIANCE = "#0072b2", "#d55e00", "#c4cbd2", "#7d8590"
MOST_TICKS, MOST_CURVES = 13, 6
SMALLEST = 0.001
"""Smaller errors are drawn here: rounding errors of an equivariant network would take all of the axis."""
ERRORS: dict[str, dict[str, Any]] = {
    "identity_error": {"label": "A = I (invariance)", "color": INVARIANCE, "marker": "^", "ls": "--"},
    "involution_error": {"label": "A A = I", "color": EVEN, "marker": "s", "mfc": BACKGROUND},
    "error": {"label": "least squares", "color": INK, "marker": "o"},
}


def draw(report: Report, title: str) -> Figure:
    """Four panels: shares of directions and of variance by layer, all correlations, and errors by layer."""
    with style():
        figure, (counts, variances, spectrum, errors) = panels(4, 2.9, share=False)
        for axes, kind, name in ((counts, "counts", "Directions"), (variances, "variances", "Variance")):
            below = [0.0] * len(report.layers)
            for part, colour in (("even", EVEN), ("neither", NEITHER), ("odd", ODD)):
                heights = [getattr(getattr(layer, kind), part) for layer in report.layers]
                label = "not predicted by the mirror image" if part == "neither" else part
                axes.bar(range(len(heights)), heights, 0.8, bottom=below, color=colour, label=label)
                below = [base + height for base, height in zip(below, heights, strict=True)]
            axes.axhline(0.5, color=INK, lw=0.8, ls=":")
            axes.set(title=name, ylabel="share", ylim=(0, 1))
        _draw_spectrum(spectrum, report)
        for error, look in ERRORS.items():
            values = [max(SMALLEST, getattr(layer, error)) for layer in report.layers]
            errors.plot(range(len(values)), values, ms=4, lw=1.2, clip_on=False, **look)
        logarithmic(errors.yaxis, (SMALLEST, 10.0), digits=(1,))
        errors.set(title="Error of A f", ylabel=f"share of variance (at least {SMALLEST:g})")
        errors.legend(loc="upper left", ncols=3, fontsize=7, columnspacing=1.0, handlelength=1.6)
        for axes in (counts, variances, errors):
            _name_layers(axes, [layer.name for layer in report.layers])
        handles, labels = counts.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return finished(figure)


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


def _name_layers(axes: Axes, names: list[str]) -> None:
    """An axis of layers: by name if there are few, else by number."""
    ticks = list(range(0, len(names), -(-len(names) // MOST_TICKS)))
    named = len(names) <= 5 and all(len(name) <= 10 for name in names)
    axes.set_xticks(ticks, [names[place] if named else str(place) for place in ticks])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(False, axis="x")
    if not named:
        axes.set_xlabel(f"layer, from {names[0]} to {names[-1]}")
