"""idx files come back as they were, and broken ones are refused."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from idx_files import idx, packed, refused
from numpy.typing import NDArray

from flopping.training.fashion import (
    read_idx,
    write_idx,
)

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz"])
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
@example(shape=[1] * 8, seed=0)
def test_arrays_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, name: str, shape: list[int], seed: int
) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("idx") / name
    write_idx(path, array)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    again = read_idx(path)
    assert again.dtype == np.uint8
    assert again.shape == array.shape
    assert np.array_equal(again, array)
    assert again.flags.writeable


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "gzip"])
def test_the_content_says_whether_it_is_compressed(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    """Browsers unpack a .gz and leave its name."""
    (tmp_path / name).write_bytes(pack(idx(2, 3)))
    assert read_idx(str(tmp_path / name)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_large_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 2**20 + 1), dtype=np.uint8)
    for name in ("a", "a.gz"):
        write_idx(tmp_path / name, array)
        assert np.array_equal(read_idx(tmp_path / name), array)


def test_arrays_with_other_orders_in_memory_are_written_as_they_look(tmp_path: Path) -> None:
    turned = np.arange(24, dtype=np.uint8).reshape(4, 6).T
    for array in (turned, turned[::-1]):
        write_idx(tmp_path / "a", array)
        assert np.array_equal(read_idx(tmp_path / "a"), array)


def test_compressed_files_hold_neither_time_nor_name(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_idx(tmp_path / name, np.arange(9, dtype=np.uint8))
    content = (tmp_path / "a.gz").read_bytes()
    assert content == (tmp_path / "b.gz").read_bytes()
    assert content[3:8] == bytes(5)  # no flags, so no name; time 0


BROKEN = {
    "empty": (b"", "is empty; an idx file begins with 00 00 08 and the number of dimensions"),
    "three bytes": (b"\0\0\x08", "ends after the bytes 00 00 08; an idx file begins with 00 00 08 and"),
    "a picture": (b"\x89PNG\r\n", "begins with the bytes 89 50 4e 47; an idx file begins with"),
    "a page": (b"<html>not found</html>", "begins with the bytes 3c 68 74 6d; an idx file begins with"),
    "floats": (idx(1, content=b"abcd", kind=0x0D), "holds numbers of type 0d (float32); only unsigned bytes, type 08"),
    "no type": (idx(1, kind=0x2A), "holds numbers of type 2a; only unsigned bytes, type 08, are read"),
    "no dimensions": (idx(content=b"\1"), "has 0 dimensions; 1 to 8 are read"),
    "dimensions": (idx(*[1] * 9), "has 9 dimensions; 1 to 8 are read"),
    "half a header": (idx(2, 3)[:9], "ends within its header, which for 2 dimensions has 12 bytes, after 9"),
    "too long": (idx(2, 3) + b"\0", "announces 2 x 3 bytes, 6 in all, and holds more"),
    "absurd": (idx(60000, 28000, 28000, content=b""), "announces 60000 x 28000 x 28000 bytes; at most 1073741824 are"),
    "absurd and empty": (idx(0, 2**32 - 1, 2**32 - 1), "announces 0 x 4294967295 x 4294967295 bytes; at most"),
}


@pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    content, message = BROKEN[name]
    path = tmp_path / "a-ubyte"
    path.write_bytes(pack(content))
    assert refused(lambda: read_idx(path)).startswith(f"{str(path)!r} {message}")


WHOLE = packed(idx(10, 20, content=bytes(np.random.default_rng(0).integers(0, 256, 200, dtype=np.uint8))))
BROKEN_FILES = {
    "short": (idx(2, 3)[:-1], "announces 2 x 3 bytes, 6 in all, and can't hold more than 5"),
    "short inside": (packed(idx(2, 3)[:-1]), "announces 2 x 3 bytes, 6 in all, and holds 5"),
    "a promise": (
        idx(30000, 30000, content=b"12345678"),
        "announces 30000 x 30000 bytes, 900000000 in all, and can't hold more than 8",
    ),
    "cut off": (WHOLE[:-40], f"is cut off: its compressed data goes on after its {len(WHOLE) - 40} bytes"),
    "without its sum": (WHOLE[:-8], f"is cut off: its compressed data goes on after its {len(WHOLE) - 8} bytes"),
    "only a start": (WHOLE[:2], "is cut off: its compressed data goes on after its 2 bytes"),
    "another sum": (WHOLE[:-8] + b"!" + WHOLE[-7:], "is damaged: its compressed data can't be unpacked (CRC check"),
    "a wrong byte": (WHOLE[:10] + b"\xff" + WHOLE[11:], "is damaged: its compressed data can't be unpacked (Error"),
    "a tail": (WHOLE + b"tail", "is damaged: its compressed data can't be unpacked (Not a gzipped file (b'ta'))"),
    "two in one": (WHOLE + packed(b"\0"), "announces 10 x 20 bytes, 200 in all, and holds more"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_files_cut_off_damaged_or_continued_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BROKEN_FILES[name]
    path = tmp_path / "a-ubyte.gz"
    path.write_bytes(content)
    assert refused(lambda: read_idx(path)).startswith(f"{str(path)!r} {message}")


@pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "gzip"])
def test_no_memory_is_taken_for_what_a_file_can_not_hold(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a"
    path.write_bytes(pack(idx(30000, 30000, content=bytes(1000))))
    tracemalloc.start()
    try:
        assert "900000000 in all, and can't hold more than" in refused(lambda: read_idx(path))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_best_compression_there_is_can_be_read(tmp_path: Path) -> None:
    """What compressed files can hold isn't underestimated."""
    write_idx(tmp_path / "a.gz", np.zeros(10**7, dtype=np.uint8))
    assert (tmp_path / "a.gz").stat().st_size < 10**7 / 1000
    assert not read_idx(tmp_path / "a.gz").any()


@given(
    start=st.sampled_from([b"", b"\0\0\x08", b"\0\0\x08\1\0\0\0"]), content=st.binary(max_size=60), pack=st.booleans()
)
@example(start=b"\0\0\x08\1\0\0\0", content=b"\2ab", pack=True)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, content: bytes, pack: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    content = start + content
    path.write_bytes(packed(content) if pack else content)
    try:
        array = read_idx(path)
    except ValueError as error:
        message = str(error)
    else:
        assert content == idx(*array.shape, content=array.tobytes())
        return
    assert message.startswith(repr(str(path)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refused(lambda: read_idx(tmp_path / "a")) == f"no file {str(tmp_path / 'a')!r}"
    assert refused(lambda: read_idx(tmp_path)) == f"no file {str(tmp_path)!r}"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "has unsigned bytes (uint8), got float64"),
        (np.zeros((), np.uint8), "has 1 to 8 dimensions, got 0"),
        (np.zeros([1] * 9, np.uint8), "has 1 to 8 dimensions, got 9"),
        (np.broadcast_to(np.uint8(0), (2**16, 2**16)), "has at most 1073741824 bytes, got 65536 x 65536"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, array: NDArray[np.uint8], message: str) -> None:
    assert refused(lambda: write_idx(tmp_path / "a", array)) == f"an idx file of ours {message}"
    assert not any(tmp_path.iterdir())
