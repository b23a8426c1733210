"""Pictures of every kind arrive with 8 bits per channel and the right brightness."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from pictures import packed, picture
from PIL import Image

from flopping.training.pixels import as_pixels, mode_of

RAMP = np.linspace(0, 255, 64, dtype=np.uint8).reshape(8, 8)
"""From black to white, so that an image that was clipped or inverted shows."""


def ramp(mode: str) -> Image.Image:
    return Image.fromarray(RAMP).convert(mode)


def palette(transparency: object) -> bytes:
    image = ramp("P")
    image.putpalette([level for level in range(256) for _ in range(3)])
    return packed(image, "png", transparency=transparency)


def sixteen(kind: str) -> bytes:
    return packed(Image.fromarray(RAMP.astype(np.uint16) * 257), kind)


RAMPS: dict[str, Callable[[], bytes]] = {
    "grey PNG": lambda: packed(ramp("L")),
    "colour PNG": lambda: packed(ramp("RGB")),
    "PNG with alpha": lambda: packed(ramp("RGBA")),
    "grey PNG with alpha": lambda: packed(ramp("LA")),
    "palette": lambda: packed(ramp("P")),
    "palette with a transparent colour": lambda: palette(3),
    "palette with transparent colours": lambda: palette(bytes([0, 128, 255])),
    "16-bit PNG": lambda: sixteen("png"),
    "16-bit TIFF": lambda: sixteen("tiff"),
    "32-bit TIFF of 16-bit values": lambda: packed(Image.fromarray(RAMP.astype(np.int32) * 257), "tiff"),
    "BMP": lambda: packed(ramp("RGB"), "bmp"),
    "GIF": lambda: packed(ramp("L"), "gif"),
    "animated GIF": lambda: packed(ramp("L"), "gif", save_all=True, append_images=[picture(0, "L", (8, 8))]),
    "WebP": lambda: packed(ramp("RGB"), "webp", lossless=True),
    "PGM": lambda: packed(ramp("L"), "ppm"),
    "JPEG": lambda: packed(ramp("RGB"), "jpeg", quality=100),
    "grey JPEG": lambda: packed(ramp("L"), "jpeg", quality=100),
    "CMYK JPEG": lambda: packed(ramp("CMYK"), "jpeg", quality=100),
}


@pytest.mark.parametrize("chans", [1, 3])
@pytest.mark.parametrize("kind", RAMPS)
def test_a_ramp_stays_a_ramp(kind: str, chans: int) -> None:
    image = as_pixels(Image.open(io.BytesIO(RAMPS[kind]())), mode_of(chans))
    pixels = np.asarray(image).reshape(8, 8, chans)
    assert np.abs(pixels.astype(int) - RAMP[:, :, None]).max() <= 3  # JPEG is not exact


@pytest.mark.parametrize("order", ["<", ">"])
def test_16_bits_lose_the_lower_8(order: str) -> None:
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]], dtype=f"{order}u2")
    assert np.asarray(as_pixels(Image.fromarray(values), "L")).tolist() == [[0, 0, 1, 0x12, 0xFF]]


def test_black_and_white() -> None:
    assert np.asarray(as_pixels(ramp("1"), "L")).max() == 255


def test_a_turned_photo_is_not_turned_back() -> None:
    """timm trains on pixels as they are stored, and so do we."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = packed(picture(0, size=(8, 4)), "jpeg", exif=exif)
    assert as_pixels(Image.open(io.BytesIO(stored)), "RGB").size == (8, 4)


def test_pixels_without_a_range_are_refused() -> None:
    with pytest.raises(ValueError, match="mode F"):
        as_pixels(Image.fromarray(np.ones((2, 2), np.float32)), "L")
