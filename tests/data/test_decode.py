"""Pictures of every kind arrive with 8 bits per channel and the right brightness."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError
from support.image_files import encode, make_image

from flopping.data.decode import convert_image, decode_image, mode_of

RAMP = np.linspace(0, 255, 64, dtype=np.uint8).reshape(8, 8)
"""From black to white, so that an image that was clipped or inverted shows."""


def ramp(mode: str) -> Image.Image:
    return Image.fromarray(RAMP).convert(mode)


def palette() -> bytes:
    image = ramp("P")
    image.putpalette([level for level in range(256) for _ in range(3)])
    return encode(image, "png", transparency=bytes([0, 128, 255]))


def sixteen(kind: str) -> bytes:
    return encode(Image.fromarray(RAMP.astype(np.uint16) * 257), kind)


RAMPS: dict[str, Callable[[], bytes]] = {
    "grey PNG": lambda: encode(ramp("L")),
    "PNG with alpha": lambda: encode(ramp("RGBA")),
    "palette with transparent colours": palette,
    "16-bit PNG": lambda: sixteen("png"),
    "16-bit TIFF": lambda: sixteen("tiff"),
    "32-bit TIFF of 16-bit values": lambda: encode(Image.fromarray(RAMP.astype(np.int32) * 257), "tiff"),
    "CMYK JPEG": lambda: encode(ramp("CMYK"), "jpeg", quality=100),
}


@pytest.mark.parametrize("chans", [1, 3])
@pytest.mark.parametrize("kind", RAMPS)
def test_a_ramp_stays_a_ramp(kind: str, chans: int) -> None:
    image = convert_image(Image.open(io.BytesIO(RAMPS[kind]())), mode_of(chans))
    pixels = np.asarray(image).reshape(8, 8, chans)
    assert np.abs(pixels.astype(int) - RAMP[:, :, None]).max() <= 3  # JPEG is not exact


@pytest.mark.parametrize("order", ["<", ">"])
def test_16_bits_lose_the_lower_8(order: str) -> None:
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]], dtype=f"{order}u2")
    assert np.asarray(convert_image(Image.fromarray(values), "L")).tolist() == [[0, 0, 1, 0x12, 0xFF]]


def test_a_turned_photo_is_not_turned_back() -> None:
    """timm trains on pixels as they are stored, and so do we."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = encode(make_image(0, size=(8, 4)), "jpeg", exif=exif)
    assert convert_image(Image.open(io.BytesIO(stored)), "RGB").size == (8, 4)


def test_pixels_without_a_range_are_refused() -> None:
    with pytest.raises(ValueError, match="mode F"):
        convert_image(Image.fromarray(np.ones((2, 2), np.float32)), "L")


@pytest.mark.parametrize("kind", ["eps", "ico", "tga", "pcx"])
def test_other_formats_are_refused(kind: str) -> None:
    """Pillow reads them. For EPS it starts another program, and it takes many a file for TGA."""
    content = encode(make_image(0, size=(16, 16)), kind)
    assert Image.open(io.BytesIO(content)).format == kind.upper()
    with pytest.raises(UnidentifiedImageError):
        decode_image(io.BytesIO(content))
