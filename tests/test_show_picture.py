"""What `flopping show` draws: the picture, and the page in a real browser."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from browser import Reader, brightness, needs_browser, seen
from matplotlib.figure import Figure
from PIL import Image
from views import FAMILIES, classifier, equivariant, network, ordinary, photo

from flopping.show.figure import diverging, draw, png
from flopping.show.page import page
from flopping.show.view import look

# The picture --------------------------------------------------------------------------------------------------------


def panels(figure: Figure) -> dict[str, object]:
    return {str(axes.get_label()): axes for axes in figure.axes}


def text_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts)


def test_both_sides_of_a_channel_have_the_same_colours() -> None:
    found = panels(draw(equivariant()))
    checked = 0
    for row in equivariant().rows:
        for pair in row.pairs:
            left, right = (found[f"{row.kind} {pair.name}{side}"] for side in ("", ", mirrored"))
            (a,), (b,) = left.images, right.images
            assert a.get_clim() == b.get_clim()
            assert a.cmap.name == b.cmap.name
            assert np.array_equal(a.get_array(), pair.image)
            assert np.array_equal(b.get_array(), pair.mirrored)
            low, high = a.get_clim()
            assert high > low
            if row.kind == "odd":
                assert low == -high
                assert a.cmap.name == diverging().name
            boxes = left.get_position(), right.get_position()
            assert boxes[0].x0 == pytest.approx(1 - boxes[1].x1)  # a mirror image of the other
            assert boxes[0].y0 == boxes[1].y0
            checked += 1
    assert checked == 6


def test_colours_of_odd_maps_part_at_white() -> None:
    colours = diverging()
    assert colours(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    below, above = colours(0.25), colours(0.75)
    assert below[2] > below[0] + 0.3
    assert above[0] > above[2] + 0.3


def test_the_picture_of_an_equivariant_network() -> None:
    figure = draw(equivariant())
    found = panels(figure)
    for name in ("image", "image, mirrored", "focus", "focus, mirrored", "answers", "answers, mirrored"):
        assert name in found
    image, mirrored = (np.asarray(found[name].images[0].get_array()) for name in ("image", "image, mirrored"))
    assert np.array_equal(image, mirrored[:, ::-1])
    text = text_of(figure)
    for words in (
        "Even channels: mirrored",
        "orange becomes blue",
        "untrained",
        "The answer is the same",
        "class token",
    ):
        assert words in text
    left, right = ([bar.get_width() for bar in found[name].patches] for name in ("answers", "answers, mirrored"))
    assert left == pytest.approx(right, abs=1e-5)


def test_the_picture_of_an_ordinary_network_shows_what_differs() -> None:
    figure = draw(ordinary())
    found = panels(figure)
    (row,) = ordinary().rows
    for pair in row.pairs:
        change = found[f"change of {pair.name}"].images[0]
        assert np.allclose(change.get_array(), pair.mirrored - pair.image[:, ::-1])
        assert np.abs(change.get_array()).max() > 0.05 * (pair.limits[1] - pair.limits[0])
        assert change.get_clim()[0] == -change.get_clim()[1]
    text = text_of(figure)
    assert "Channels: not mirrored" in text
    assert "ordinary" in text
    assert "untrained" not in text  # nobody knows


def test_texts_stay_inside_the_picture_and_apart() -> None:
    for view in (equivariant(), ordinary()):
        figure = draw(view)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.texts]
        width, height = figure.bbox.width, figure.bbox.height
        for number, box in enumerate(boxes):
            assert box.x0 >= 0
            assert box.x1 <= width
            assert box.y0 >= 0
            assert box.y1 <= height
            for other in boxes[:number]:
                assert not (
                    min(box.x1, other.x1) - max(box.x0, other.x0) > 1 < min(box.y1, other.y1) - max(box.y0, other.y0)
                )


def test_the_same_view_gives_the_same_bytes() -> None:
    assert png(equivariant()) == png(equivariant())
    assert page(equivariant(), "a") == page(equivariant(), "a")


@pytest.mark.parametrize("name", FAMILIES[1:])
def test_every_family_is_drawn(name: str) -> None:
    view = look(classifier(network(name), name), photo(), channels=1)
    assert not view.is_attention
    text = text_of(draw(view))
    assert "Strength of the features: mirrored" in text
    assert ("stage 1 (of 0 to 3)" if name == "convnext_flop_test" else "block ") in text
    with Image.open(io.BytesIO(png(view))) as drawn:
        assert drawn.width == 1800


# The page -----------------------------------------------------------------------------------------------------------

EVIL = "<script>alert(1)</script>\"'&.png"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(equivariant(), EVIL), "utf-8")
    return path


def test_the_page_needs_nothing_else(written: Path) -> None:
    text = written.read_text("utf-8")
    reader = Reader(text)
    assert reader.open == []
    images = [value for tag, name, value in reader.attributes if (tag, name) == ("img", "src")]
    assert len(images) == 4 + 2 * 3 * 2
    for image in images:
        kind, _, content = image.partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as shown:
            assert shown.mode == "RGB"
    assert not [value for _, name, value in reader.attributes if name in ("href", "action", "srcset", "data")]
    assert not re.search(r"@import|url\(|<link|<iframe|<script|https?:", text)
    alts = [value for tag, name, value in reader.attributes if (tag, name) == ("img", "alt")]
    assert len(alts) == len(set(alts)) == len(images)
    assert all(len(alt) > 8 for alt in alts)
    assert EVIL not in text


def test_the_page_says_what_the_picture_says(written: Path) -> None:
    reader = Reader(written.read_text("utf-8"))
    (table,) = reader.tables
    assert table[0] == ["the image", "class", "its mirror image"]
    assert [line[1] for line in table[1:]] == [score.label for score in equivariant().scores]
    assert all(line[0] == line[2] for line in table[1:])


def test_colours_of_the_page_are_those_of_the_picture(written: Path) -> None:
    images = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="Map of odd', written.read_text("utf-8"))
    left, right = (np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))).astype(int) for content in images[:2])
    pair = equivariant().rows[1].pairs[0]
    expected = diverging()((pair.image / pair.symmetric_limits[1] + 1) / 2)[..., :3] * 255
    assert np.abs(left - expected).max() <= 1
    strong = np.abs(pair.image) > 0.3 * pair.symmetric_limits[1]
    warm = (left[..., 0] > left[..., 2])[strong]
    assert ((right[:, ::-1][..., 0] > right[:, ::-1][..., 2])[strong] == ~warm).all()  # orange becomes blue


@needs_browser
@pytest.mark.parametrize("width", [1200, 380])
def test_a_browser_shows_all_of_it(written: Path, tmp_path: Path, width: int) -> None:
    found = seen(written, tmp_path, width)
    assert found["width"] == width
    assert found["content"] <= width, "the page scrolls sideways"
    assert found["wide"] == []
    assert (found["alerts"], found["broken"], found["requests"], found["scripts"]) == (0, 0, 0, 1)
    assert len(found["images"]) == 16
    for left, across, high in found["images"]:
        assert left >= 0
        assert across == pytest.approx(high, rel=0.1)
        assert across > 100, "too small to see"
    pairs = list(zip(found["images"][::2], found["images"][1::2], strict=True))
    for (left, across, _), (right, *_) in pairs:
        assert left + across + right == pytest.approx(width, abs=20), "not laid out as a mirror image"


@needs_browser
def test_dark_mode_is_dark(written: Path, tmp_path: Path) -> None:
    dark = seen(written, tmp_path, 800, "--blink-settings=preferredColorScheme=0")
    assert brightness(dark["background"]) < 40
    assert brightness(dark["colour"]) > 200
