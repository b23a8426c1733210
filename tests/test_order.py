"""Which images come when: for any number of processes, from any step on, and several times in a row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

from flopping.training.order import Chunks, Key, Order
from flopping.training.run import default_chunk


@st.composite
def orders(draw: st.DrawFn) -> Order:
    chunk, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    images = draw(st.integers(chunk * chunks, 60))
    return Order(images, chunk * chunks, chunk, draw(st.integers(1, 4)), draw(st.integers(0, 5)))


def steps_of(order: Order, processes: int, epoch: int = 0, first: int = 0) -> list[list[list[Key]]]:
    """The chunks of every step, as all processes take them together, in the order of processes."""
    parts = []
    for rank in range(processes):
        chunks = Chunks(order, rank, processes)
        chunks.start_at(epoch, first)
        found = list(chunks)
        assert len(found) == len(chunks)
        parts.append(found)
    each = [len(order.share(rank, processes)) for rank in range(processes)]
    return [
        [chunk for part, n in zip(parts, each, strict=True) for chunk in part[step * n : (step + 1) * n]]
        for step in range(order.steps - first)
    ]


@given(orders(), st.data())
def test_any_number_of_processes_takes_the_same_chunks_in_a_step(order: Order, data: st.DataObject) -> None:
    """Also one that doesn't share them evenly, or is larger than theirs."""
    processes = data.draw(st.integers(1, order.chunks + 3))
    assert steps_of(order, processes, epoch=3) == steps_of(order, 1, epoch=3)


@given(orders(), st.integers(1, 9))
def test_processes_have_as_many_turns_as_the_busiest_needs(order: Order, processes: int) -> None:
    every = [Chunks(order, rank, processes) for rank in range(processes)]
    assert {chunks.turns for chunks in every} == {max(len(chunks.mine) for chunks in every)}
    assert min(len(chunks.mine) for chunks in every) >= every[0].turns - 1
    assert all(chunks.share == order.chunks / processes for chunks in every)


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


@given(orders(), st.integers(0, 3))
def test_every_place_of_every_epoch_has_a_seed_of_its_own(order: Order, epoch: int) -> None:
    seeds = [seed for e in (epoch, epoch + 1) for step in steps_of(order, 1, e) for chunk in step for _, seed in chunk]
    assert len(set(seeds)) == len(seeds)
    assert 0 not in seeds  # the seed of what only fills a batch


def test_epochs_and_seeds_have_orders_of_their_own_and_all_images_come() -> None:
    order = Order(images=100, batch_size=10, chunk=5, repeats=1, seed=0)
    first, second = order.epoch(0), order.epoch(1)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first == Order(100, 20, 4, 1, seed=0).epoch(0)  # however it is cut
    assert first != Order(100, 10, 5, 1, seed=1).epoch(0)


def test_images_that_fill_no_batch_come_in_other_epochs() -> None:
    order = Order(images=7, batch_size=4, chunk=2, repeats=1, seed=0)
    assert {image for epoch in range(20) for image in order.epoch(epoch)} == set(range(7))


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_repeated_augmentation_means_what_it_does_in_timm(replicas: int) -> None:
    """timm deals the copies of an image to different processes; of a whole step they show the same images as often."""
    images, batch, repeats = 512, 32, 3
    order = Order(images, batch, batch // replicas, repeats, seed=0)
    samplers = [
        RepeatAugSampler(range(images), replicas, rank, shuffle=False, num_repeats=repeats) for rank in range(replicas)
    ]
    shares = [list(sampler) for sampler in samplers]
    ours = steps_of(order, replicas)
    names = {image: place for place, image in enumerate(dict.fromkeys(order.epoch(0)))}  # timm's is not shuffled
    assert sum(map(len, shares)) == order.steps * batch
    each = batch // replicas
    for step, chunks in enumerate(ours):
        theirs = [image for share in shares for image in share[step * each : (step + 1) * each]]
        assert sorted(names[image] for chunk in chunks for image, _ in chunk) == sorted(theirs)


def test_the_order_leaves_torchs_own_generator_alone() -> None:
    before = torch.get_rng_state()
    list(Chunks(Order(20, 4, 2, 1, seed=0)))
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="7 training images are less than one batch of 8: set batch_size lower"):
        Order(images=7, batch_size=8, chunk=2, repeats=1, seed=0)
    with pytest.raises(ValueError, match="a batch of 8 can't be cut into chunks of 3 images"):
        Order(images=8, batch_size=8, chunk=3, repeats=1, seed=0)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("most", [64, 256])
def test_a_default_chunk_leaves_few_processes_idle(most: int, even: bool) -> None:
    for batch in (8, 50, 96, 1024, 2048, 4096):
        for processes in range(1, 65):
            chunk = default_chunk(batch, processes, most, even)
            order = Order(batch, batch, chunk, 1, 0)
            turns = Chunks(order, 0, processes).turns * chunk * processes
            finest = 2 if even else 1
            best = Chunks(Order(batch, batch, finest, 1, 0), 0, processes).turns * finest * processes
            assert turns <= max(best, 1.1 * batch), (batch, processes)
            if batch % (finest * processes) == 0:
                assert turns == batch, "whoever can share evenly does"
