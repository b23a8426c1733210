"""Which photos are meant, and what comes of each of them, however odd."""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from odd_photos import ODD, like_the_scene, scene, turned, write_odd
from pictures import packed
from PIL import Image

from flopping.photos import MAX_PIXELS, Failed, Photo, UnreadableError, find_photos, pillow_is_quiet, read_photo
from flopping.training.loader import eval_transform
from flopping.training.pixels import as_pixels

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
        (root / path).write_bytes(packed(scene(), "png"))
    return root


def test_there_are_more_than_thirty() -> None:
    assert len([odd for odd in ODD.values() if odd.mode]) > 30
    assert len([odd for odd in ODD.values() if not odd.mode]) > 20


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_each_odd_photo(name: str, files: dict[str, Path]) -> None:
    odd = ODD[name]
    if odd.mode:
        with pillow_is_quiet():
            image = read_photo(Photo(str(files[name])))
        if odd.mode != "any":
            assert like_the_scene(as_pixels(image, odd.mode), odd)
    else:
        with pytest.raises(ValueError, match=re.escape(odd.reason)) as refused, pillow_is_quiet():
            as_pixels(read_photo(Photo(str(files[name]))), "RGB")
        assert name not in str(refused.value)  # the name stands before the reason
        assert "0x" not in str(refused.value)  # nor has anybody's memory an address


def test_pillow_guards_as_before(files: dict[str, Path]) -> None:
    before = Image.MAX_IMAGE_PIXELS
    assert before == MAX_PIXELS
    for name in ("bomb.png", "text.jpg", "plain.jpg"):
        try:
            read_photo(Photo(str(files[name])))
        except UnreadableError:
            assert name != "plain.jpg"
        assert before == Image.MAX_IMAGE_PIXELS


def test_the_limit_may_be_raised_and_lowered(tmp_path: Path) -> None:
    """Larger than Pillow would read without a warning, and it is read without one."""
    path = tmp_path / "large.png"
    size = 10_000, 9_000
    Image.new("1", size).save(path)
    with pytest.raises(UnreadableError, match="10000 x 9000 = 90,000,000 pixels are more than the limit of 89,478,485"):
        read_photo(Photo(str(path)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_photo(Photo(str(path)), max_pixels=90_000_000).size == size
    with pytest.raises(UnreadableError, match="limit of 100"):
        read_photo(Photo("-", packed(scene())), max_pixels=100)


@pytest.mark.parametrize("mode", ["center", "border", "squash"])
@pytest.mark.parametrize("size", [(1, 2000), (2000, 1), (3, 900), (1, 1), (2000, 30)])
def test_thin_images_take_little_memory(size: tuple[int, int], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle is cropped before the short edge is made long, and not only after."""
    made: list[int] = []
    resize = Image.Image.resize

    def watched(image: Image.Image, wanted: tuple[int, int], *args: object, **more: object) -> Image.Image:
        made.append(wanted[0] * wanted[1])
        return resize(image, wanted, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", watched)
    image = Image.new("RGB", size)
    fitted = eval_transform((224, 224), 0.9, "bicubic", mode)(image)
    assert isinstance(fitted, Image.Image)
    assert fitted.size == (224, 224)
    assert made
    assert max(made) < 5_000_000


def test_what_is_cropped_before_is_not_what_is_seen() -> None:
    """Images that are twice as long as those that are left alone, and half as long, give the same middle."""
    tall = Image.linear_gradient("L").resize((4, 512))
    long = Image.new("L", (4, 4096), 77)
    long.paste(tall, (0, (4096 - 512) // 2))
    short = long.crop((0, 2048 - 100, 4, 2048 + 100))
    seen = [eval_transform((16, 16), 1.0, "bicubic")(image).tobytes() for image in (long, short)]  # type: ignore[union-attr]
    assert seen[0] == seen[1]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    link, circle = tmp_path / "link.jpg", tmp_path / "circle.jpg"
    link.symlink_to("gone.jpg")
    circle.symlink_to("circle.jpg")
    reasons = {}
    for path in (tmp_path / "none.jpg", link, circle, tmp_path / ("a" * 300)):
        (photo,) = names(path)
        with pytest.raises(UnreadableError) as refused:
            read_photo(Photo(photo))
        reasons[path.name] = str(refused.value)
    assert reasons["none.jpg"] == "there is no such file"
    assert reasons["link.jpg"] == "a link to 'gone.jpg', which doesn't exist"
    assert "symbolic links" in reasons["circle.jpg"]
    assert reasons["a" * 300] == "File name too long"


def test_no_permission(tmp_path: Path) -> None:
    path = tree(tmp_path, "a.png") / "a.png"
    path.chmod(0)
    with ordinary_user():
        (photo,) = names(path)
        with pytest.raises(UnreadableError, match="no permission to read it"):
            read_photo(Photo(photo))


def test_folders_that_may_not_be_looked_into() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = tree(Path(place), "a.png", "locked/b.png")
        folder.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        (folder / "locked").chmod(0)
        with ordinary_user():
            found = list(find_photos([folder]))
        (folder / "locked").chmod(0o700)
    assert found == [Photo(f"{place}/a.png"), Failed(f"{place}/locked", "no permission to read it")]


def test_folders(tmp_path: Path) -> None:
    """Below a folder the suffix decides; a folder may have any name."""
    paths = ["b/a10.PNG", "b/a9.jpeg", "b/notes.txt", "b/no suffix", "b/.hidden.png", ".git/a.png", "x.jpg/c d.webp"]
    tree(tmp_path, *paths)
    (tmp_path / "b" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    (tmp_path / "b" / "gone.png").symlink_to("nowhere")
    wanted = ["b/a9.jpeg", "b/a10.PNG", "b/gone.png", "x.jpg/c d.webp"]
    assert names(tmp_path) == [f"{tmp_path}/{name}" for name in wanted]
    assert names(tmp_path / "x.jpg") == [f"{tmp_path}/x.jpg/c d.webp"]


def test_a_folder_without_images(tmp_path: Path) -> None:
    tree(tmp_path, "notes.txt")
    assert failures(tmp_path) == {str(tmp_path): "the folder holds no image, by their suffixes"}
    assert names(tmp_path / "notes.txt") == [f"{tmp_path}/notes.txt"]  # by its name, it is meant


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
    for name in ("plain.jpg", "animated.gif", "plain.webp", "16 bits.png", "plain.ppm"):
        (found,) = find_photos(["-", "-"], io.BytesIO(files[name].read_bytes()))
        assert isinstance(found, Photo)
        assert found.name == "-"
        assert like_the_scene(as_pixels(read_photo(found), ODD[name].mode), ODD[name])


def test_standard_input_with_a_broken_image(files: dict[str, Path]) -> None:
    """It is an image as long as it begins like one; anything else that is no text is refused as a whole."""
    (found,) = find_photos(["-"], io.BytesIO(files["cut off.jpg"].read_bytes()))
    with pytest.raises(UnreadableError, match="truncated"):
        read_photo(found if isinstance(found, Photo) else Photo(""))
    for name, why in {"phone.jpg": "a HEIC photo", "noise.jpg": "no JPEG", "archive.jpg": "an archive"}.items():
        (reason,) = failures("-", stdin=files[name].read_bytes()).values()
        assert reason.startswith("standard input is neither an image nor a list of paths: ")
        assert why in reason
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
