"""Photos of every kind that people have, good, odd and broken, and what should come of each."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, features

from support.image_files import encode, make_image

WIDE, HIGH = 48, 32
TOLERANCE = 8
"""How far a colour may be off: JPEG is not exact."""
CORNERS = ((200, 40, 40), (40, 200, 40)), ((40, 40, 200), (220, 220, 220))


def scene() -> Image.Image:
    """Four colours, one in each corner: no turn and no mirror leaves it the same."""
    rows = [np.concatenate([np.full((HIGH // 2, WIDE // 2, 3), colour) for colour in row], axis=1) for row in CORNERS]
    return Image.fromarray(np.concatenate(rows).astype(np.uint8))


def held(number: int) -> Image.Image:
    """What a camera stores of the scene when it is held so: the inverse of what brings a photo upright."""
    turns = Image.Transpose
    stored = {
        1: None,
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_90,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_270,
    }[number]
    return scene() if stored is None else scene().transpose(stored)


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def turned(number: int, kind: str) -> bytes:
    return encode(held(number), kind, exif=orientation(number))


def animated(kind: str, **options: object) -> bytes:
    """The scene, and then it is dark."""
    return encode(scene(), kind, save_all=True, append_images=[Image.new("RGB", (WIDE, HIGH))], **options)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(size: tuple[int, int], *more: bytes) -> bytes:
    """The beginning of a grey PNG of any size, which may be much larger than its file."""
    header = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more)


def with_text(text: bytes) -> bytes:
    """A good PNG with a text that was compressed beside its pixels."""
    content = encode(scene())
    return content[:33] + chunk(b"zTXt", b"note\0\0" + zlib.compress(text)) + content[33:]


def damaged_exif() -> bytes:
    """A good JPEG with nonsense where the camera says how it was held."""
    content = encode(scene(), "jpeg", quality=100, subsampling=0)
    nonsense = b"Exif\0\0II*\0\xff\xff\xff\x7f" + bytes(range(50))
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(nonsense) + 2) + nonsense + content[2:]


def palette(**options: object) -> bytes:
    return encode(scene().quantize(8), **options)


def grey16(kind: str) -> bytes:
    return encode(Image.fromarray(np.asarray(scene().convert("L")).astype(np.uint16) * 257), kind)


def see_through(mode: str) -> bytes:
    """The scene with an alpha channel, half of it transparent."""
    image = scene().convert(mode)
    alpha = np.full((HIGH, WIDE), 255, np.uint8)
    alpha[:, ::2] = 0
    image.putalpha(Image.fromarray(alpha))
    return encode(image)


@dataclass(frozen=True)
class Odd:
    """A file, and what should come of it."""

    content: Callable[[], bytes]
    mode: str = ""
    """"RGB" or "L" if the scene comes out, "any" if something does."""
    reason: str = ""
    """A part of what is said of it, if nothing does."""


def good(content: Callable[[], bytes], mode: str = "RGB") -> Odd:
    return Odd(content, mode)


def bad(content: Callable[[], bytes], reason: str) -> Odd:
    return Odd(content, "", reason)


JPEG = {"quality": 100, "subsampling": 0}
ODD: dict[str, Odd] = {
    "plain.jpg": good(lambda: encode(scene(), "jpeg", **JPEG)),
    "progressive.jpg": good(lambda: encode(scene(), "jpeg", progressive=True, **JPEG)),
    "grey.jpg": good(lambda: encode(scene().convert("L"), "jpeg", quality=100), "L"),
    "cmyk.jpg": good(lambda: encode(scene().convert("CMYK"), "jpeg", **JPEG)),
    **{f"turned-{n}.jpg": good(lambda n=n: encode(held(n), "jpeg", exif=orientation(n), **JPEG)) for n in range(1, 9)},
    "turned.png": good(lambda: turned(6, "png")),
    "turned.webp": good(lambda: encode(held(8), "webp", lossless=True, exif=orientation(8))),
    "turned to nowhere.jpg": good(lambda: encode(scene(), "jpeg", exif=orientation(77), **JPEG)),
    "damaged exif.jpg": good(damaged_exif),
    "plain.png": good(lambda: encode(scene())),
    "palette with alpha.png": good(lambda: palette(transparency=bytes([0, 128, 255]))),
    "16 bits.png": good(lambda: grey16("png"), "L"),
    "alpha.png": good(lambda: see_through("RGB")),
    "grey with alpha.png": good(lambda: see_through("L"), "L"),
    "plain.webp": good(lambda: encode(scene(), "webp", lossless=True)),
    "animated.webp": good(lambda: animated("webp", lossless=True)),
    "animated.gif": good(lambda: animated("gif")),
    "pages.tiff": good(lambda: animated("tiff")),
    "plain.jp2": good(lambda: encode(scene(), "jpeg2000")),
    **({"plain.avif": good(lambda: encode(scene(), "avif", quality=100))} if features.check("avif") else {}),
    "really a png.jpg": good(lambda: encode(scene())),
    "no suffix": good(lambda: encode(scene())),
    "[red]markup [bold].png": good(lambda: encode(scene())),
    "two\nlines.png": good(lambda: encode(scene())),
    "--top.png": good(lambda: encode(scene())),
    os.fsdecode(b"latin-\xe9.png"): good(lambda: encode(scene())),
    "*.png": good(lambda: encode(scene())),
    "one pixel.png": good(lambda: encode(Image.new("RGB", (1, 1))), "any"),
    "thin.png": good(lambda: encode(Image.new("RGB", (1, 2000))), "any"),
    "empty.jpg": bad(lambda: b"", "the file is empty"),
    "text.jpg": bad(lambda: b"this is a text", "no JPEG, PNG"),
    "cut off.jpg": bad(lambda: encode(make_image(0, size=(64, 64)), "jpeg")[:-900], "damaged: image file is truncated"),
    "cut off.png": bad(lambda: encode(scene())[:-60], "damaged: "),
    "cut off.webp": bad(lambda: encode(make_image(0), "webp", lossless=True)[:-100], "damaged: "),
    "head only.jpg": bad(lambda: encode(scene(), "jpeg")[:20], "no JPEG, PNG"),
    "broken pixels.png": bad(lambda: png((9, 9), chunk(b"IDAT", b"nonsense"), chunk(b"IEND", b"")), "damaged: "),
    "bomb.png": bad(
        lambda: png((50_000, 40_000), chunk(b"IDAT", zlib.compress(bytes(1000)))),
        "50000 x 40000 = 2,000,000,000 pixels are more than the limit of 89,478,485 (predict --max-pixels raises it",
    ),
    "just too large.png": bad(
        lambda: png((9460, 9460), chunk(b"IDAT", b"")), "89,491,600 pixels are more than the limit of 89,478,485"
    ),
    "endless note.png": bad(lambda: with_text(bytes(3_000_000)), "damaged: Decompressed data too large"),
    "floats.tiff": bad(lambda: encode(Image.fromarray(np.ones((9, 9), np.float32)), "tiff"), "mode F"),
    "phone.jpg": bad(lambda: b"\0\0\0\x18ftypheic" + bytes(50), "a HEIC photo, and no image of a kind that is read"),
    "program.png": bad(lambda: encode(scene(), "eps"), "no JPEG, PNG"),
    "lfs.jpg": bad(lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "`git lfs pull`"),
}


def write_odd(folder: Path) -> dict[str, Path]:
    """All of them, as files of their names."""
    found = {}
    for name, odd in ODD.items():
        found[name] = folder / name
        found[name].write_bytes(odd.content())
    return found


def like_the_scene(image: Image.Image, odd: Odd) -> bool:
    """Whether it is the scene, looked at in the middles of its corners; of grey images all channels are the same."""
    if image.size != (WIDE, HIGH):
        return False
    seen, wanted = (np.asarray(one.convert("RGB"), dtype=int) for one in (image, scene().convert(odd.mode)))
    rows, columns = (HIGH // 4, 3 * HIGH // 4), (WIDE // 4, 3 * WIDE // 4)
    off = max(np.abs(seen[y, x] - wanted[y, x]).max() for y in rows for x in columns)
    return bool(off <= TOLERANCE)
