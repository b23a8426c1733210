"""The loop: steps, tests, checkpoints, and every way in which it can end."""

from __future__ import annotations

import math
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from flopping.training.checkpoint import Checkpoint, Keeper
from flopping.training.evaluate import Accuracy, accuracy
from flopping.training.feeds import agreed, eval_batches, training_feed, unbroken, worded
from flopping.training.images import Images
from flopping.training.job import Job, Machine
from flopping.training.journal import Journal
from flopping.training.learner import Learner
from flopping.training.loader import (
    Preparation,
    Timed,
    Transform,
    eval_transform,
    lost_workers,
    training_transform,
)
from flopping.training.networks import build, description, ignores_mirroring, load_weights, normalisation, weights_of
from flopping.training.order import Chunks, Order
from flopping.training.processes import World
from flopping.training.progress import Pace, Progress, Window
from flopping.training.stops import AskedError, InterruptedRunError, Signals, StoppedError
from flopping.training.unreadable import Unreadable
from flopping.whole import remedy
from flopping.wording import counted

MOST_STEPS = {"cpu": 1, "cuda": 10}
"""A GPU is not waited for after every step, but what its steps gave is looked at after so many at the latest."""


class Trainer:
    """One run, in one of the processes that take part."""

    def __init__(
        self,
        job: Job,
        machine: Machine,
        folder: Path,
        world: World,
        train: Images,
        test: Images,
        console: Console,
        signals: Signals | None = None,
    ) -> None:
        self.job, self.machine, self.folder, self.world, self.console = job, machine, folder, world, console
        self.recipe = recipe = job.recipe
        self.train, self.test = train, test
        assert job.chunk is not None
        with world.together():
            self.order = Order(len(train), recipe.batch_size, job.chunk, recipe.repeats, recipe.seed)
            self.chunks = Chunks(self.order, world.rank, world.size)
            self.steps = self.order.steps * recipe.epochs
            model = build(recipe, job.model, len(train.classes))
            if job.init is not None:
                load_weights(model, weights_of(Path(job.init)), repr(job.init), new_head=job.new_head)
        self.learner = Learner(model, recipe, self.chunks, world, shard=machine.shard, compiled=machine.compile)
        self.model, self.dtype = model, self.learner.dtype
        self.flip = 0.0 if ignores_mirroring(model) else recipe.flip
        self.normal = normalisation(recipe, model)
        transform = training_transform(recipe, self.normal, self.flip)
        self.feed = training_feed(train, self._preparation(transform), self.chunks, machine.workers, world)
        self.config = description(model, recipe, self.normal, train.classes)
        self.keeper = Keeper(folder)
        self.progress = Progress()
        self.unreadable = Unreadable(train, test, world, machine.unreadable_share)
        self.problem: str | None = None
        """Why this process can't go on, if only it knows yet."""
        self.signals = signals or Signals(speaks=world.is_main, launched=world.launched)
        """Listened to by whoever made them; else nobody can ask."""
        self.window = Window()
        self.pace = Pace(MOST_STEPS[world.device.type], (machine.log_steps, machine.save_steps))
        self.is_warm = False
        self.saved_at = monotonic()

    # -- images

    def _preparation(self, transform: Transform) -> Preparation:
        return Preparation(transform, self.recipe.in_chans, self.normal, self.world.device, self.dtype)

    # -- the whole run

    def run(self) -> Accuracy:
        """Train to the end, from where the run stands, and test."""
        self.model.train()
        progress = self.progress
        with (
            self.world.in_touch(self._last_good),
            lost_workers(self.machine.workers, self._last_good, alone=self.world.size > 1),
            Journal(
                self.folder, self.console, self.steps, progress.step, progress.events, speaks=self.world.is_main
            ) as self.journal,
        ):
            self._introduce()
            self.signals.doing = "ending the step and saving"
            result = None
            while progress.epochs < self.recipe.epochs:
                result = self._epoch()
            try:
                result = result or self._test()
            except AskedError:
                raise self._interrupted(self.keeper.place(progress.step)) from None
            self._end(result)
            self._give_up()
        return result

    def _epoch(self) -> Accuracy | None:
        epoch = self.progress.epochs
        first = self.progress.step - epoch * self.order.steps
        batches = worded(self.feed.start(epoch, first), self.machine.workers, self._last_good)
        batches = Timed(batches if self.world.size == 1 else unbroken(batches, self.learner.blank, self._cannot))
        noted = self.unreadable.noted(batches)
        losses: list[Tensor] = []
        started = monotonic()
        for step in range(first, self.order.steps):
            losses.append(self.learner.step(epoch, step, noted))
            asked = self.world.size == 1 and self.signals.asked
            if asked or step + 1 == self.order.steps or self.pace.is_due(len(losses), self.progress.step):
                numbers = torch.stack(losses).tolist()
                losses = []
                self._look(numbers, monotonic() - started, batches.seconds)
                started, batches.seconds = monotonic(), 0.0  # what a checkpoint took is no part of training
        return self._end_of_epoch(epoch)

    def _look(self, losses: list[float], seconds: float, loading: float) -> None:
        """What the last steps gave; whether to log, to save, or to stop."""
        world, progress = self.world, self.progress
        save = world.is_main and self._save_is_due(len(losses))
        flags = (self.problem, self.unreadable.found, self.signals.asked, save, self.learner.overflows)
        *sums, took, problem, bad, stop, save_all, overflow = world.sum(
            [*losses, seconds, *(float(bool(flag)) for flag in flags)]
        )
        self.pace.set(took / world.size / len(losses))
        if problem:
            self._give_up()
        means = [value / world.size for value in sums]
        for offset, mean in enumerate(means, 1):
            if not math.isfinite(mean):
                raise StoppedError(self._diverged(f"the loss is {mean} in step {progress.step + offset}"))
        if overflow:
            what = f"gradients overflow float16 at any scale: step {progress.step + len(means)} and those before it"
            raise StoppedError(self._diverged(f"{what} were left out"))
        images = len(means) * self.order.batch_size
        progress.add(means, images)
        if self.is_warm:
            progress.timed_images += images
            progress.timed_seconds += seconds
            self.window.images += images
            self.window.seconds += seconds
            self.window.waiting += loading
        self.is_warm = True
        if bad:
            self.unreadable.share_out()
        if progress.step // self.machine.log_steps > (progress.step - len(means)) // self.machine.log_steps:
            self._log(
                "step",
                epoch=progress.step / self.order.steps,
                loss=progress.loss_sum / progress.losses,
                lr=self.learner.lr,
                images_per_s=self.window.speed,
                waiting=self.window.waiting_share,
            )
            progress.loss_sum, progress.losses = 0.0, 0
            self.window = Window()
        self.journal.progress(progress.step, f"loss {means[-1]:.3f}, {progress.speed:.0f} images/s")
        if stop:
            raise self._interrupted(self.save(None))
        if save_all and progress.step % self.order.steps:
            self.save(None)

    def _save_is_due(self, steps: int) -> bool:
        every, step = self.machine.save_steps, self.progress.step
        if every is not None and (step + steps) // every > step // every:
            return True
        return monotonic() - self.saved_at > 60 * self.machine.save_minutes

    def _end_of_epoch(self, epoch: int) -> Accuracy | None:
        progress = self.progress
        self._require_finite()
        tested = (epoch + 1) % self.machine.test_epochs == 0 or progress.step == self.steps
        try:
            result = self._test() if tested else None
            average = self._test_average() if tested and self.learner.average is not None else None
        except AskedError:  # nothing has changed since the last step: the test comes once more after resuming
            raise self._interrupted(self.save(None)) from None
        loss, progress.epoch_loss = progress.epoch_loss / self.order.steps, 0.0
        if result is not None:
            self._log(
                "epoch",
                epoch=epoch + 1,
                train_loss=loss,
                seconds=progress.seconds,
                **result.as_dict(),
                **({} if average is None else {f"ema_{name}": value for name, value in average.as_dict().items()}),
            )
            more = "" if average is None else f" (EMA {average.top1:.2f} %)"
            self.journal.say(
                f"epoch {epoch + 1:3d} of {self.recipe.epochs}: loss {loss:.4f}, top-1 {result.top1:.2f} %{more},"
                f" {progress.speed:.0f} images/s"
            )
        progress.epochs += 1
        checkpoint = self.save(None if result is None else result.top1)
        (stop,) = self.world.sum([float(self.signals.asked)])
        if stop and progress.step < self.steps:
            raise self._interrupted(checkpoint)
        return result

    # -- testing

    def _test(self) -> Accuracy:
        """Accuracy on the test images; with mirrored ones at the end of the run."""
        self.model.eval()
        self.unreadable.tests.clear()
        transform = eval_transform(self.recipe.img_size, self.recipe.test_crop, self.recipe.interpolation)
        workers = self.machine.workers
        batches = eval_batches(self.test, self._preparation(transform), self.machine.test_batch, workers, self.world)
        batches = worded(batches, workers, self._last_good)
        try:
            return accuracy(
                self.model,
                agreed(batches, self.world, lambda: self.signals.asked),
                self.world,
                self.learner.precision,
                dtype=self.dtype,
                mirror=self.progress.step == self.steps,
                each=lambda batch: self.unreadable.tests.update(batch.unreadable),
            )
        finally:
            self.learner.replica.settle()
            self.model.train()

    def _test_average(self) -> Accuracy:
        """The same for the averaged weights."""
        with self.learner.averaged():
            return self._test()

    # -- keeping

    def save(self, score: float | None) -> Path:
        """A checkpoint of finite numbers; all processes take part, the main one writes."""
        self._require_finite()
        main = self.world.is_main
        self.progress.events = self.journal.events
        weights, average = self.learner.weights(main)
        state = {
            **self.learner.state(main),
            "progress": vars(self.progress).copy(),
            "unreadable": sorted(self.unreadable.known),
            "images": len(self.train),
        }
        problem = None
        path = self.folder
        if main:
            try:
                path = self.keeper.write(self.progress.step, score, self.config, weights, average, state)
            except OSError as error:
                problem = f"{error.strerror}. {self._last_good()}{remedy(error)}, then go on with --resume"
        problem = self.world.agree(problem)
        if problem is not None:
            raise StoppedError(problem)
        self.saved_at = monotonic()
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint was written. All processes read it."""
        with self.world.together():
            state, weights, average = checkpoint.training(), checkpoint.weights(), checkpoint.average()
        what = f"checkpoint {str(checkpoint.folder)!r}"
        if state.get("images") != len(self.train):
            raise ValueError(
                f"{what} was written in a run on {state.get('images')} training images, and {self.job.data!r} has"
                f" {len(self.train)} now: bring them back, or start another run (--init takes weights along)"
            )
        try:
            self.learner.restore(weights, average, state)
            self.progress = Progress(**state["progress"])
            self.unreadable.known = set(state["unreadable"])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            raise ValueError(f"{what} is not of this run: {reason} ({self.job.model})") from error

    # -- what can go wrong

    def _last_good(self) -> str:
        if not self.world.is_main:
            return ""
        good = self.keeper.found()
        return f"The last good checkpoint is {str(good[0].folder)!r}. " if good else "There is no checkpoint yet. "

    def _cannot(self, problem: str) -> None:
        self.problem = problem

    def _give_up(self) -> None:
        """Stop, if any process can't go on."""
        problem = self.world.agree(self.problem)
        if problem is not None:
            raise StoppedError(problem)

    def _interrupted(self, checkpoint: Path) -> InterruptedRunError:
        return InterruptedRunError(
            f"stopped after step {self.progress.step} of {self.steps}; all is kept in {str(checkpoint)!r}"
        )

    def _diverged(self, what: str) -> str:
        other = ", or precision=bfloat16" if self.recipe.precision == "float16" else ""
        return (
            f"{what}. {self._last_good()}Start again in another folder with a lower lr (it was {self.recipe.lr:g}),"
            f" longer warm-up, or clip_grad=1.0{other}; --init takes weights along"
        )

    def _require_finite(self) -> None:
        """Stop if a step whose own loss was finite has left NaN or an infinity in what would be saved."""
        problem = self.world.agree(self.learner.not_finite())
        if problem is not None:
            raise StoppedError(self._diverged(f"NaN or infinite values in {problem} after step {self.progress.step}"))

    def _end(self, result: Accuracy) -> None:
        """The last event of a run, and a word on images that could not be read."""
        warnings, places = self.unreadable.summary()
        for warning in warnings:
            self.journal.warn(warning)
        self._log("end", result=result.as_dict(), unreadable=places)

    def _log(self, kind: str, **values: Any) -> None:
        """An event. If it can't be written, the process that writes doesn't stop alone: others would wait for it."""
        try:
            self.journal.write(kind, self.progress.step, **values)
        except OSError as error:
            if self.world.size == 1:
                raise
            self._cannot(f"{error.strerror}. Free some space, then go on with --resume")

    def _introduce(self) -> None:
        recipe, order = self.recipe, self.order
        parameters = sum(p.numel() for p in self.model.parameters())
        each = f"{order.chunks} x {order.chunk}" + (f" over {self.world.size} processes" if self.world.size > 1 else "")
        idle = self.chunks.turns * self.world.size - order.chunks
        each += f", unevenly: {idle} of {self.chunks.turns * self.world.size} turns are idle" if idle else ""
        self.journal.say(
            f"{self.job.model}: {parameters / 1e6:.2f} M parameters; {order.images} training and {len(self.test)} test"
            f" images of {len(self.train.classes)} classes; {counted(recipe.epochs, 'epoch')} of"
            f" {counted(order.steps, 'step')}; batch"
            f" {order.batch_size} ({each})"
        )
        if recipe.flip and not self.flip:
            mixed = " before they are mixed" if recipe.mixes else ""
            self.journal.say(
                "Mirroring an image changes neither loss nor gradients of this network, so images are not mirrored at"
                f" random{mixed}."
            )
        if self.progress.step:
            self.journal.say(f"Resumed after step {self.progress.step} of {self.steps}.")
