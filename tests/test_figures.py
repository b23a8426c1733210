"""Points stand where they should, files are what they say and always the same; matplotlib stays optional."""

import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from measurements import RECORD, equivariant, many, ordinary, own

from flopping.bench import drawing, figures
from flopping.bench.comparison import compare
from flopping.bench.records import Record
from flopping.overview import Row as Cost
from flopping.paper import results

PAIR = [ordinary(), equivariant()]
COSTS = [
    Cost("ViT-B", "x", 86_600_000, 0, 17.68e9, 17e9, results()["ViT-B"]),
    Cost("E(ViT-B)", "e", 43_300_000, 0, 9.0e9, 8e9, results()["E(ViT-B)"]),
    Cost("H(ViT-B)", "h", 64_000_000, 0, 13.0e9, 12e9, results()["H(ViT-B)"]),
    Cost("E(ConvNeXt-S (iso.))", "c", 11_000_000, 0, 2.2e9, 2e9, results()["E(ConvNeXt-S (iso.))"]),
]


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
    assert points(found["ours E(ViT-B)"]) == [(43.3, 9.0)]
    assert points(found["paper E(ViT-B)"]) == [(43.3, 9.3)]
    assert points(found["ours H(ViT-B)"]) == [(64.0, 13.0)]
    assert points(found["paper H(ViT-B)"]) == [(65.0, 13.5)]
    assert found["paper E(ViT-B)"].get_markerfacecolor() == "none"
    assert found["ours E(ViT-B)"].get_markerfacecolor() != "none"
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ResMLP", "ViT", "ConvNeXt"]
    assert found["ours E(ConvNeXt-S (iso.))"].axes is figure.axes[2]
    assert [texts(axes) for axes in figure.axes] == [[], ["B"], []]
    assert {axes.get_xscale() for axes in figure.axes} == {axes.get_yscale() for axes in figure.axes} == {"log"}
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
    assert points(found["X ViT"]) == [(4.7, 80.4), (17.7, 83.1), (61.9, 84.2), (168.0, 84.6)]
    assert points(found["E ViT"]) == [(9.3, 82.2), (32.2, 83.4), (87.3, 84.4)]  # S did not converge
    assert points(found["H ViT"]) == [(13.5, 82.9), (47.0, 84.5), (127.6, 85.0)]
    assert points(found["I ViT"]) == [(13.5, 82.5), (47.0, 84.1), (127.6, 84.7)]
    assert points(found["E ResMLP"]) == [(1.6, 72.0), (3.1, 74.9), (11.7, 80.8), (31.7, 81.5)]
    assert sorted(found) == sorted(
        ["X ViT", "E ViT", "H ViT", "I ViT", "X ResMLP", "E ResMLP", "X ConvNeXt", "E ConvNeXt"]
    )
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
    assert axes.get_title(loc="left").replace("\n", " ") == (
        "Inference, compiled, float32, batch 8, cpu, 2 threads, Testor 9000"
    )
    assert figures.gain_against_flops(compare(PAIR)).axes[0].get_ylim()[0] < 1 < axes.get_ylim()[1]


def test_every_setting_has_a_panel_and_training_no_values_of_the_paper() -> None:
    figure = figures.gain_against_flops(compare(many()))
    assert [len(axes.containers) for axes in figure.axes] == [7, 6, 6, 6]
    drawn = [sum(str(line.get_label()).startswith("_paper") for line in axes.lines) for axes in figure.axes]
    assert drawn == [6, 6, 0, 6]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ResMLP", "ViT", "ConvNeXt", "others", "E(X)", "the paper's, A100", "FLOPs of X over those of E"]


@pytest.mark.parametrize(
    ("number", "grid"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3))]
)
def test_panels_fill_a_grid(number: int, grid: tuple[int, int]) -> None:
    settings = [replace(RECORD.setting, batch=1 + n) for n in range(number)]
    records = [replace(r, setting=setting) for setting in settings for r in PAIR]
    figure = figures.gain_against_flops(compare(records))
    assert len(figure.axes) == number
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == grid


def test_one_round_is_a_point_without_a_bar() -> None:
    figure = figures.gain_against_flops(compare([ordinary(seconds=(0.5,)), equivariant(seconds=(0.25,))]))
    point, caps, intervals = bars(figure.axes[0])["ours E(ViT-B)"].lines
    assert points(point) == [(18.0, 2.0)]
    assert not intervals
    assert not caps


def test_where_nothing_was_compared_there_is_no_figure() -> None:
    assert figures.gain_against_flops(compare([ordinary()])) is None
    assert figures.gain_against_flops(compare([ordinary(flops=None), equivariant()])) is None


def test_a_family_has_one_colour_everywhere() -> None:
    one = lines(figures.flops_against_parameters(COSTS))["ours E(ViT-B)"]
    two = lines(figures.accuracy_against_flops())["E ViT"]
    three = bars(figures.gain_against_flops(compare(PAIR)).axes[0])["ours E(ViT-B)"].lines[0]
    assert {to_hex(line.get_color()) for line in (one, two, three)} == {drawing.COLOURS["ViT"]}
    assert len(set(drawing.COLOURS.values())) == len(drawing.COLOURS)
    assert not {drawing.INK, drawing.GRID, drawing.BACKGROUND} & set(drawing.COLOURS.values())


def make(name: str) -> Figure:
    rows = compare([*PAIR, own("x"), own("$a$_{b}\\frac 中 <b>", "x", flops=9e9)])
    return {
        "flops": lambda: figures.flops_against_parameters(COSTS),
        "accuracy": figures.accuracy_against_flops,
        "gain": lambda: figures.gain_against_flops(rows),
    }[name]()


@pytest.mark.parametrize("name", ["flops", "accuracy", "gain"])
def test_files_are_what_they_say_and_the_same_each_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = make(name)
    png, svg = drawing.render(figure, "png"), drawing.render(figure, "svg")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20], "big") >= 1200  # wide enough for a page on a sharp screen
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in svg
    assert not any(text.get_parse_math() for text in figure.findobj(Text))  # dollars are dollars
    assert b"<text" not in svg  # letters are paths: no font is needed to show them
    assert drawing.render(figure, "svg") == svg
    # a user's own settings change nothing, and stay
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 31.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.labelpad", 40.0)  # one that we don't set
    again = make(name)
    assert drawing.render(again, "svg") == svg
    assert drawing.render(again, "png") == png
    assert matplotlib.rcParams["font.size"] == 31.0


def test_costs_of_the_paper_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "results", lambda: {"E(ResMLP-T12)": results()["E(ResMLP-T12)"]})
    steps: list[int] = []
    (found,) = figures.paper_costs(lambda: steps.append(1))
    assert (found.paper, found.name, steps) == ("E(ResMLP-T12)", "resmlp_flop_t12_224", [1])
    assert round(found.params / 1e6, 1) == 7.7


def test_a_missing_matplotlib_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'flopping\[plot\]'"):
        figures.accuracy_against_flops()


def test_nothing_imports_matplotlib_until_something_is_drawn() -> None:
    code = (
        "import sys, flopping_cli, flopping.bench.report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "flopping.bench.report.accuracy_against_flops()\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "records",
    [PAIR, [record for record in many() if record.setting == RECORD.setting], many()],
    ids=["pair", "one setting", "many"],
)
def test_all_of_the_legend_is_on_the_figure(records: list[Record]) -> None:
    """Of one panel, which is narrow, and of several."""
    figure = figures.gain_against_flops(compare(records))
    assert figure is not None
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
