"""From images to batches: a batch depends on its keys alone, whatever reads it, and holds timm's numbers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_files import image_folder, make_image
from timm.data import create_transform
from torch import Tensor
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from flopping.data.augment import (
    Normalisation,
    Preparation,
    Transform,
    create_eval_transform,
    create_training_transform,
)
from flopping.data.batches import (
    PADDING,
    TRIES,
    Batch,
    DataSource,
    WorkerLostError,
    default_workers,
    read_evaluation_batches,
)
from flopping.data.folders import FolderDataset
from flopping.data.images import ArrayDataset
from flopping.data.order import MicroBatchSampler, Order, seed_generators
from flopping.errors import UnreadableDataError

CPU = torch.device("cpu")
NORMAL = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
FLIPS: dict[str, Any] = {"img_size": 16, "crop_scale": 0.08, "flip": 0.5, "interpolation": "bicubic"}
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "crops and flips": FLIPS,
    "3-Augment": {**FLIPS, "augment": "3a", "color_jitter": 0.3},
    "RandAugment": {**FLIPS, "augment": "rand-m9-mstd0.5-inc1"},
    "erasing": {**FLIPS, "augment": "rand-m9-mstd0.5-inc1", "erase": 0.9, "flip": 0.0},
}


def pictures(images: int = 20, classes: int = 4) -> ArrayDataset:
    array = np.stack([np.asarray(make_image(seed)) for seed in range(images)])
    labels = [seed % classes for seed in range(images)]
    return ArrayDataset("pictures", array, labels, [f"c{n}" for n in range(classes)])


def prepare(transform: Transform, normal: Normalisation = NORMAL, dtype: torch.dtype = torch.float32) -> Preparation:
    return Preparation(transform, len(normal.mean), normal, CPU, dtype)


PLAIN = prepare(create_eval_transform(12, 1.0, "nearest"))
AUGMENTED = prepare(create_training_transform(NORMAL, **AUGMENTATIONS["3-Augment"]))


def join(batches: Iterable[Batch]) -> tuple[Tensor, Tensor, list[int]]:
    """All batches as one."""
    found = list(batches)
    return (
        torch.cat([batch.images for batch in found]),
        torch.cat([batch.labels for batch in found]),
        [index for batch in found for index in batch.unreadable],
    )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_training_images_are_those_of_timm(name: str) -> None:
    """Normalised together, after the trip from the worker, they are what timm makes of each."""
    chosen = AUGMENTATIONS[name]
    dataset, sampler = pictures(), MicroBatchSampler(Order(20, 20, 10, 1, seed=0))
    theirs = create_transform(
        16,
        is_training=True,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=chosen["flip"],
        color_jitter=chosen.get("color_jitter"),
        auto_augment=chosen.get("augment"),
        interpolation="bicubic",
        mean=NORMAL.mean,
        std=NORMAL.std,
        re_prob=chosen.get("erase", 0.0),
        re_mode="pixel",
    )
    ours = prepare(create_training_transform(NORMAL, **chosen))
    images, labels, _ = join(DataSource(dataset, ours, sampler, 0).start(0, 0))
    expected = []
    for index, seed in (key for keys in sampler for key in keys):
        seed_generators(seed)
        expected.append(theirs(dataset.read(index)[0]))
    torch.testing.assert_close(images, torch.stack(expected), atol=2e-6, rtol=1e-6)
    assert labels.tolist() == [index % 4 for keys in sampler for index, _ in keys]


def test_evaluation_images_are_those_of_timm() -> None:
    dataset, ours = pictures(), prepare(create_eval_transform(16, 0.9, "bicubic"))
    theirs = create_transform(16, crop_pct=0.9, interpolation="bicubic", mean=NORMAL.mean, std=NORMAL.std)
    images, labels, _ = join(read_evaluation_batches(dataset, ours, 10, 0))
    expected = torch.stack([theirs(dataset.read(n)[0]) for n in range(20)])
    torch.testing.assert_close(images, expected, atol=2e-6, rtol=1e-6)
    assert labels.tolist() == [n % 4 for n in range(20)]


def test_float64_images_have_the_precision_of_float64() -> None:
    dataset = pictures(4)
    images, _, _ = join(read_evaluation_batches(dataset, prepare(PLAIN.transform, dtype=torch.float64), 4, 0))
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (NORMAL.mean, NORMAL.std))
    pixels = torch.stack([torch.from_numpy(np.array(dataset.read(n)[0])).permute(2, 0, 1) for n in range(4)])
    torch.testing.assert_close(images, (pixels / torch.tensor(255.0, dtype=torch.float64) - mean) / std)


def test_workers_change_nothing() -> None:
    order, found = Order(20, 4, 2, 2, seed=3), []
    for workers in (0, 2):
        source = DataSource(pictures(), AUGMENTED, MicroBatchSampler(order), workers)
        found.append([join(source.start(epoch, 0))[0] for epoch in (0, 1, 0)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    first, second, again = found[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_source_starts_at_any_step_and_each_rank_has_its_share() -> None:
    order = Order(20, 8, 2, 3, seed=3)

    def images(step: int, *rank: int) -> list[Tensor]:
        source = DataSource(pictures(), AUGMENTED, MicroBatchSampler(order, *rank), 0)
        return [batch.images for batch in source.start(5, step)]

    whole = images(0)
    assert torch.equal(torch.stack(images(1)), torch.stack(whole[4:]))
    for rank in range(2):
        expected = [whole[place] for place in range(len(whole)) if place % 4 // 2 == rank]
        assert torch.equal(torch.stack(images(0, rank, 2)), torch.stack(expected))


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (3, 0), (2, 2)])
def test_evaluation_shows_every_image_once_in_as_many_full_batches_on_every_rank(world_size: int, workers: int) -> None:
    ranks = range(world_size)
    shares = [list(read_evaluation_batches(pictures(), PLAIN, 3, workers, rank, world_size)) for rank in ranks]
    assert {len(share) for share in shares} == {-(-20 // (3 * world_size))}
    assert {len(batch.labels) for share in shares for batch in share} == {3}
    images, labels, _ = join(batch for share in shares for batch in share)
    counted = images[labels != PADDING]
    assert len(counted) == 20
    assert len({image.numpy().tobytes() for image in counted}) == 20


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "I;16"])
@pytest.mark.parametrize("normal", [NORMAL, Normalisation((0.5,), (0.25,))], ids=["colour", "grey"])
def test_images_have_the_channels_that_the_network_takes(mode: str, normal: Normalisation, tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": {"": 1}, "b": {"": 1}})
    if mode == "I;16":
        Image.fromarray(np.asarray(make_image(0, "L")).astype(np.uint16) * 257).save(tmp_path / "a" / "0.png")
    else:
        make_image(0, mode).save(tmp_path / "a" / "0.tif")
    prepared = prepare(PLAIN.transform, normal)
    images, labels, unreadable = join(read_evaluation_batches(FolderDataset(tmp_path), prepared, 1, 0))
    assert not unreadable
    assert images.shape[1:] == (len(normal.mean), 12, 12)
    shown = images[len(labels) - 2] * torch.tensor(normal.std)[:, None, None] + torch.tensor(normal.mean)[:, None, None]
    if len(normal.mean) == 1 and mode != "CMYK":
        np.testing.assert_allclose(shown[0] * 255, np.asarray(make_image(0, "L")), atol=0.51)


def test_values_for_another_number_of_channels() -> None:
    assert Normalisation.for_channels((0.2, 0.4, 0.6), (1.0, 2.0, 3.0), 3) == Normalisation((0.2, 0.4, 0.6), (1, 2, 3))
    assert Normalisation.for_channels((0.25, 0.5, 0.75), (1.0, 2.0, 3.0), 1) == Normalisation((0.5,), (2.0,))


def damaged(tmp_path: Path, *names: str) -> FolderDataset:
    image_folder(tmp_path, {"a": {"": 3}, "b": {"": 3}})
    for name in names:
        (tmp_path / name).write_bytes(b"text with an image's suffix")
    return FolderDataset(tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_image_takes_the_place_of_an_unreadable_one(workers: int, tmp_path: Path) -> None:
    dataset = damaged(tmp_path, "a/1.png", "a/2.png")
    source = DataSource(dataset, PLAIN, MicroBatchSampler(Order(6, 6, 6, 1, seed=0)), workers)
    (batch,) = source.start(0, 0)
    assert sorted(batch.labels.tolist()) == [0, 1, 1, 1, 1, 1]
    assert {dataset.locate(index) for index in batch.unreadable} == {str(tmp_path / "a" / f"{n}.png") for n in (1, 2)}
    _, labels, unreadable = join(read_evaluation_batches(dataset, PLAIN, 3, workers))
    assert labels.tolist() == [0, PADDING, PADDING, 1, 1, 1]
    assert set(unreadable) == {1, 2}


@pytest.mark.parametrize("workers", [0, 1])
def test_data_without_readable_images_is_refused_in_a_line(workers: int, tmp_path: Path) -> None:
    dataset = damaged(tmp_path, *(f"{name}/{n}.png" for name in "ab" for n in range(3)))
    source = DataSource(dataset, PLAIN, MicroBatchSampler(Order(6, 6, 6, 1, seed=0)), workers)
    with pytest.raises(UnreadableDataError, match=rf"^{TRIES} images in a row can't be read, from .*png"):
        next(source.start(0, 0))


class Fatal(ArrayDataset):
    """A dataset whose reader is killed."""

    def read(self, index: int) -> tuple[Image.Image, int]:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def test_a_worker_that_is_killed_is_told_by_its_process_and_not_by_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # 5 s between two looks
    dataset = pictures()
    fatal = Fatal("fatal", dataset.images, dataset.labels, dataset.classes)
    with pytest.raises(WorkerLostError, match=r"signal 9.*--workers, 1 now"):
        list(read_evaluation_batches(fatal, PLAIN, 4, 1))


def test_workers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, processes, expected in [(1, 1, 0), (2, 1, 1), (4, 1, 3), (64, 1, 8), (64, 8, 7), (8, 4, 1), (2, 4, 0)]:
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert default_workers() == expected
