"""What `flopping show` draws: the picture, and the page in a real browser."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from support.browser import Reader, needs_browser, seen
from support.views import FAMILIES, classifier, equivariant, network, ordinary, photo

from flopping.lab.show import draw, look
from flopping.lab.show.output import render_page
from flopping.lab.show.view import RGB


def panels(figure: Figure) -> dict[str, object]:
    return {str(axes.get_label()): axes for axes in figure.axes}


def text_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts)


def warmth(pixels: RGB) -> np.ndarray:
    """Red minus blue: orange is above 0, blue below."""
    return pixels[..., 0].astype(int) - pixels[..., 2]


# what is painted


def test_even_maps_keep_their_colours_and_orange_becomes_blue_in_odd_ones() -> None:
    _, even, odd = equivariant().sections
    for panel in even.panels:
        assert panel.image is not None
        assert np.abs(panel.image[:, ::-1].astype(int) - panel.mirrored).max() <= 1
    for panel in odd.panels:
        assert panel.image is not None
        before, after = warmth(panel.image[:, ::-1]), warmth(panel.mirrored)
        strong = np.abs(before) > 60
        assert strong.any()
        assert (np.sign(before) == -np.sign(after))[strong].all()


def test_what_a_mirror_changes_in_ordinary_channels() -> None:
    _, channels, changes = ordinary().sections
    assert len(channels.panels) == len(changes.panels) == 2
    for panel in changes.panels:
        assert panel.image is None
        assert np.abs(warmth(panel.mirrored)).max() > 30


# the picture


def test_the_picture_is_laid_out_as_a_mirror_image() -> None:
    found = panels(draw(equivariant()))
    checked = 0
    for section in equivariant().sections:
        for panel in section.panels:
            left, right = (found[name] for name in panel.alt)
            for axes, pixels in ((left, panel.image), (right, panel.mirrored)):
                assert np.array_equal(axes.images[0].get_array(), pixels)  # type: ignore[attr-defined]
            boxes = [axes.get_position() for axes in (left, right)]  # type: ignore[attr-defined]
            assert boxes[0].x0 == pytest.approx(1 - boxes[1].x1)
            assert boxes[0].y0 == boxes[1].y0
            checked += 1
    assert checked == 8
    bars = ([bar.get_width() for bar in found[name].patches] for name in ("answer", "answer, mirrored"))  # type: ignore[attr-defined]
    assert next(bars) == pytest.approx(next(bars), abs=1e-5)


def test_texts_stay_inside_the_picture_and_apart() -> None:
    for view in (equivariant(), ordinary()):
        figure = draw(view)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
        for number, box in enumerate(boxes):
            assert 0 <= box.x0 <= box.x1 <= figure.bbox.width
            assert 0 <= box.y0 <= box.y1 <= figure.bbox.height
            for other in boxes[:number]:
                across = min(box.x1, other.x1) - max(box.x0, other.x0)
                assert not (across > 1 and min(box.y1, other.y1) - max(box.y0, other.y0) > 1)


@pytest.mark.parametrize("name", FAMILIES[1:])
def test_every_family_is_drawn(name: str) -> None:
    text = text_of(draw(look(classifier(network(name), name), photo(), channels=1)))
    assert "Strength of the features: mirrored" in text
    assert ("stage 1 (of 0 to 3)" if name == "convnext_flop_test" else "block ") in text


# the page

EVIL = "<script>alert(1)</script>\"'&.png"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page(equivariant(), EVIL), "utf-8")
    return path


def test_the_page_shows_what_the_picture_shows_and_needs_nothing_else(page: Path) -> None:
    text = page.read_text("utf-8")
    reader = Reader(text)
    assert reader.open == []
    assert EVIL not in text
    assert not [value for _, name, value in reader.attributes if name in ("href", "action", "srcset", "data")]
    assert not re.search(r"@import|url\(|<link|<iframe|<script|https?:", text)
    images = {}
    for source, alt in re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', text):
        with Image.open(io.BytesIO(base64.b64decode(source))) as image:
            images[alt] = np.asarray(image)
    shown = [panel for section in equivariant().sections for panel in section.panels]
    assert len(images) == 2 * len(shown)
    for panel in shown:
        for alt, pixels in zip(panel.alt, (panel.image, panel.mirrored), strict=True):
            assert np.array_equal(images[alt], pixels)
    (table,) = reader.tables
    assert table[0] == ["the image", "class", "its mirror image"]
    assert table[1:] == [[score.texts[0], score.label, score.texts[1]] for score in equivariant().scores]


@needs_browser
@pytest.mark.parametrize("width", [1200, 380])
def test_a_browser_shows_all_of_it(page: Path, tmp_path: Path, width: int) -> None:
    found = seen(page, tmp_path, width)
    assert found["width"] == width
    assert found["content"] <= width, "the page scrolls sideways"
    assert found["wide"] == []
    assert (found["alerts"], found["broken"], found["requests"], found["scripts"]) == (0, 0, 0, 1)
    assert len(found["images"]) == 16
    for left, across, high in found["images"]:
        assert left >= 0
        assert across == pytest.approx(high, rel=0.1)
        assert across > 100, "too small to see"
    for (left, across, _), (right, *_) in zip(found["images"][::2], found["images"][1::2], strict=True):
        assert left + across + right == pytest.approx(width, abs=20), "not laid out as a mirror image"
