"""From images to batches: whatever reads them, a batch depends on its keys alone, and has timm's numbers in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import image_folder, picture
from PIL import Image
from timm.data import create_transform
from torch import Tensor

from flopping.training.feeds import eval_batches, training_feed
from flopping.training.folders import Folder
from flopping.training.images import Arrays
from flopping.training.loader import (
    FILLER,
    TRIES,
    Batch,
    Normalisation,
    Preparation,
    Transform,
    default_workers,
    eval_transform,
    stacked,
    training_transform,
)
from flopping.training.order import Chunks, Order
from flopping.training.processes import World
from flopping.training.randomness import reseed
from flopping.training.recipe import Recipe, load
from flopping.training.stops import UnreadableError

CPU = torch.device("cpu")
NORMAL = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
AUGMENTATIONS = {
    "crops and flips": ["flip=0.5"],
    "3-Augment": ["augment=3a", "color_jitter=0.3", "flip=0.5"],
    "RandAugment": ["augment=rand-m9-mstd0.5-inc1", "flip=0.5"],
    "erasing": ["augment=rand-m9-mstd0.5-inc1", "erase=0.9"],
}


def recipe(*changes: str) -> Recipe:
    return load("deit3_base").override(["img_size=16", "augment=null", "color_jitter=null"]).override(changes)


def pictures(images: int = 20, classes: int = 4) -> Arrays:
    array = np.stack([np.asarray(picture(seed)) for seed in range(images)])
    return Arrays("pictures", array, [seed % classes for seed in range(images)], [f"c{n}" for n in range(classes)])


def preparation(
    transform: Transform, normal: Normalisation = NORMAL, dtype: torch.dtype = torch.float32
) -> Preparation:
    return Preparation(transform, len(normal.mean), normal, CPU, dtype)


def together(batches: Iterable[Batch]) -> tuple[Tensor, Tensor, list[int]]:
    """All batches as one."""
    found = list(batches)
    return (
        torch.cat([batch.images for batch in found]),
        torch.cat([batch.labels for batch in found]),
        [index for batch in found for index in batch.unreadable],
    )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_images_are_those_of_timms_transforms(name: str) -> None:
    """Shifted and scaled in one go, after the trip from the worker, they are what timm makes of each."""
    changed = recipe(*AUGMENTATIONS[name])
    source, chunks = pictures(), Chunks(Order(20, 20, 10, 1, seed=0))
    ours = training_transform(changed, NORMAL, changed.flip)
    theirs = create_transform(
        16,
        is_training=True,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=changed.flip,
        color_jitter=changed.color_jitter,
        auto_augment=changed.augment,
        interpolation="bicubic",
        mean=NORMAL.mean,
        std=NORMAL.std,
        re_prob=changed.erase,
        re_mode="pixel",
    )
    images, labels, _ = together(training_feed(source, preparation(ours), chunks, 0, World(CPU)).start(0, 0))
    expected = []
    for index, seed in (key for keys in chunks for key in keys):
        reseed(seed)
        expected.append(theirs(source.open(index)[0]))
    torch.testing.assert_close(images, torch.stack(expected), atol=2e-6, rtol=1e-6)
    assert labels.tolist() == [index % 4 for keys in chunks for index, _ in keys]


def test_test_images_are_those_of_timms_transforms() -> None:
    source = pictures()
    theirs = create_transform(16, crop_pct=0.9, interpolation="bicubic", mean=NORMAL.mean, std=NORMAL.std)
    images, labels, _ = together(
        eval_batches(source, preparation(eval_transform(16, 0.9, "bicubic")), 10, 0, World(CPU))
    )
    torch.testing.assert_close(
        images, torch.stack([theirs(source.open(n)[0]) for n in range(20)]), atol=2e-6, rtol=1e-6
    )
    assert labels.tolist() == [n % 4 for n in range(20)]


def test_only_what_random_erasing_touches_travels_as_floats() -> None:
    image = picture(0)
    assert stacked([training_transform(recipe(), NORMAL, 0.5)(image)]).dtype == torch.uint8
    assert stacked([training_transform(recipe("erase=0.5"), NORMAL, 0.5)(image)]).dtype == torch.float32
    assert stacked([eval_transform(16, 1.0, "bicubic")(image)]).dtype == torch.uint8


def test_float64_images_have_the_precision_of_float64() -> None:
    source = pictures(4)
    transform = eval_transform(12, 1.0, "nearest")
    images, _, _ = together(eval_batches(source, preparation(transform, dtype=torch.float64), 4, 0, World(CPU)))
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (NORMAL.mean, NORMAL.std))
    pixels = torch.stack([torch.from_numpy(np.array(source.open(n)[0])).permute(2, 0, 1) for n in range(4)])
    torch.testing.assert_close(images, (pixels / torch.tensor(255.0, dtype=torch.float64) - mean) / std)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_workers_change_nothing(name: str) -> None:
    changed = recipe(*AUGMENTATIONS[name])
    prepared = preparation(training_transform(changed, NORMAL, changed.flip))
    order = Order(20, 4, 2, 2, seed=3)
    found = []
    for workers in (0, 2):
        feed = training_feed(pictures(), prepared, Chunks(order), workers, World(CPU))
        found.append([together(feed.start(epoch, 0))[0] for epoch in (0, 1, 0)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    first, second, again = found[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_feed_starts_at_any_step_and_each_process_has_its_share() -> None:
    prepared = preparation(training_transform(recipe("augment=3a"), NORMAL, 0.5))
    order = Order(20, 8, 2, 3, seed=3)
    whole = [batch.images for batch in training_feed(pictures(), prepared, Chunks(order), 0, World(CPU)).start(5, 0)]
    later = [batch.images for batch in training_feed(pictures(), prepared, Chunks(order), 0, World(CPU)).start(5, 1)]
    assert torch.equal(torch.stack(later), torch.stack(whole[4:]))
    for rank in range(2):
        chunks, world = Chunks(order, rank, 2), World(CPU, rank, 2)
        part = [batch.images for batch in training_feed(pictures(), prepared, chunks, 0, world).start(5, 0)]
        expected = [whole[place] for place in range(len(whole)) if place % 4 // 2 == rank]
        assert torch.equal(torch.stack(part), torch.stack(expected))


def test_repeated_images_are_augmented_anew_each_time() -> None:
    prepared = preparation(training_transform(recipe("augment=3a"), NORMAL, 0.5))
    feed = training_feed(pictures(), prepared, Chunks(Order(20, 6, 6, 3, seed=0)), 0, World(CPU))
    batch = next(feed.start(0, 0))
    assert batch.labels[0] == batch.labels[1] == batch.labels[2]
    assert len({image.numpy().tobytes() for image in batch.images}) == 6


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_tests_show_every_image_once_in_batches_of_one_size(processes: int, workers: int) -> None:
    source, prepared = pictures(20), preparation(eval_transform(12, 1.0, "nearest"))
    shares = [
        list(eval_batches(source, prepared, 3, workers, World(CPU, rank, processes))) for rank in range(processes)
    ]
    assert len({len(share) for share in shares}) == 1
    assert {len(batch.labels) for share in shares for batch in share} == {3}
    images, labels, _ = together(batch for share in shares for batch in share)
    counted = images[labels != FILLER]
    assert len(counted) == 20
    assert len({image.numpy().tobytes() for image in counted}) == 20


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "I;16"])
@pytest.mark.parametrize("normal", [NORMAL, Normalisation((0.5,), (0.25,))], ids=["colour", "grey"])
def test_images_have_the_channels_that_the_network_takes(mode: str, normal: Normalisation, tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": {"": 1}, "b": {"": 1}})
    if mode == "I;16":
        Image.fromarray(np.asarray(picture(0, "L")).astype(np.uint16) * 257).save(tmp_path / "a" / "0.png")
    else:
        picture(0, mode).save(tmp_path / "a" / "0.tif")
    prepared = preparation(eval_transform(12, 1.0, "nearest"), normal)
    images, labels, unreadable = together(eval_batches(Folder(tmp_path), prepared, 1, 0, World(CPU)))
    assert not unreadable
    assert images.shape[1:] == (len(normal.mean), 12, 12)
    assert labels.tolist() == sorted(labels.tolist())
    grey = np.asarray(picture(0, "L"))
    shown = images[len(labels) - 2] * torch.tensor(normal.std)[:, None, None] + torch.tensor(normal.mean)[:, None, None]
    if len(normal.mean) == 1 and mode in ("RGB", "L", "I;16"):
        np.testing.assert_allclose(shown[0] * 255, grey, atol=0.51)


def test_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"grey \(in_chans=1\) or in colour \(in_chans=3\), got in_chans=2"):
        Preparation(eval_transform(12, 1.0, "nearest"), 2, Normalisation((0.5, 0.5), (1.0, 1.0)), CPU, torch.float32)


def broken(tmp_path: Path, *names: str) -> Folder:
    image_folder(tmp_path, {"a": {"": 3}, "b": {"": 3}})
    for name in names:
        (tmp_path / name).write_bytes(b"text with an image's suffix")
    return Folder(tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
def test_in_place_of_an_unreadable_image_comes_the_next_one(workers: int, tmp_path: Path) -> None:
    source = broken(tmp_path, "a/1.png", "a/2.png")
    prepared = preparation(eval_transform(12, 1.0, "nearest"))
    feed = training_feed(source, prepared, Chunks(Order(6, 6, 6, 1, seed=0)), workers, World(CPU))
    (batch,) = feed.start(0, 0)
    assert sorted(batch.labels.tolist()) == [0, 1, 1, 1, 1, 1]
    assert {source.where(index) for index in batch.unreadable} == {str(tmp_path / "a" / f"{n}.png") for n in (1, 2)}


def test_in_a_test_it_counts_for_nothing(tmp_path: Path) -> None:
    source = broken(tmp_path, "b/2.png")
    images, labels, unreadable = together(
        eval_batches(source, preparation(eval_transform(12, 1.0, "nearest")), 3, 0, World(CPU))
    )
    assert len(images) == 6
    assert labels.tolist() == [0, 0, 0, 1, 1, FILLER]
    assert unreadable == [5]


@pytest.mark.parametrize("workers", [0, 1])
def test_data_without_readable_images_is_refused_in_a_line(workers: int, tmp_path: Path) -> None:
    source = broken(tmp_path, *(f"{name}/{n}.png" for name in "ab" for n in range(3)))
    feed = training_feed(
        source,
        preparation(eval_transform(12, 1.0, "nearest")),
        Chunks(Order(6, 6, 6, 1, seed=0)),
        workers,
        World(CPU),
    )
    with pytest.raises(
        UnreadableError, match=rf"^{TRIES} images in a row can't be read, from .*png on: are these images\?$"
    ):
        next(feed.start(0, 0))


def test_workers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, processes, expected in [(1, 1, 0), (2, 1, 1), (4, 1, 3), (64, 1, 8), (64, 8, 7), (8, 4, 1), (2, 4, 0)]:
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert default_workers() == expected
