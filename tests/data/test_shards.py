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
from support.image_files import encode, make_image, web_dataset, write_shard
from support.training_runs import EVERYTHING, FAMILIES, Launcher, command, events, recipe_file

from flopping.data.augment import (
    Normalisation,
    Preparation,
    create_eval_transform,
    create_training_transform,
    stack_images,
)
from flopping.data.batches import PADDING, Batch, DataSource
from flopping.data.datasets import open_dataset
from flopping.data.loader import create_data_source, create_evaluation_loader
from flopping.data.order import MicroBatchSampler, Order
from flopping.data.shards import ShardDataset
from flopping.errors import UnreadableDataError, UsageError
from flopping.training.checkpoint import AVERAGE, WEIGHTS

CPU = torch.device("cpu")
NORMAL = Normalisation((0.5,) * 3, (0.25,) * 3)
AUGMENTATION = {"img_size": 12, "crop_scale": 0.08, "flip": 0.5, "color_jitter": 0.3, "augment": "3a"}
PLAIN = Preparation(create_eval_transform(12, 1.0, "nearest"), 3, NORMAL, CPU, torch.float32)
AUGMENTED = Preparation(
    create_training_transform(NORMAL, interpolation="bicubic", **AUGMENTATION), 3, NORMAL, CPU, torch.float32
)
LENGTHS = (5, 6, 7, 6)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return web_dataset(tmp_path_factory.mktemp("shards"), {"train": LENGTHS, "validation": (3, 4)})


def opened(root: Path, split: str = "train") -> ShardDataset:
    found = open_dataset("wds/pictures", split, str(root))
    assert isinstance(found, ShardDataset)
    return found


def source(
    root: Path, order: Order, workers: int = 0, rank: int = 0, world_size: int = 1, preparation: Preparation = PLAIN
) -> DataSource:
    return create_data_source(opened(root), preparation, MicroBatchSampler(order, rank, world_size), workers)


def marks(batches: Iterable[Batch]) -> list[bytes]:
    """The pixels of images, as they come."""
    return [image.numpy().tobytes() for batch in batches for image in batch.images]


def pixels(seed: int) -> bytes:
    """The pixels of an image of the dataset."""
    (image,) = PLAIN.normalise(stack_images([PLAIN.transform(make_image(seed))]))
    return bytes(image.numpy().tobytes())


def test_splits_classes_and_numbers(root: Path) -> None:
    train, test = opened(root), opened(root, "test")
    assert (len(train), len(test)) == (24, 7)
    assert train.classes == test.classes == ("cat", "dog")
    index, sample = list(train.read_shard(1))[2]
    assert train.locate(index) == f"{root / 'train-1.tar'}, train-1-0002"
    assert sample["png"] == encode(make_image(5 + 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_training_shows_every_image_once_where_shards_are_alike(workers: int, tmp_path: Path) -> None:
    found = source(web_dataset(tmp_path, {"train": (6, 6, 6, 6)}), Order(24, 6, 3, 1, seed=0), workers)
    first, second = marks(found.start(0, 0)), marks(found.start(1, 0))
    assert set(first) == set(second) == {pixels(seed) for seed in range(24)}
    assert len(first) == len(second) == 24
    assert first != second
    labels = {
        mark: label for batch in found.start(0, 0) for mark, label in zip(marks([batch]), batch.labels, strict=True)
    }
    assert all(labels[pixels(seed)] == seed % 2 for seed in range(24))


@pytest.mark.parametrize(("workers", "repeats"), [(0, 1), (0, 3), (2, 3)])
def test_a_source_starts_at_any_step(workers: int, repeats: int, root: Path) -> None:
    """With as many workers as before; shards of different lengths are read on until every micro-batch is full."""
    order = Order(24, 8, 2, repeats, seed=1)
    plain = marks(source(root, order, workers).start(2, 0))
    assert repeats == 1 or plain[0] == plain[1]
    found = source(root, order, workers, preparation=AUGMENTED)
    whole = marks(found.start(2, 0))
    assert len(whole) == 24
    assert len(set(whole)) == 24
    for step in (1, 3):
        assert marks(found.start(2, step)) == whole[step * 8 :]
    assert marks(source(root, order, workers, preparation=AUGMENTED).start(2, 0)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_read_shards_of_their_own(workers: int, root: Path) -> None:
    shares = [marks(source(root, Order(24, 4, 2, 1, seed=1), workers, rank, 2).start(0, 0)) for rank in range(2)]
    assert [len(share) for share in shares] == [12, 12]
    assert not set(shares[0][:10]) & set(shares[1][:10])


def test_workers_without_a_shard_are_not_started(tmp_path: Path) -> None:
    root, order = web_dataset(tmp_path, {"train": (6,)}), Order(6, 3, 3, 1, seed=1)
    found = marks(source(root, order, 2).start(0, 0))
    assert found == marks(source(root, order, 1).start(0, 0))
    assert sorted(found) == sorted(pixels(seed) for seed in range(6))
    assert sum(int((batch.labels >= 0).sum()) for batch in create_evaluation_loader(opened(root), PLAIN, 4, 2)) == 6


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0), (3, 1)])
def test_evaluation_shows_every_image_once_in_as_many_full_batches_on_every_rank(
    world_size: int, workers: int, root: Path
) -> None:
    ranks = range(world_size)
    loaders = [create_evaluation_loader(opened(root), PLAIN, 4, workers, rank, world_size) for rank in ranks]
    shares = [list(loader) for loader in loaders]
    assert len({*map(len, shares), *map(len, loaders)}) == 1
    assert {len(batch.labels) for share in shares for batch in share} == {4}
    every = [batch for share in shares for batch in share]
    labels = torch.cat([batch.labels for batch in every])
    counted = [mark for mark, label in zip(marks(every), labels, strict=True) if label >= 0]
    assert sorted(counted) == sorted(pixels(seed) for seed in range(24))


