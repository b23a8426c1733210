"""`flopping report`: what it prints, the folder it writes, the page in a real browser, and what it refuses."""

import json
import os
import re
import sys
from html import unescape
from pathlib import Path

import pytest
from click.testing import Result
from matplotlib.figure import Figure
from PIL import Image
from support.browser import Reader, brightness, browse, needs_browser, seen
from support.measurements import COSTS, equivariant, many, ordinary, own
from test_tables import BY_HAND
from typer.testing import CliRunner

from flopping.cost.records import append
from flopping.errors import UsageError
from flopping.lab.drawing import COLOURS
from flopping.lab.report import figures, report_folder, tables
from flopping.lab.report.comparison import FAMILIES, OTHERS, compare
from flopping.lab.report.report_folder import CAPTIONS, FILES, GENERATOR, PAGE, build, page, require_folder, write
from flopping_cli import app

PAIR = [ordinary(), equivariant()]
EVIL = "</caption><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    append(path, PAIR)
    return path


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting all networks takes seconds, and is tested elsewhere."""
    monkeypatch.setattr(figures, "paper_costs", lambda progress: COSTS)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures, where only their names matter."""
    monkeypatch.setattr(report_folder, "accuracy_against_flops", Figure)
    monkeypatch.setattr(report_folder, "flops_against_parameters", lambda costs: Figure())
    monkeypatch.setattr(report_folder, "render", lambda figure, form: f"<svg>{form}</svg>".encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything, with foreign text wherever a file can put it."""
    path = tmp_path_factory.mktemp("report")
    write(path, build([*many(), own(EVIL, "my_net.py:build", run="run-own", command=EVIL, problem=EVIL)], COSTS))
    return path


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / PAGE).read_text(encoding="utf-8")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def refusal(*arguments: str | Path) -> str:
    """The message in one line, without its frame."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_tables_are_printed_in_four_formats(file: Path) -> None:
    rows = compare(PAIR)
    assert "1.60 [1.50, 2.10]" in run(file).output
    assert run(file, "--format", "table").output == run(file).output
    assert run(file, "--format", "markdown").output == tables.markdown(rows)
    assert run(file, "--format", "latex").output == tables.latex(rows)
    for words in (["--format", "jsonl"], ["--json"]):
        lines = run(file, *words).output.splitlines()
        assert [json.loads(line) for line in lines] == [row.figures for row in rows]


def test_several_files_are_one_report_and_a_file_counts_once(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.jsonl"
    append(other, [ordinary(model="resmlp_24_224", paper="ResMLP-S24")])
    printed = run(file, other, file, "--json").output
    assert [json.loads(line)["paper"] for line in printed.splitlines()] == ["ResMLP-S24", "ViT-B", "E(ViT-B)"]


@pytest.mark.usefixtures("undrawn")
def test_a_page_is_built_and_built_again(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    assert str(out / PAGE) in run(file, "-o", out).output.replace("\n", "")
    first = {name: (out / name).read_bytes() for name in os.listdir(out)}
    assert sorted(first) == sorted(FILES)
    assert first["table.md"].decode() == tables.markdown(compare(PAIR))
    assert first["table.tex"].decode() == tables.latex(compare(PAIR))
    assert run(file, "-o", out).exit_code == 0
    assert {name: (out / name).read_bytes() for name in os.listdir(out)} == first
    (out / "mine.txt").write_text("mine")
    write(out, build([ordinary()], COSTS))  # what a report no longer has is removed
    assert set(os.listdir(out)) == {*FILES, "mine.txt"} - {"gain.svg", "gain.png"}
    assert "No speed-up was measured" in (out / PAGE).read_text()


def test_a_folder_below_a_file_is_refused_before_anything_is_counted(file: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(str(file))):
        require_folder(file / "site" / "page")


@pytest.mark.parametrize("name", [PAGE, "gain.png"])
@pytest.mark.usefixtures("undrawn")
def test_files_of_others_are_kept_unless_forced(file: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (out / name).write_text("<html>my own</html>")
    message = refusal(file, "-o", out)
    assert name in message
    assert "--force" in message
    assert os.listdir(out) == [name]
    assert (out / name).read_text() == "<html>my own</html>"
    assert run(file, "-o", out, "--force").exit_code == 0
    assert sorted(os.listdir(out)) == sorted(FILES)


def test_bad_arguments_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, out = tmp_path / "b.jsonl", tmp_path / "out"
    bad.write_text('{"a": 1}\n')
    monkeypatch.setattr(figures, "paper_costs", lambda progress: pytest.fail("counted for a page that is not made"))
    for arguments, words in (
        ([file, bad, "-o", out], "line 1"),
        ([tmp_path / "none.jsonl"], "No such file"),
        ([file, "--format", "latex", "-o", out], "--format latex"),
        ([file, "--format", "latex", "--json"], "--format latex"),
        ([file, "--force"], "--force"),
        ([file, "-o", file], "is a file"),
    ):
        assert words in refusal(*arguments)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'flopping[plot]'" in refusal(file, "-o", out)
    assert not out.exists()
    assert run(file).exit_code == 0  # tables need no matplotlib


# The page -----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_figure_of_the_table() -> None:
    (table,) = Reader(page(compare(PAIR), PAIR, {})).tables
    assert table[-1] == list(BY_HAND.values())
    assert table[0] == [*dict.fromkeys(name.removesuffix(" (paper)") for name in BY_HAND)]
    assert table[1] == ["paper" if "(paper)" in name else "ours" for name in list(BY_HAND)[1:]]


def test_the_page_is_well_formed_and_has_every_row(text: str) -> None:
    reader = Reader(text)
    assert reader.open == []
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert GENERATOR in text
    assert len(re.findall(r"<title>[^<]+</title>", text)) == 1
    assert len(re.findall(r"<caption>", text)) == len(reader.tables) == 4
    names = [value for _, name, value in reader.attributes if name == "id"]
    assert len(names) == len(set(names))
    targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert targets
    assert targets <= set(names)
    assert {f"figure-{name}" for name in CAPTIONS} <= set(names)
    labels = [value for tag, name, value in reader.attributes if (tag, name) == ("svg", "aria-label")]
    assert sorted(labels) == sorted(CAPTIONS.values())
    cells = [line[0].partition(" [")[0] for table in reader.tables for line in table]
    assert {row.name for row in compare(many())} <= set(cells)
    assert set(COLOURS) == {*FAMILIES, OTHERS}


def test_nothing_is_fetched(text: str, folder: Path) -> None:
    for _, name, value in Reader(text).attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert value.startswith("#") or (folder / value).is_file(), value
    assert not re.search(r"@import|url\((?!#)|<link|<iframe|<script", text)


def test_foreign_text_stays_text_and_notes_are_there(text: str) -> None:
    assert "<img" not in text
    assert "alert(2)&gt;" in text
    cells = [line[0] for line in Reader(text).tables[0]]
    assert f"{EVIL} [2]" in cells
    assert "<script>alert(1)</script>" in cells
    plain = unescape(re.sub(r"\s+", " ", text))
    for words in (
        "Testor 9000, 2 cores, 24 GiB, Linux 6.1",
        "flopping bench 'E(ViT-B)'",
        "2026-01-01T00:00:00Z",
        "E(ViT-H) has no times: out of memory",
        "had an IQR of 1.2% to 7.0%",
        "Only ratios within one run are comparable",
        "efficiency 0.50 to 1.00; 1 without times.",
    ):
        assert words in plain, words


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_all_of_it(folder: Path, tmp_path: Path, width: int) -> None:
    found = seen(folder / PAGE, tmp_path, width)
    assert found["width"] == width
    assert found["content"] <= width, "the page scrolls sideways"
    assert found["wide"] == []
    assert found["rows"] == 51 + 1 + 4 + 3 * 3  # networks and the names of their families
    assert (found["alerts"], found["images"], found["requests"], found["scripts"]) == (0, [], 0, 1)
    assert len(found["figures"]) == 3
    for left, across, high in found["figures"]:
        assert left >= 0
        assert across > 0.6 * width
        assert high > 0.25 * across
    assert all(across > 300 and high > 300 for _, across, high in found["tables"])
    own, *others = found["tables"]  # which has a name of 66 characters
    assert own[1] > others[0][1]
    assert width < 1000 or all(left + across <= width for left, across, _ in others), "a table is clipped"


@needs_browser
def test_light_and_dark_pages_have_their_colours(folder: Path, tmp_path: Path) -> None:
    dark = seen(folder / PAGE, tmp_path, 1000, "--blink-settings=preferredColorScheme=0")
    assert brightness(dark["background"]) < 40
    assert brightness(dark["colour"]) > 200
    shot = tmp_path / "page.png"
    browse(folder / PAGE, tmp_path, f"--screenshot={shot}", "--window-size=1200,1400")
    image = Image.open(shot).convert("RGB")
    painted = {f"#{r:02x}{g:02x}{b:02x}": number for number, (r, g, b) in image.getcolors(1 << 24)}
    assert painted["#fefefe"] > image.width * image.height / 2
    for colour in COLOURS.values():
        assert painted.get(colour, 0) > 50, colour
