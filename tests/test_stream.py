"""Shards that are read from front to back: what comes when, resuming, sharing, and what can't be read."""

from __future__ import annotations

import json
import signal
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from pictures import packed, picture, shard, web_dataset
from training_runs import EVERYTHING, FAMILIES, Launcher, command, events, recipe_file

from flopping.training.checkpoint import AVERAGE, WEIGHTS
from flopping.training.feeds import eval_batches, training_feed
from flopping.training.loader import (
    FILLER,
    Batch,
    Normalisation,
    Preparation,
    eval_transform,
    stacked,
    training_transform,
)
from flopping.training.order import Chunks, Order
from flopping.training.processes import World
from flopping.training.recipe import load
from flopping.training.shards import Shards
from flopping.training.sources import open_source
from flopping.training.stops import UnreadableError

CPU = torch.device("cpu")
NORMAL = Normalisation((0.5,) * 3, (0.25,) * 3)
PLAIN = Preparation(eval_transform(12, 1.0, "nearest"), 3, NORMAL, CPU, torch.float32)
AUGMENTED = Preparation(
    training_transform(load("deit3_base").override(["img_size=12"]), NORMAL, 0.5), 3, NORMAL, CPU, torch.float32
)
LENGTHS = (5, 6, 7, 6)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return web_dataset(tmp_path_factory.mktemp("shards"), {"train": LENGTHS, "validation": (3, 4)})


def opened(root: Path, split: str = "train") -> Shards:
    found = open_source("wds/pictures", split, str(root))
    assert isinstance(found, Shards)
    return found


def marks(batches: Iterable[Batch]) -> list[bytes]:
    """What tells images from one another, as they come."""
    return [image.numpy().tobytes() for batch in batches for image in batch.images]


def pixels(seed: int) -> bytes:
    """The same of the picture that the data set has."""
    (image,) = PLAIN(Batch(stacked([PLAIN.transform(picture(seed))]), torch.zeros(1), [])).images
    return bytes(image.numpy().tobytes())


def test_splits_classes_and_numbers(root: Path) -> None:
    train, test = opened(root), opened(root, "test")
    assert (len(train), len(test)) == (24, 7)
    assert train.classes == test.classes == ("cat", "dog")
    (index, sample) = list(train.read(1))[2]
    assert train.where(index) == f"{root / 'train-1.tar'}, train-1-0002"
    image, label = train.decoded(sample)
    assert image.tobytes() == picture(5 + 2).tobytes()
    assert label == (5 + 2) % 2


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_training_shows_every_image_once_where_shards_are_alike(workers: int, tmp_path: Path) -> None:
    root = web_dataset(tmp_path, {"train": (6, 6, 6, 6)})
    feed = training_feed(opened(root), PLAIN, Chunks(Order(24, 6, 3, 1, seed=0)), workers, World(CPU))
    first, second = marks(feed.start(0, 0)), marks(feed.start(1, 0))
    assert set(first) == set(second) == {pixels(seed) for seed in range(24)}
    assert len(first) == len(second) == 24
    assert first != second
    labels = {
        mark: label for batch in feed.start(0, 0) for mark, label in zip(marks([batch]), batch.labels, strict=True)
    }
    assert all(labels[pixels(seed)] == seed % 2 for seed in range(24))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_stream_starts_at_any_step(workers: int, repeats: int, root: Path) -> None:
    """With as many workers as before; shards of different lengths are read on until every chunk is full."""
    order = Order(24, 8, 2, repeats, seed=1)
    feed = training_feed(opened(root), AUGMENTED, Chunks(order), workers, World(CPU))
    whole = marks(feed.start(2, 0))
    assert len(whole) == 24
    assert len(set(whole)) == 24
    for step in (1, 2, 3):
        assert marks(feed.start(2, step)) == whole[step * 8 :]
    other = training_feed(opened(root), AUGMENTED, Chunks(order), workers, World(CPU))
    assert marks(other.start(2, 0)) == whole


def test_repeated_images_follow_one_another(root: Path) -> None:
    feed = training_feed(opened(root), PLAIN, Chunks(Order(24, 12, 6, 3, seed=1)), 0, World(CPU))
    found = marks(feed.start(0, 0))
    assert [found[place] for place in range(0, 24, 3)] == [found[place + 2] for place in range(0, 24, 3)]
    assert len(set(found)) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_read_shards_of_their_own(workers: int, root: Path) -> None:
    order = Order(24, 4, 2, 1, seed=1)
    shares = [
        marks(training_feed(opened(root), PLAIN, Chunks(order, rank, 2), workers, World(CPU, rank, 2)).start(0, 0))
        for rank in range(2)
    ]
    assert [len(share) for share in shares] == [12, 12]
    assert not set(shares[0][:10]) & set(shares[1][:10])


