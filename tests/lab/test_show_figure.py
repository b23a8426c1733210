"""What `flopping show` draws."""

import numpy as np
import pytest
from support.views import FAMILIES, classifier, equivariant, network, ordinary, photo

from flopping.lab.show import RGB, capture_view, draw


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
    figure = draw(equivariant())
    axes = iter(figure.axes)
    panels = [panel for section in equivariant().sections for panel in section.panels]
    assert len(figure.axes) == 2 * len(panels) + 2
    for panel in panels:
        left, right = next(axes), next(axes)
        assert np.array_equal(left.images[0].get_array(), panel.image)
        assert np.array_equal(right.images[0].get_array(), panel.mirrored)
        boxes = [side.get_position() for side in (left, right)]
        assert boxes[0].x0 == pytest.approx(1 - boxes[1].x1)
        assert boxes[0].y0 == boxes[1].y0
    bars = [[bar.get_width() for bar in side.patches] for side in axes]
    assert bars[0] == pytest.approx(bars[1], abs=1e-5)


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
    figure = draw(capture_view(classifier(network(name), name), photo(), channels=1))
    text = " ".join(text.get_text() for text in figure.texts)
    assert "Strength of the features: mirrored" in text
    assert ("stages.1" if name == "convnext_flop_test" else "blocks.") in text
