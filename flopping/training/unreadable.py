"""Images of a run that could not be read: what each process finds, what all know, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape

from flopping.training.images import Images
from flopping.training.loader import Batch
from flopping.training.processes import World
from flopping.training.stops import StoppedError
from flopping.wording import counted, some


class Unreadable:
    """Counted and listed; a run goes on without them, unless they are more than a share of the training images."""

    def __init__(self, train: Images, test: Images, world: World, share: float) -> None:
        self.train, self.test, self.world, self.share = train, test, world, share
        self.known: set[int] = set()
        """Training images that could not be read, in any process."""
        self.found: set[int] = set()
        """Those that only this process knows of yet."""
        self.tests: set[int] = set()
        """Those of the last test that this process could not read."""

    def noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches for training, of whose unreadable images this process takes note."""
        for batch in batches:
            self.found.update(batch.unreadable)
            yield batch

    def share_out(self) -> None:
        """Let all processes know what one of them has found; stop if it is too much."""
        self.known |= set(self.world.lists(sorted(self.found)))
        self.found.clear()
        if len(self.known) > self.share * len(self.train):
            raise StoppedError(
                f"{len(self.known)} of {len(self.train)} training images can't be read, more than"
                f" --unreadable-share {self.share:g} allows: {some(_places(self.train, self.known))}. Replace them by"
                " good ones and go on with --resume, or allow more: with --unreadable-share 1 a run does without them,"
                " and lists all at its end"
            )

    def summary(self) -> tuple[list[str], list[str]]:
        """At the end of a run: warnings, and where all of them lie. All processes take part."""
        tests = set(self.world.lists(sorted(self.tests)))
        warnings, places = [], []
        for source, indices, kind, meanwhile in (
            (self.train, self.known, "training image", "others came instead"),
            (self.test, tests, "test image", "left out"),
        ):
            here = _places(source, indices)
            places += here
            if here:
                warnings.append(
                    f"[yellow]{counted(len(here), kind)} could not be read[/yellow], {meanwhile}:"
                    f" {escape(some(here))}. Put good images there before the next run."
                )
        return warnings, places


def _places(source: Images, indices: set[int]) -> list[str]:
    return [source.where(index) for index in sorted(indices)]