def test_workers_without_a_shard_are_not_started(tmp_path: Path) -> None:
    shards = opened(web_dataset(tmp_path, {"train": (6,)}))
    feed = training_feed(shards, PLAIN, Chunks(Order(6, 3, 3, 1, seed=1)), 2, World(CPU))
    alone = training_feed(shards, PLAIN, Chunks(Order(6, 3, 3, 1, seed=1)), 1, World(CPU))
    assert marks(feed.start(0, 0)) == marks(alone.start(0, 0))
    assert sorted(marks(feed.start(0, 0))) == sorted(pixels(seed) for seed in range(6))
    assert sum(int((batch.labels >= 0).sum()) for batch in eval_batches(shards, PLAIN, 4, 2, World(CPU))) == 6


def test_seeds_have_orders_of_their_own(root: Path) -> None:
    one, other = (
        marks(training_feed(opened(root), PLAIN, Chunks(Order(24, 8, 2, 1, seed)), 0, World(CPU)).start(0, 0))
        for seed in (0, 1)
    )
    assert one != other


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_tests_show_every_image_once_in_batches_of_one_size(processes: int, workers: int, root: Path) -> None:
    shares = [
        list(eval_batches(opened(root), PLAIN, 4, workers, World(CPU, rank, processes))) for rank in range(processes)
    ]
    assert len({len(share) for share in shares}) == 1
    assert {len(batch.labels) for share in shares for batch in share} == {4}
    every = [batch for share in shares for batch in share]
    counted = [
        mark for mark, label in zip(marks(every), torch.cat([b.labels for b in every]), strict=True) if label >= 0
    ]
    assert sorted(counted) == sorted(pixels(seed) for seed in range(24))


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path, launcher: Launcher) -> None:
    """It is asked to stop, and resumed, in the middle of its second epoch."""
    root = web_dataset(tmp_path / "shards", {"train": (20, 20), "validation": (4, 4)})
    model, fields = FAMILIES["ViT"]
    recipe = recipe_file(tmp_path / "recipe.yaml", "ViT", **{**EVERYTHING, **fields, "epochs": 2, "batch_size": 8})
    runs = [tmp_path / "whole", tmp_path / "stopped"]
    more = ["--root", str(root), "--workers", "2", "--chunk", "4", "--save-steps", "1", "--resume"]
    whole, stopped = (command(recipe, Path("wds/it"), run, model, *more) for run in runs)
    assert launcher.run(tmp_path, *whole).code == 0
    strike = ("os.rename", "/.new-step-00000007", 1, signal.SIGTERM)
    ended = launcher.run(tmp_path, *stopped, strikes=[strike])
    assert ended.code == 3, ended.err
    assert "stopped after step 8 of 10" in ended.err
    assert launcher.run(tmp_path, *stopped).code == 0
    for name in (WEIGHTS, AVERAGE):
        one, other = (run / "last" / name for run in runs)
        assert one.read_bytes() == other.read_bytes()
    assert events(runs[0]) == events(runs[1])


def damaged(root: Path) -> Path:
    """Two shards: one with an image that is none, one that is cut off in its third image."""
    web_dataset(root, {"train": (4, 4)})
    content = {"png": packed(picture(0)), "cls": b"0"}
    shard(root / "train-0.tar", [content, {"png": b"no image", "cls": b"1"}, content, {"cls": b"1"}])
    path = root / "train-1.tar"
    with tarfile.open(path) as file:
        end = file.getmember("train-1-0002.png").offset_data + 10
    path.write_bytes(path.read_bytes()[:end])
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_named_and_others_take_their_places(workers: int, tmp_path: Path) -> None:
    shards = opened(damaged(tmp_path))
    feed = training_feed(shards, PLAIN, Chunks(Order(8, 8, 4, 1, seed=0)), workers, World(CPU))
    batches = list(feed.start(0, 0))
    assert all((batch.labels >= 0).all() for batch in batches)
    names = {shards.where(index) for batch in batches for index in batch.unreadable}
    assert f"{tmp_path / 'train-0.tar'}, train-0-0001" in names
    assert f"{tmp_path / 'train-0.tar'}, train-0-0003" in names
    assert f"{tmp_path / 'train-1.tar'}, train-1-0002" in names


