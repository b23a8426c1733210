"""Which images come when: for any number of ranks, from any step on, and several times in a row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

from flopping.data.order import Key, MicroBatchSampler, Order
from flopping.errors import UsageError
from flopping.training.run import default_micro_batch


@st.composite
def orders(draw: st.DrawFn) -> Order:
    size, number = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    images = draw(st.integers(size * number, 60))
    return Order(images, size * number, size, draw(st.integers(1, 4)), draw(st.integers(0, 5)))


def steps_of(order: Order, world_size: int, epoch: int = 0, first: int = 0) -> list[list[list[Key]]]:
    """The micro-batches of every step, as all ranks take them together, in the order of ranks."""
    parts = []
    for rank in range(world_size):
        sampler = MicroBatchSampler(order, rank, world_size)
        sampler.start_at(epoch, first)
        found = list(sampler)
        assert len(found) == len(sampler)
        parts.append(found)
    each = [len(order.assign(rank, world_size)) for rank in range(world_size)]
    return [
        [keys for part, n in zip(parts, each, strict=True) for keys in part[step * n : (step + 1) * n]]
        for step in range(order.steps - first)
    ]


@given(orders(), st.data())
def test_any_number_of_ranks_takes_the_same_micro_batches_in_a_step(order: Order, data: st.DataObject) -> None:
    """Also a number that doesn't divide that of micro-batches, or is larger."""
    world_size = data.draw(st.integers(1, order.micro_batches + 3))
    assert steps_of(order, world_size, epoch=3) == steps_of(order, 1, epoch=3)
    every = [MicroBatchSampler(order, rank, world_size) for rank in range(world_size)]
    numbers = [len(sampler.assigned) for sampler in every]
    assert {sampler.passes for sampler in every} == {max(numbers)}
    assert min(numbers) >= max(numbers) - 1
    assert all(sampler.mean_assigned == order.micro_batches / world_size for sampler in every)


@given(orders(), st.data())
def test_a_later_step_gives_what_it_gives_from_the_beginning(order: Order, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, order.steps))
    assert steps_of(order, 1, 2, first) == steps_of(order, 1, 2)[first:]


@given(orders())
def test_an_epoch_has_as_many_steps_with_repeats_and_shows_each_image_so_often_in_a_row(order: Order) -> None:
    images = order.epoch(1)
    assert len(images) == order.steps * order.batch_size == order.images // order.batch_size * order.batch_size
    rows = [images[start : start + order.repeats] for start in range(0, len(images), order.repeats)]
    assert all(len(set(row)) == 1 for row in rows)  # the last may be cut short
    shown = [row[0] for row in rows]
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(order.images))


@pytest.mark.parametrize(("images", "micro_batch"), [(7, 2), (8, 3)])
def test_what_cannot_be_cut_is_refused(images: int, micro_batch: int) -> None:
    with pytest.raises(UsageError, match="batch of 8"):
        Order(images, 8, micro_batch, repeats=1, seed=0)


@given(orders(), st.integers(0, 3))
def test_every_place_of_every_epoch_has_a_seed_of_its_own(order: Order, epoch: int) -> None:
    seeds = [seed for e in (epoch, epoch + 1) for step in steps_of(order, 1, e) for keys in step for _, seed in keys]
    assert len(set(seeds)) == len(seeds)
    assert 0 not in seeds  # the seed of what only fills a batch


def test_the_order_of_a_seed_never_changes() -> None:
    """Else an older run could not be resumed exactly."""
    sampler = MicroBatchSampler(Order(images=7, batch_size=4, micro_batch=2, repeats=1, seed=5))
    sampler.start_at(3)
    assert list(sampler) == [
        [(0, 13805478646761754), (5, 26261511657250307)],
        [(1, 70901601610592844), (2, 68573858944314513)],
    ]


def test_epochs_and_seeds_have_orders_of_their_own_and_all_images_come() -> None:
    order = Order(images=100, batch_size=10, micro_batch=5, repeats=1, seed=0)
    before = torch.get_rng_state()
    first, second = order.epoch(0), order.epoch(1)
    assert torch.equal(before, torch.get_rng_state())
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first == Order(100, 20, 4, 1, seed=0).epoch(0)  # however it is cut
    assert first != Order(100, 10, 5, 1, seed=1).epoch(0)
    uneven = Order(images=7, batch_size=4, micro_batch=2, repeats=1, seed=0)
    assert {image for epoch in range(20) for image in uneven.epoch(epoch)} == set(range(7))


@pytest.mark.parametrize("replicas", [1, 4])
def test_repeated_augmentation_means_what_it_does_in_timm(replicas: int) -> None:
    """timm deals the copies of an image to different ranks; of a whole step they show the same images as often."""
    images, batch, repeats = 512, 32, 3
    order = Order(images, batch, batch // replicas, repeats, seed=0)
    samplers = [
        RepeatAugSampler(range(images), replicas, rank, shuffle=False, num_repeats=repeats) for rank in range(replicas)
    ]
    shares = [list(sampler) for sampler in samplers]
    names = {image: place for place, image in enumerate(dict.fromkeys(order.epoch(0)))}  # timm's is not shuffled
    assert sum(map(len, shares)) == order.steps * batch
    each = batch // replicas
    for step, micro_batches in enumerate(steps_of(order, replicas)):
        theirs = [image for share in shares for image in share[step * each : (step + 1) * each]]
        assert sorted(names[image] for keys in micro_batches for image, _ in keys) == sorted(theirs)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("most", [64, 256])
def test_a_default_micro_batch_leaves_few_ranks_idle(most: int, even: bool) -> None:
    for batch in (8, 50, 96, 1024, 4096):
        for ranks in (1, 2, 3, 5, 8, 20, 64):
            size = default_micro_batch(batch, ranks, most, even)
            passed = MicroBatchSampler(Order(batch, batch, size, 1, 0), 0, ranks).passes * size * ranks
            finest = 2 if even else 1
            best = MicroBatchSampler(Order(batch, batch, finest, 1, 0), 0, ranks).passes * finest * ranks
            assert passed <= max(best, 1.1 * batch), (batch, ranks)
            if batch % (finest * ranks) == 0:
                assert passed == batch, "whoever can share evenly does"
