"""The page: its text, that it keeps foreign text as text, and what a real browser makes of it."""

import re
from html import unescape
from pathlib import Path

import pytest
from browser import Reader, brightness, browse, needs_browser, seen
from measurements import equivariant, many, ordinary, own
from PIL import Image
from test_figures import COSTS
from test_tables import BY_HAND

from flopping.bench.comparison import compare
from flopping.bench.drawing import COLOURS
from flopping.bench.page import CAPTIONS, GENERATOR, page
from flopping.bench.report import PAGE, build, write

EVIL = "</caption><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything, with foreign text wherever a file can put it."""
    path = tmp_path_factory.mktemp("report")
    write(path, build([*many(), own(EVIL, "my_net.py:build", run="run-own", command=EVIL, problem=EVIL)], COSTS))
    return path


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / PAGE).read_text(encoding="utf-8")


def test_the_table_has_every_figure() -> None:
    records = [ordinary(), equivariant()]
    (table,) = Reader(page(compare(records), records, {})).tables
    assert table[-1] == list(BY_HAND.values())
    assert table[0] == [*dict.fromkeys(name.removesuffix(" (paper)") for name in BY_HAND)]
    assert table[1] == ["paper" if "(paper)" in name else "ours" for name in list(BY_HAND)[1:]]


def test_the_page_is_well_formed_and_says_what_it_is(text: str) -> None:
    reader = Reader(text)
    assert reader.open == []
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert GENERATOR in text
    assert len(re.findall(r"<title>[^<]+</title>", text)) == 1
    assert len(re.findall(r"<caption>", text)) == len(reader.tables) == 4
    names = [value for _, name, value in reader.attributes if name == "id"]
    assert len(names) == len(set(names))
    targets = re.findall(r'(?:url\(#|href="#)([^")]+)', text)
    assert targets
    assert set(targets) <= set(names)
    for name in CAPTIONS:
        assert f'<figure id="figure-{name}">' in text
    labels = [value for tag, name, value in reader.attributes if (tag, name) == ("svg", "aria-label")]
    assert labels == list(CAPTIONS.values())


def test_nothing_is_fetched(text: str, folder: Path) -> None:
    for _, name, value in Reader(text).attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert value.startswith("#") or (folder / value).is_file(), value
    assert not re.search(r"@import|url\((?!#)|<link|<iframe|<script", text)


def test_notes_machines_commands_and_problems_are_there(text: str) -> None:
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


def test_foreign_text_stays_text(text: str) -> None:
    assert "<img" not in text
    assert "alert(2)&gt;" in text
    cells = [line[0] for line in Reader(text).tables[0]]
    assert f"{EVIL} [2]" in cells
    assert "<script>alert(1)</script>" in cells


def test_every_row_is_in_a_table(text: str) -> None:
    cells = [line[0].partition(" [")[0] for table in Reader(text).tables for line in table]
    for row in compare(many()):
        assert row.name in cells


# In a browser -------------------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize("width", [1400, 400])
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


@needs_browser
def test_dark_mode_is_dark(folder: Path, tmp_path: Path) -> None:
    light = seen(folder / PAGE, tmp_path, 1000)
    dark = seen(folder / PAGE, tmp_path, 1000, "--blink-settings=preferredColorScheme=0")
    assert brightness(light["background"]) > 240
    assert brightness(light["colour"]) < 60
    assert brightness(dark["background"]) < 40
    assert brightness(dark["colour"]) > 200


@needs_browser
def test_figures_are_painted_in_their_colours(folder: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    browse(folder / PAGE, tmp_path, f"--screenshot={shot}", "--window-size=1200,1400")
    image = Image.open(shot).convert("RGB")
    painted = {f"#{r:02x}{g:02x}{b:02x}": number for number, (r, g, b) in image.getcolors(1 << 24)}
    for colour in COLOURS.values():
        assert painted.get(colour, 0) > 50, colour
