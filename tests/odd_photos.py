"""Photos of every kind that people have, good, odd and broken, and what should come of each."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pictures import packed, picture
from PIL import Image, features

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
    return packed(held(number), kind, exif=orientation(number))


def animated(kind: str, **options: object) -> bytes:
    """The scene, and then it is dark."""
    return packed(scene(), kind, save_all=True, append_images=[Image.new("RGB", (WIDE, HIGH))], **options)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(size: tuple[int, int], *more: bytes) -> bytes:
    """The beginning of a grey PNG of any size, which may be much larger than its file."""
    header = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more)


def with_text(text: bytes) -> bytes:
    """A good PNG with a text that was compressed beside its pixels."""
    content = packed(scene())
    return content[:33] + chunk(b"zTXt", b"note\0\0" + zlib.compress(text)) + content[33:]


def damaged_exif() -> bytes:
    """A good JPEG with nonsense where the camera says how it was held."""
    content = packed(scene(), "jpeg", quality=100, subsampling=0)
    nonsense = b"Exif\0\0II*\0\xff\xff\xff\x7f" + bytes(range(50))
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(nonsense) + 2) + nonsense + content[2:]


def palette(**options: object) -> bytes:
    return packed(scene().quantize(8), **options)


def grey16(kind: str) -> bytes:
    return packed(Image.fromarray(np.asarray(scene().convert("L")).astype(np.uint16) * 257), kind)


def see_through(mode: str) -> bytes:
    """The scene with an alpha channel, half of it transparent."""
    image = scene().convert(mode)
    alpha = np.full((HIGH, WIDE), 255, np.uint8)
    alpha[:, ::2] = 0
    image.putalpha(Image.fromarray(alpha))
    return packed(image)


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
    "plain.jpg": good(lambda: packed(scene(), "jpeg", **JPEG)),
    "progressive.jpg": good(lambda: packed(scene(), "jpeg", progressive=True, **JPEG)),
    "grey.jpg": good(lambda: packed(scene().convert("L"), "jpeg", quality=100), "L"),
    "cmyk.jpg": good(lambda: packed(scene().convert("CMYK"), "jpeg", **JPEG)),
    **{f"turned-{n}.jpg": good(lambda n=n: packed(held(n), "jpeg", exif=orientation(n), **JPEG)) for n in range(1, 9)},
    "turned.png": good(lambda: turned(6, "png")),
    "turned.webp": good(lambda: packed(held(8), "webp", lossless=True, exif=orientation(8))),
    "turned.tiff": good(lambda: turned(5, "tiff")),
    "turned to nowhere.jpg": good(lambda: packed(scene(), "jpeg", exif=orientation(77), **JPEG)),
    "damaged exif.jpg": good(damaged_exif),
    "plain.png": good(lambda: packed(scene())),
    "palette.png": good(palette),
    "palette with a hole.png": good(lambda: palette(transparency=0)),
    "palette with alpha.png": good(lambda: palette(transparency=bytes([0, 128, 255]))),
    "16 bits.png": good(lambda: grey16("png"), "L"),
    "alpha.png": good(lambda: see_through("RGB")),
    "grey with alpha.png": good(lambda: see_through("L"), "L"),
    "one bit.png": good(lambda: packed(scene().convert("1")), "any"),
    "animated.png": good(lambda: animated("png")),
    "plain.webp": good(lambda: packed(scene(), "webp", lossless=True)),
    "animated.webp": good(lambda: animated("webp", lossless=True)),
    "animated.gif": good(lambda: animated("gif")),
    "plain.bmp": good(lambda: packed(scene(), "bmp")),
    "plain.ppm": good(lambda: packed(scene(), "ppm")),
    "pages.tiff": good(lambda: animated("tiff")),
    "16 bits.tiff": good(lambda: grey16("tiff"), "L"),
    "lab.tiff": good(lambda: packed(Image.new("LAB", (9, 9)), "tiff"), "any"),
    "plain.jp2": good(lambda: packed(scene(), "jpeg2000")),
    **({"plain.avif": good(lambda: packed(scene(), "avif", quality=100))} if features.check("avif") else {}),
    "really a png.jpg": good(lambda: packed(scene())),
    "no suffix": good(lambda: packed(scene())),
    "[red]markup [bold].png": good(lambda: packed(scene())),
    "two\nlines.png": good(lambda: packed(scene())),
    "--top.png": good(lambda: packed(scene())),
    os.fsdecode(b"latin-\xe9.png"): good(lambda: packed(scene())),
    "*.png": good(lambda: packed(scene())),
    "long note.png": good(lambda: with_text(b"a" * 100_000)),
    "one pixel.png": good(lambda: packed(Image.new("RGB", (1, 1))), "any"),
    "thin.png": good(lambda: packed(Image.new("RGB", (1, 2000))), "any"),
    "flat.png": good(lambda: packed(Image.new("L", (2000, 1))), "any"),
    "empty.jpg": bad(lambda: b"", "the file is empty"),
    "text.jpg": bad(lambda: b"this is a text", "no JPEG, PNG"),
    "noise.jpg": bad(lambda: np.random.default_rng(0).bytes(5000), "no JPEG, PNG"),
    "cut off.jpg": bad(lambda: packed(picture(0, size=(64, 64)), "jpeg")[:-900], "damaged: image file is truncated"),
    "cut off.png": bad(lambda: packed(scene())[:-60], "damaged: "),
    "cut off.webp": bad(lambda: packed(picture(0), "webp", lossless=True)[:-100], "damaged: "),
    "cut off.gif": bad(lambda: packed(scene(), "gif")[:-40], "damaged: "),
    "head only.jpg": bad(lambda: packed(scene(), "jpeg")[:20], "damaged: it begins like a JPEG image"),
    "head only.png": bad(lambda: png((5, 5)), "damaged: it begins like a PNG image"),
    "nothing wide.png": bad(lambda: png((0, 5), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")), "damaged: "),
    "broken pixels.png": bad(lambda: png((9, 9), chunk(b"IDAT", b"nonsense"), chunk(b"IEND", b"")), "damaged: "),
    "bomb.png": bad(
        lambda: png((50_000, 40_000), chunk(b"IDAT", zlib.compress(bytes(1000)))),
        "50000 x 40000 = 2,000,000,000 pixels are more than the limit of 89,478,485 (predict --max-pixels raises it",
    ),
    "just too large.png": bad(
        lambda: png((9460, 9460), chunk(b"IDAT", b"")), "89,491,600 pixels are more than the limit of 89,478,485"
    ),
    "endless note.png": bad(lambda: with_text(bytes(3_000_000)), "damaged: Decompressed data too large"),
    "floats.tiff": bad(lambda: packed(Image.fromarray(np.ones((9, 9), np.float32)), "tiff"), "mode F"),
    "phone.jpg": bad(lambda: b"\0\0\0\x18ftypheic" + bytes(50), "a HEIC photo, and no image of a kind that is read"),
    "page.jpg": bad(lambda: b"\n<!DOCTYPE html><html></html>", "a page of HTML"),
    "drawing.png": bad(lambda: b"<?xml version='1.0'?>\n<svg></svg>", "an SVG drawing"),
    "paper.png": bad(lambda: b"%PDF-1.7", "a PDF"),
    "program.png": bad(lambda: packed(scene(), "eps"), "PostScript"),
    "archive.jpg": bad(lambda: b"PK\x03\x04" + bytes(30), "an archive"),
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