def test_in_a_test_they_count_for_nothing(tmp_path: Path) -> None:
    shards = opened(damaged(tmp_path))
    batches = list(eval_batches(shards, PLAIN, 3, 0, World(CPU)))
    assert sum(len(batch.unreadable) for batch in batches) == 3
    counted = [int(label) for batch in batches for label in batch.labels if label != FILLER]
    assert counted == [0, 0, 0, 1]  # two of the first shard, two of the second


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_refused_while_reading(workers: int, tmp_path: Path) -> None:
    def first(order: Order) -> Batch:
        return next(training_feed(opened(root), PLAIN, Chunks(order), workers, World(CPU)).start(0, 0))

    root = web_dataset(tmp_path / "strange", {"train": (4,)})
    shard(root / "train-0.tar", [{"png": packed(picture(0)), "cls": label} for label in (b"0", b"7", b"1", b"0")])
    with pytest.raises(
        UnreadableError, match=r"train-0.tar, train-0-0001 is of class 7, and the 2 classes .* are 0 to 1$"
    ):
        first(Order(4, 4, 4, 1, 0))

    root = web_dataset(tmp_path / "bad", {"train": (4,)})
    shard(root / "train-0.tar", [{"png": b"no image", "cls": b"0"}] * 4)
    with pytest.raises(
        UnreadableError, match=r"^2 images in a row can't be read, from .*train-0.tar, .* on: are these images\?$"
    ):
        first(Order(4, 4, 2, 1, 0))

    root = web_dataset(tmp_path / "more", {"train": (2,)})
    shard(root / "train-0.tar", [{"png": packed(picture(0)), "cls": b"0"}] * 5)
    with pytest.raises(UnreadableError, match=r"more'.* are more than the 2 that _info.json promises: correct it"):
        list(eval_batches(opened(root), PLAIN, 2, workers, World(CPU)))

    root = web_dataset(tmp_path / "few", {"train": (4,)})
    with pytest.raises(ValueError, match=r"are in 1 shards, which 2 processes can't share: cut them into more"):
        training_feed(opened(root), PLAIN, Chunks(Order(4, 4, 2, 1, 0), 0, 2), workers, World(CPU, 0, 2))


def test_what_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*parts: str, root: Path | None = tmp_path / "data", split: str = "train") -> None:
        with pytest.raises(ValueError, match=r"wds/pictures|_info\.json|train-0\.tar") as error:
            open_source("wds/pictures", split, None if root is None else str(root))
        for part in parts:
            assert part in str(error.value)

    def info(**changes: object) -> None:
        web_dataset(tmp_path / "data", {"train": (2, 2)})
        path = tmp_path / "data" / "_info.json"
        content = json.loads(path.read_text())
        content["splits"]["train"].update({key: value for key, value in changes.items() if key != "classes"})
        if "classes" in changes:
            content["classes"] = changes["classes"]
        path.write_text(json.dumps(content))

    refused("--root says in which folder the shards of 'wds/pictures' lie", root=None)
    refused("there is no folder", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    refused("there is no file", str(tmp_path / "data" / "_info.json"), '"shard_lengths": [1000, 500]')
    info()
    refused("does not describe the test images", "no split val or valid or validation", split="test")
    info(classes=None)
    refused("does not describe the train images", "_info.json", '{"classes": ["cat", "dog"]')
    info(classes=1)
    refused("has one class only, '0'")
    info(shard_lengths=[4])
    refused("the 2 filenames of 'train' need as many shard_lengths above 0")
    info(filenames=["train-0.tar", "gone.tar"])
    refused("names shards that are not there", str(tmp_path / "data" / "gone.tar"))
    info(alt_label="breed")
    refused("alt_label='breed' is not read; classes are in files KEY.cls")
    info()
    shard(tmp_path / "data" / "train-0.tar", [{"png": packed(picture(0)), "txt": b"a cat"}])
    refused("a file KEY.jpg (or .png, .webp) and a file KEY.cls", "the first of", "train-0.tar' has .png, .txt")
    (tmp_path / "data" / "train-0.tar").write_bytes(b"no tar")
    refused("train-0.tar' has none that can be read")
    (tmp_path / "data" / "_info.json").write_text("{")
    refused("does not describe the train images (JSONDecodeError")
    monkeypatch.setitem(sys.modules, "webdataset", None)
    refused("read by the package webdataset: pip install 'flopping[data]'")


def test_the_number_of_classes_is_enough(tmp_path: Path) -> None:
    web_dataset(tmp_path, {"train": (2,)})
    path = tmp_path / "_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "classes": 3}))
    assert opened(tmp_path).classes == ("0", "1", "2")
