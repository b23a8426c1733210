"""Which photos are meant, and what comes of each of them, however odd."""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from PIL import Image
from support.image_files import encode
from support.odd_photos import ODD, like_the_scene, scene, turned, write_odd

from flopping.data.decode import FORMATS, convert_image
from flopping.data.folders import FolderDataset, UnlabelledFolder
from flopping.data.photos import MAX_PIXELS, Failed, Photo, UnreadableError, find_photos, read_photo, silence_pillow
from flopping.errors import UsageError

NOBODY = 65534


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_odd(tmp_path_factory.mktemp("odd"))


def names(*arguments: str | Path, stdin: bytes | None = None) -> list[str]:
    """The photos that are meant; nothing else is found."""
    found = list(find_photos(arguments, None if stdin is None else io.BytesIO(stdin)))
    assert all(isinstance(one, Photo) for one in found), found
    return [one.name for one in found]


def failures(*arguments: str | Path, stdin: bytes | None = None) -> dict[str, str]:
    found = find_photos(arguments, None if stdin is None else io.BytesIO(stdin))
    return {one.name: one.reason for one in found if isinstance(one, Failed)}


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Permissions mean nothing to root."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encode(scene(), "png"))
    return root


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_each_odd_photo(name: str, files: dict[str, Path]) -> None:
    odd = ODD[name]
    if odd.mode:
        with silence_pillow():
            image = read_photo(Photo(str(files[name])))
        if odd.mode != "any":
            assert like_the_scene(convert_image(image, odd.mode), odd)
    else:
        with pytest.raises(ValueError, match=re.escape(odd.reason)) as refused, silence_pillow():
            convert_image(read_photo(Photo(str(files[name]))), "RGB")
        assert name not in str(refused.value)  # the name stands before the reason
        assert "0x" not in str(refused.value)  # nor has anybody's memory an address


def test_the_limit_may_be_raised_and_lowered(tmp_path: Path) -> None:
    """Larger than Pillow would read without a warning, and it is read without one."""
    path = tmp_path / "large.png"
    size = 10_000, 9_000
    Image.new("1", size).save(path)
    with pytest.raises(UnreadableError, match="10000 x 9000 = 90,000,000 pixels are more than the limit of 89,478,485"):
        read_photo(Photo(str(path)))
    assert read_photo(Photo(str(path)), max_pixels=90_000_000).size == size
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS
    with pytest.raises(UnreadableError, match="limit of 100"):
        read_photo(Photo("-", encode(scene())), max_pixels=100)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "link.jpg").symlink_to("gone.jpg")
    reasons = {"none.jpg": "no such file", "link.jpg": "a link to 'gone.jpg'", "a" * 300: "File name too long"}
    for name, reason in reasons.items():
        (photo,) = names(tmp_path / name)
        with pytest.raises(UnreadableError, match=reason):
            read_photo(Photo(photo))


def test_folders_that_may_not_be_looked_into() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = tree(Path(place), "a.png", "locked/b.png")
        folder.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        (folder / "locked").chmod(0)
        with ordinary_user():
            found = list(find_photos([folder]))
            for images in (UnlabelledFolder, FolderDataset):
                with pytest.raises(UsageError, match=f"'{place}/locked'.*Permission denied"):
                    images(folder)
        (folder / "locked").chmod(0o700)
    assert found == [Photo(f"{place}/a.png"), Failed(f"{place}/locked", "no permission to read it")]


