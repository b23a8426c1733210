"""The drawing of docs/convolutions.md: how a 3 x 3 convolution folds its columns.

python tools/draw_fold.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
EVEN, ODD, INK = "#1b6fa8", "#b0306f", "#222"
FILL = {EVEN: "#cfe6f7", ODD: "#f6d3e4", INK: "#ffffff"}
SIZE = 860, 300


def box(x: int, y: int, width: int, height: int, lines: list[str], colour: str = INK) -> str:
    """A box with lines of text in its middle."""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{FILL[colour]}" stroke="#444"/>',
    ]
    top = y + height / 2 - 8 * (len(lines) - 1) + 5
    for i, line in enumerate(lines):
        parts.append(text(x + width / 2, top + 16 * i, line, INK))
    return "\n".join(parts)


def text(x: float, y: float, line: str, colour: str, size: int = 13) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="{colour}">{line}</text>'


def arrow(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.8" marker-end="url(#a)"/>'


def draw() -> str:
    """The whole drawing, as SVG."""
    width, height = SIZE
    minus = "&#8722;"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial,'
        ' sans-serif" role="img" aria-label="A 3 x 3 convolution whose columns are folded">',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#444"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(75, 30, "maps", INK, 14),
        text(290, 30, "columns of the window, folded", INK, 14),
        text(560, 30, "what is left", INK, 14),
        text(765, 30, "maps", INK, 14),
    ]
    for y, name, colour in ((60, "even", EVEN), (180, "odd", ODD)):
        parts.append(box(20, y, 110, 80, [f"{name} x", "C/2 channels"], colour))
        parts.append(box(200, y, 180, 40, ["x and left + right"], colour))
        other = ODD if colour == EVEN else EVEN
        parts.append(box(200, y + 44, 180, 40, [f"left {minus} right"], other))
        parts.append(arrow(130, y + 30, 196, y + 20, "#444"))
        parts.append(arrow(130, y + 50, 196, y + 64, "#444"))
        parts.append(box(480, y, 160, 80, ["3 x 1 convolution", "3 C/2 to C/2 channels"], colour))
        parts.append(box(710, y, 110, 80, [f"{name} y", "C/2 channels"], colour))
        parts.append(arrow(640, y + 40, 706, y + 40, colour))
    parts += [
        arrow(380, 80, 476, 92, EVEN),
        arrow(380, 124, 476, 200, ODD),
        arrow(380, 200, 476, 222, ODD),
        arrow(380, 244, 476, 128, EVEN),
        text(430, 290, "2 x (3 x 3C/2 x C/2) = 9 C&#178; / 2 multiply-adds per place: half of 9 C&#178;", INK),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    (folder / "fold.svg").write_text(draw(), encoding="utf-8")