@pytest.mark.long
def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path, launcher: Launcher) -> None:
    """It is asked to stop, and resumed, in the middle of its second epoch."""
    root = web_dataset(tmp_path / "shards", {"train": (20, 20), "validation": (4, 4)})
    model, fields = FAMILIES["ViT"]
    recipe = recipe_file(tmp_path / "recipe.yaml", "ViT", **{**EVERYTHING, **fields, "epochs": 2, "batch_size": 8})
    runs = [tmp_path / "whole", tmp_path / "stopped"]
    more = ["--root", str(root), "--workers", "2", "--micro-batch", "4", "--save-steps", "1", "--resume"]
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
    content = {"png": encode(make_image(0)), "cls": b"0"}
    write_shard(root / "train-0.tar", [content, {"png": b"no image", "cls": b"1"}, content, {"cls": b"1"}])
    path = root / "train-1.tar"
    with tarfile.open(path) as file:
        end = file.getmember("train-1-0002.png").offset_data + 10
    path.write_bytes(path.read_bytes()[:end])
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_named_and_others_take_their_places(workers: int, tmp_path: Path) -> None:
    shards = opened(damaged(tmp_path))
    batches = list(source(tmp_path, Order(8, 8, 4, 1, seed=0), workers).start(0, 0))
    assert all((batch.labels >= 0).all() for batch in batches)
    names = {shards.locate(index) for batch in batches for index in batch.unreadable}
    places = [(0, 1), (0, 3), (1, 2)]
    assert names == {f"{tmp_path / f'train-{shard}.tar'}, train-{shard}-{n:04}" for shard, n in places}
    batches = list(create_evaluation_loader(shards, PLAIN, 3, 0))  # here they count for nothing
    assert sum(len(batch.unreadable) for batch in batches) == 3
    assert [int(label) for batch in batches for label in batch.labels if label != PADDING] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([(0, b"0"), (0, b"7"), (0, b"1"), (0, b"0")], r"train-0.tar, train-0-0001 is of class 7"),
        ([(None, b"0")] * 4, r"^4 images in a row can't be read, from .*train-0.tar, .* on"),
    ],
)
def test_what_stops_training(content: list[tuple[int | None, bytes]], reason: str, tmp_path: Path) -> None:
    root = web_dataset(tmp_path, {"train": (4,)})
    images = [
        {"png": b"no image" if seed is None else encode(make_image(seed)), "cls": label} for seed, label in content
    ]
    write_shard(root / "train-0.tar", images)
    with pytest.raises(UnreadableDataError, match=reason):
        next(source(root, Order(4, 4, 4, 1, 0)).start(0, 0))


def describe(root: Path, **changes: object) -> None:
    """A WebDataset, whose description of the training images is changed."""
    web_dataset(root, {"train": (2, 2)})
    path = root / "_info.json"
    info = json.loads(path.read_text())
    for key, value in changes.items():
        (info if key == "classes" else info["splits"]["train"])[key] = value
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"classes": 1}, "one class only, '0'"),
        ({"shard_lengths": [4]}, "2 filenames of 'train'"),
        ({"filenames": ["train-0.tar", "gone.tar"]}, "gone.tar"),
        ({"alt_label": "breed"}, "alt_label='breed'"),
    ],
)
def test_descriptions_that_are_refused(changes: dict[str, object], value: str, tmp_path: Path) -> None:
    describe(tmp_path, **changes)
    with pytest.raises(UsageError, match=value) as error:
        opened(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_shards_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*parts: str, root: Path | None = tmp_path / "data", split: str = "train") -> None:
        with pytest.raises(UsageError, match=r"wds/pictures|_info\.json|train-0\.tar") as error:
            open_dataset("wds/pictures", split, None if root is None else str(root))
        for part in parts:
            assert part in str(error.value)

    refused("--root", root=None)
    refused("no folder", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    refused("no file", str(tmp_path / "data" / "_info.json"), '"shard_lengths": [1000, 500]')
    describe(tmp_path / "data")
    refused("no split test or eval or val", split="test")
    write_shard(tmp_path / "data" / "train-0.tar", [{"png": encode(make_image(0)), "txt": b"a cat"}])
    refused("KEY.cls", "train-0.tar' has .png, .txt")
    (tmp_path / "data" / "train-0.tar").write_bytes(b"no tar")
    refused("train-0.tar' has none that can be read")
    (tmp_path / "data" / "_info.json").write_text("{")
    refused("JSONDecodeError")
    (tmp_path / "data" / "_info.json").write_text("[" * 100_000)
    refused("RecursionError")
    monkeypatch.setitem(sys.modules, "webdataset", None)
    refused("package webdataset")


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    """Fewer shards than ranks, and more images than _info.json promises."""
    describe(tmp_path, classes=3)
    assert opened(tmp_path).classes == ("0", "1", "2")
    with pytest.raises(UsageError, match="2 shards, too few for 3 processes"):
        source(tmp_path, Order(4, 4, 2, 1, 0), 0, 0, 3)
    write_shard(tmp_path / "train-0.tar", [{"png": encode(make_image(0)), "cls": b"0"}] * 5)
    with pytest.raises(UnreadableDataError, match=r"more than the 4 that _info\.json promises"):
        list(create_evaluation_loader(opened(tmp_path), PLAIN, 2, 0))
