"""`flopping report`: what it prints, the page and the figure that it writes, and what it refuses."""

import json
import os
import re
import sys
from pathlib import Path

import matplotlib
import pytest
from click.testing import Result
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from support.measurements import equivariant, many, ordinary, own
from typer.testing import CliRunner

from flopping.cost.records import append
from flopping.lab.drawing import COLOURS
from flopping.lab.report import tables
from flopping.lab.report.comparison import FAMILIES, OTHERS, compare
from flopping.lab.report.page import draw, write_page
from flopping_cli import app

PAIR = [ordinary(), equivariant()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    append(path, PAIR)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def refusal(*arguments: str | Path) -> str:
    """The message in one line, without its frame."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_tables_are_printed_for_people_and_for_machines(file: Path) -> None:
    assert "1.60 [1.50, 2.10]" in run(file).output
    lines = run(file, "--json").output.splitlines()
    assert [json.loads(line) for line in lines] == [row.figures for row in compare(PAIR)]


def test_several_files_are_one_report_and_a_file_counts_once(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.jsonl"
    append(other, [ordinary(model="resmlp_24_224", paper="ResMLP-S24")])
    printed = run(file, other, file, "--json").output
    assert [json.loads(line)["paper"] for line in printed.splitlines()] == ["ResMLP-S24", "ViT-B", "E(ViT-B)"]


def test_a_page_has_the_tables_and_its_figure_and_is_replaced_only_by_force(file: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "all.md", tmp_path / "all.png"
    assert run(file, "-o", page).exit_code == 0
    first = page.read_bytes(), picture.read_bytes()
    assert (
        first[0].decode()
        == f"![Speed-up over the FLOPs of the ordinary network](all.png)\n\n{tables.markdown(compare(PAIR))}"
    )
    assert first[1].startswith(b"\x89PNG\r\n\x1a\n")
    for there in (page, picture):
        aside = there.rename(tmp_path / "aside")
        assert "--force" in refusal(file, "-o", page)
        aside.rename(there)
    assert run(file, "-o", page, "--force").exit_code == 0
    assert (page.read_bytes(), picture.read_bytes()) == first
    write_page(compare([ordinary()]), tmp_path / "one.md")
    assert not (tmp_path / "one.png").exists(), "nothing was compared"


def test_bad_arguments_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, out = tmp_path / "b.jsonl", tmp_path / "out.md"
    bad.write_text('{"a": 1}\n')
    for arguments, words in (
        ([file, bad, "-o", out], "line 1"),
        ([tmp_path / "none.jsonl"], "No such file"),
        ([file, "--json", "-o", out], "--json"),
        ([file, "--force"], "--force"),
        ([file, "-o", tmp_path / "report"], "ends with .md"),
        ([file, "-o", file / "out.md"], "no folder"),
    ):
        assert words in refusal(*arguments)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'flopping[plot]'" in refusal(file, "-o", out)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.jsonl"]
    assert run(file).exit_code == 0  # tables need no matplotlib


# The figure ---------------------------------------------------------------------------------------------------------


def lines(figure: Figure) -> dict[str, Line2D]:
    """What was drawn with a name."""
    found = [line for axes in figure.axes for line in axes.lines]
    return {str(line.get_label())[1:]: line for line in found if str(line.get_label()).startswith("_")}


def points(line: Line2D) -> list[tuple[float, float]]:
    return [tuple(point) for point in line.get_xydata().tolist()]


def bars(figure: Figure) -> dict[str, ErrorbarContainer]:
    return {str(container.get_label())[1:]: container for axes in figure.axes for container in axes.containers}


def test_speedups_stand_over_the_baselines_flops_with_their_intervals() -> None:
    figure = draw(compare(PAIR))
    (axes,) = figure.axes
    assert list(bars(figure)) == ["ours E(ViT-B)"]
    point, _, (interval,) = bars(figure)["ours E(ViT-B)"].lines
    assert points(point) == [(18.0, pytest.approx(1.6))]
    assert interval.get_segments()[0].tolist() == [[18.0, pytest.approx(1.5)], [18.0, pytest.approx(2.1)]]
    found = lines(figure)
    assert points(found["paper E(ViT-B)"]) == [(18.0, pytest.approx(3266 / 3088))]
    assert points(found["bound E(ViT-B)"]) == [(18.0, 2.0)]
    assert [text.get_text() for text in axes.texts] == ["B"]
    title = " ".join(axes.get_title(loc="left").split())
    assert title == "Inference, compiled, float32, batch 8, cpu, 2 threads, Testor 9000"
    assert axes.get_ylim()[0] < 1 < axes.get_ylim()[1]
    assert draw(compare([ordinary(flops=None), equivariant()])) is None


def test_every_setting_has_a_panel_and_training_no_values_of_the_paper() -> None:
    figure = draw(compare(many()))
    assert [len(axes.containers) for axes in figure.axes] == [7, 6, 6, 6]
    drawn = [sum(str(line.get_label()).startswith("_paper") for line in axes.lines) for axes in figure.axes]
    assert drawn == [6, 6, 0, 6]
    assert set(COLOURS) == {*FAMILIES, "ResNet", OTHERS}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ResMLP", "ViT", "ConvNeXt", "others", "E(X)", "the paper's, A100", "FLOPs of X over those of E"]
    for shown in (figure, draw(compare(PAIR))):  # wide and narrow: all of the legend is on it
        box = shown.legends[0].get_window_extent()
        assert shown.bbox.x0 <= box.x0 < box.x1 <= shown.bbox.x1


def test_the_users_settings_change_nothing_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compare([*PAIR, own("x"), own("$a$_{b}\\frac 中 <b>", "x", flops=9e9)])
    assert not any(text.get_parse_math() for text in draw(rows).findobj(Text))  # dollars are dollars
    write_page(rows, tmp_path / "a.md")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 31.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.labelpad", 40.0)  # one that we don't set
    write_page(rows, tmp_path / "b.md")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert matplotlib.rcParams["font.size"] == 31.0


def test_matplotlib_is_imported_by_functions_only() -> None:
    """So that it stays optional, and commands that draw nothing don't wait for it."""
    for path in Path(tables.__file__).parents[2].rglob("*.py"):
        text = re.sub(r"if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"^(?:import|from) matplotlib|pyplot", text, re.MULTILINE), path
