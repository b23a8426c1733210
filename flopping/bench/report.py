"""A report as a folder of files: the page, the tables and the figures, each written whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flopping.bench.comparison import compare
from flopping.bench.drawing import render
from flopping.bench.figures import accuracy_against_flops, flops_against_parameters, gain_against_flops
from flopping.bench.page import CAPTIONS, GENERATOR, page
from flopping.bench.records import Record
from flopping.bench.tables import latex, markdown
from flopping.overview import Row as Cost
from flopping.whole import whole

PAGE = "index.html"
FIGURES = tuple(f"{name}.{form}" for name in CAPTIONS for form in ("svg", "png"))
FILES = (PAGE, "table.md", "table.tex", *FIGURES)
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


def require_folder(folder: Path, force: bool = False) -> None:
    """Refuse a folder in which files that aren't a report's would be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file: a report is a folder")
    index = folder / PAGE
    if index.is_file() and GENERATOR.encode() in index.read_bytes():
        return
    standing = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if standing and not force:
        raise ValueError(
            f"{str(folder)!r} has {', '.join(standing)}, not of a report: --force replaces, or name another"
        )


def write(folder: Path, files: Mapping[str, bytes], force: bool = False) -> None:
    """Put the files there, the page last. What an earlier report left and this one lacks is removed."""
    require_folder(folder, force)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: name == PAGE):
        with whole(folder / name) as place:
            place.write_bytes(files[name])
    for name in set(FILES) - set(files):
        (folder / name).unlink(missing_ok=True)
