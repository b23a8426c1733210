"""Points stand where they should, files are what they say and always the same; matplotlib stays optional."""

import ast
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from support.measurements import COSTS, equivariant, many, ordinary, own

from flopping.cost.overview import Row as Cost
from flopping.lab import drawing
from flopping.lab.report import figures
from flopping.lab.report.comparison import compare
from flopping.models.paper import results

PAIR = [ordinary(), equivariant()]


def lines(figure: Figure) -> dict[str, Line2D]:
    """What was drawn with a name."""
    found = [line for axes in figure.axes for line in axes.lines]
    return {str(line.get_label())[1:]: line for line in found if str(line.get_label()).startswith("_")}


def points(line: Line2D) -> list[tuple[float, float]]:
    return [tuple(point) for point in line.get_xydata().tolist()]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def bars(axes: Axes) -> dict[str, ErrorbarContainer]:
    return {str(container.get_label())[1:]: container for container in axes.containers}


def test_costs_stand_at_their_counts_and_the_papers_around_them() -> None:
    figure = figures.flops_against_parameters(COSTS)
    found = lines(figure)
    assert {name: points(found[name]) for name in found if "B)" in name} == {
        "ours E(ViT-B)": [(43.3, 9.0)],
        "paper E(ViT-B)": [(43.3, 9.3)],
        "ours H(ViT-B)": [(64.0, 13.0)],
        "paper H(ViT-B)": [(65.0, 13.5)],
    }
    assert found["paper E(ViT-B)"].get_markerfacecolor() == "none"
    assert found["ours E(ViT-B)"].get_markerfacecolor() != "none"
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ResMLP", "ViT", "ConvNeXt"]
    assert found["ours E(ConvNeXt-S (iso.))"].axes is figure.axes[2]
    assert [texts(axes) for axes in figure.axes] == [[], ["B"], []]
    # from X to E, and no line where one of them is missing
    joining = [line for axes in figure.axes for line in axes.lines if len(line.get_xydata()) == 2]
    assert [points(line) for line in joining] == [[(86.6, 17.68), (43.3, 9.0)]]


def test_all_of_the_paper_is_inside_the_panels() -> None:
    papers = [Cost(r.name, r.name, int(r.params_m * 1e6), 0, r.flops_g * 1e9, 0, r) for r in results().values()]
    figure = figures.flops_against_parameters(papers)
    assert sum(label.startswith("ours") for label in lines(figure)) == len(papers) == 28
    for line in lines(figure).values():
        for x, y in points(line):
            assert line.axes.get_xlim()[0] < x < line.axes.get_xlim()[1]
            assert line.axes.get_ylim()[0] < y < line.axes.get_ylim()[1]


def test_accuracies_are_the_papers_joined_by_size() -> None:
    figure = figures.accuracy_against_flops()
    found = lines(figure)
    kinds = ["X ViT", "E ViT", "H ViT", "I ViT", "X ResMLP", "E ResMLP", "X ConvNeXt", "E ConvNeXt"]
    assert sorted(found) == sorted(kinds)
    assert points(found["X ViT"]) == [(4.7, 80.4), (17.7, 83.1), (61.9, 84.2), (168.0, 84.6)]
    assert points(found["E ViT"]) == [(9.3, 82.2), (32.2, 83.4), (87.3, 84.4)]  # S did not converge
    assert points(found["H ViT"]) == [(13.5, 82.9), (47.0, 84.5), (127.6, 85.0)]
    assert texts(figure.axes[2]) == ["S", "B", "L", "E(S)", "E(B)", "E(L)"]


def test_gains_stand_over_the_baselines_flops_with_their_intervals() -> None:
    figure = figures.gain_against_flops(compare(PAIR))
    (axes,) = figure.axes
    assert list(bars(axes)) == ["ours E(ViT-B)"]
    point, _, (interval,) = bars(axes)["ours E(ViT-B)"].lines
    assert points(point) == [(18.0, pytest.approx(1.6))]
    assert interval.get_segments()[0].tolist() == [[18.0, pytest.approx(1.5)], [18.0, pytest.approx(2.1)]]
    found = lines(figure)
    assert points(found["paper E(ViT-B)"]) == [(18.0, pytest.approx(3266 / 3088))]
    assert points(found["bound E(ViT-B)"]) == [(18.0, 2.0)]
    assert texts(axes) == ["B"]
    assert " ".join(axes.get_title(loc="left").split()) == (
        "Inference, compiled, float32, batch 8, cpu, 2 threads, Testor 9000"
    )
    assert axes.get_ylim()[0] < 1 < axes.get_ylim()[1]


def test_every_setting_has_a_panel_and_training_no_values_of_the_paper() -> None:
    figure = figures.gain_against_flops(compare(many()))
    assert [len(axes.containers) for axes in figure.axes] == [7, 6, 6, 6]
    drawn = [sum(str(line.get_label()).startswith("_paper") for line in axes.lines) for axes in figure.axes]
    assert drawn == [6, 6, 0, 6]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    for shown in (figure, figures.gain_against_flops(compare(PAIR))):  # wide and narrow: all of the legend is on it
        box = shown.legends[0].get_window_extent()
        assert shown.bbox.x0 <= box.x0 < box.x1 <= shown.bbox.x1
    assert legend == ["ResMLP", "ViT", "ConvNeXt", "others", "E(X)", "the paper's, A100", "FLOPs of X over those of E"]


def test_where_nothing_was_compared_there_is_no_figure() -> None:
    for records in ([ordinary()], [ordinary(flops=None), equivariant()]):
        assert figures.gain_against_flops(compare(records)) is None


def test_files_are_what_they_say_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compare([*PAIR, own("x"), own("$a$_{b}\\frac 中 <b>", "x", flops=9e9)])
    figure = figures.gain_against_flops(rows)
    assert figure is not None
    png, svg = drawing.render(figure, "png"), drawing.render(figure, "svg")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20], "big") >= 1200  # wide enough for a page on a sharp screen
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in svg
    assert not any(text.get_parse_math() for text in figure.findobj(Text))  # dollars are dollars
    assert b"<text" not in svg  # letters are paths: no font is needed to show them
    # a user's own settings change nothing, and stay
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 31.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.labelpad", 40.0)  # one that we don't set
    assert drawing.render(figures.gain_against_flops(rows), "svg") == svg
    assert matplotlib.rcParams["font.size"] == 31.0


def test_costs_of_the_paper_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "results", lambda: {"E(ResMLP-T12)": results()["E(ResMLP-T12)"]})
    steps: list[int] = []
    (found,) = figures.paper_costs(lambda: steps.append(1))
    assert (found.paper, found.name, steps) == ("E(ResMLP-T12)", "resmlp_flop_t12_224", [1])
    assert round(found.params / 1e6, 1) == 7.7


def test_matplotlib_is_imported_by_functions_only_and_pyplot_by_none() -> None:
    """So that it stays optional, and commands that draw nothing don't wait for it."""
    for path in Path(drawing.__file__).parents[1].rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                inside |= {id(each) for each in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and "matplotlib" in ast.unparse(node):
                assert id(node) in inside, f"{path}: {ast.unparse(node)}"
                assert "pyplot" not in ast.unparse(node)