def test_folders(tmp_path: Path) -> None:
    """Below a folder the suffix decides; a folder may have any name."""
    paths = ["b/a10.PNG", "b/a9.jpeg", "b/notes.txt", "b/no suffix", "b/.hidden.png", ".git/a.png", "x.jpg/c d.webp"]
    tree(tmp_path, *paths)
    (tmp_path / "b" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    (tmp_path / "b" / "gone.png").symlink_to("nowhere")
    (tmp_path / "b" / "loop.png").symlink_to("loop.png")
    wanted = ["b/a9.jpeg", "b/a10.PNG", "b/gone.png", "b/loop.png", "x.jpg/c d.webp"]
    assert names(tmp_path) == [f"{tmp_path}/{name}" for name in wanted]
    tree(tmp_path / "no images", "notes.txt")
    assert list(failures(tmp_path / "no images")) == [f"{tmp_path}/no images"]
    assert names(tmp_path / "no images" / "notes.txt") == [f"{tmp_path}/no images/notes.txt"]


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree(tmp_path, "a1.png", "a10.png", "a9.png", "b/c.png", "photo[1].png", "notes.txt"))
    assert names("a*.png") == ["a1.png", "a9.png", "a10.png"]
    assert names("**/c.png") == ["b/c.png"]
    assert names("*") == ["a1.png", "a9.png", "a10.png", "b/c.png", "notes.txt", "photo[1].png"]
    assert names("photo[1].png") == ["photo[1].png"]  # there is a file of this name
    assert failures("*.jpg", "z?") == dict.fromkeys(("*.jpg", "z?"), "no file matches this pattern")


def test_each_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree(tmp_path, "a.png", "b/c.png"))
    (tmp_path / "link.png").symlink_to("a.png")
    given = ["a.png", "./a.png", "a.*", str(tmp_path / "a.png"), "b", "b/c.png", "link.png"]
    assert names(*given) == ["a.png", "b/c.png", "link.png"]


def test_pipes_and_devices(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_bytes(turned(6, "png")))
    writer.start()
    (found,) = find_photos([pipe])
    writer.join()
    assert isinstance(found, Photo)
    assert found.name == str(pipe)
    assert like_the_scene(read_photo(found), ODD["turned.png"])
    assert failures("/dev/zero") == {"/dev/zero": "neither a file nor a folder"}


def test_standard_input_with_an_image(files: dict[str, Path]) -> None:
    """It is an image as long as it begins like one; anything else that is no text is refused as a whole."""
    (found,) = find_photos(["-", "-"], io.BytesIO(files["plain.webp"].read_bytes()))
    assert isinstance(found, Photo)
    assert like_the_scene(read_photo(found), ODD["plain.webp"])
    (found,) = find_photos(["-"], io.BytesIO(files["cut off.jpg"].read_bytes()))
    with pytest.raises(UnreadableError, match="truncated"):
        read_photo(found if isinstance(found, Photo) else Photo(""))
    (reason,) = failures("-", stdin=files["phone.jpg"].read_bytes()).values()
    assert "neither an image nor a list of paths" in reason
    assert "a HEIC photo" in reason
    assert failures("-", stdin=b"") == {"-": "standard input is empty"}


def test_standard_input_with_paths(tmp_path: Path) -> None:
    tree(tmp_path, "a b.png", "two\nlines.png", "c/d.png", os.fsdecode(b"\xe9.png"))
    root = os.fsencode(tmp_path)
    lines = [root + b"/a b.png", b"", root + b"/c", root + b"/\xe9.png", root + b"/*.jpg"]
    wanted = ["a b.png", "c/d.png", os.fsdecode(b"\xe9.png"), "*.jpg"]  # a line is a name, never a pattern
    for end in (b"\n", b"\r\n", b"\0"):
        assert names("-", stdin=end.join(lines)) == [f"{tmp_path}/{name}" for name in wanted]
    assert names("-", stdin=root + b"/two\nlines.png\0" + root + b"/c\0") == [
        f"{tmp_path}/two\nlines.png",
        f"{tmp_path}/c/d.png",
    ]
    assert names("-") == ["-"]  # without standard input it is a name like any other


@pytest.mark.parametrize("suffix", sorted(suffix for suffixes in FORMATS.values() for suffix in suffixes))
def test_a_folder_is_searched_for_every_format_that_is_decoded(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix.upper()}").touch()
    assert [Path(photo.name).name for photo in find_photos([tmp_path])] == [f"a{suffix.upper()}"]
