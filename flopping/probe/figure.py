"""The figure of a probe: what is even and odd over the depth of a network, and how sure that is. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopping.bench.drawing import BACKGROUND, INK, finished, logarithmic, panels, style
from flopping.probe.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVEN, ODD, NEITHER, INVARIANCE = "#0072b2", "#d55e00", "#c4cbd2", "#7d8590"
MOST_TICKS = 13
MOST_CURVES = 6
SMALLEST = 0.001
"""What is less is drawn here: rounding errors of an equivariant network would take all of the axis."""


def draw(report: Report, title: str) -> Figure:
    """Four panels: shares of directions and of variance by layer, all correlations, and errors by layer."""
    with style():
        figure, (counts, variances, spectrum, errors) = panels(4, 2.9, share=False)
        _shares(counts, report, "counts")
        counts.set(title="Directions", ylabel="share")
        _shares(variances, report, "variances")
        variances.set_title("Variance")
        _spectrum(spectrum, report)
        _errors(errors, report)
        handles, labels = counts.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return finished(figure)


def _shares(axes: Axes, report: Report, kind: str) -> None:
    """Stacked bars: even at the bottom, odd at the top."""
    found = [getattr(layer, kind) for layer in report.layers]
    places = range(len(found))
    below = [0.0] * len(found)
    looks = {"even": EVEN, "neither": NEITHER, "odd": ODD}
    words = {"even": "even", "neither": "not foretold by the mirror image", "odd": "odd"}
    for name, colour in looks.items():
        heights = [getattr(shares, name) for shares in found]
        axes.bar(places, heights, 0.8, bottom=below, color=colour, label=words[name])
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.axhline(0.5, color=INK, lw=0.8, ls=":")
    axes.set_ylim(0, 1)
    _layers(axes, report)


def _spectrum(axes: Axes, report: Report) -> None:
    """The correlations of a layer's directions, largest first; later layers are darker."""
    layers = report.layers
    step = -(-len(layers) // MOST_CURVES)
    shown = [layer for place, layer in enumerate(layers) if (len(layers) - 1 - place) % step == 0]
    for place, layer in enumerate(shown):
        depth = (place + 1) / len(shown)
        sizes = sorted((w for w, _ in layer.spectrum), reverse=True)
        # each direction is a step, so that a layer with few of them fills the width too
        edges = [place / len(sizes) for place in range(len(sizes) + 1)]
        colour = (0.75 * (1 - depth), 0.75 * (1 - depth), 0.75 * (1 - depth))
        axes.stairs(sizes, edges, baseline=None, color=colour, lw=1.3, label=layer.name)
    axes.set(title="Spectrum", xlim=(0, 1), ylim=(-1.05, 1.05), xlabel="share of directions")
    axes.set_ylabel("correlation with the mirror image")
    axes.legend(loc="lower left", fontsize=7, labelspacing=0.25, handlelength=1.4)


def _errors(axes: Axes, report: Report) -> None:
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "identity_error": ("A = I (invariance)", {"color": INVARIANCE, "marker": "^", "ls": "--"}),
        "involution_error": ("A A = I", {"color": EVEN, "marker": "s", "mfc": BACKGROUND}),
        "error": ("least squares", {"color": INK, "marker": "o"}),
    }
    for name, (words, look) in looks.items():
        values = [max(SMALLEST, getattr(layer, name)) for layer in report.layers]
        axes.plot(range(len(values)), values, label=words, ms=4, lw=1.2, clip_on=False, **look)
    logarithmic(axes.yaxis, (SMALLEST, 0.01, 0.1, 1.0), (SMALLEST, 10.0))
    axes.set(title="Error of A f", ylabel=f"share of variance (at least {SMALLEST:g})")
    axes.legend(loc="upper left", ncols=3, fontsize=7, columnspacing=1.0, handlelength=1.6)
    _layers(axes, report)


def _layers(axes: Axes, report: Report) -> None:
    """An axis of layers: by name if there are few, else by number."""
    number = len(report.layers)
    step = -(-number // MOST_TICKS)
    ticks = list(range(0, number, step))
    named = number <= 5 and all(len(layer.name) <= 10 for layer in report.layers)
    labels = [report.layers[place].name if named else str(place) for place in ticks]
    axes.set_xticks(ticks, labels)
    axes.set_xlim(-0.6, number - 0.4)
    axes.grid(False, axis="x")
    if not named:
        axes.set_xlabel(f"layer, from {report.layers[0].name} to {report.layers[-1].name}")
