"""The training loop: steps, tests, checkpoints, and every way in which a run ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from flopping.checkpoints.weight_files import CONFIG
from flopping.data.batches import (
    DataSource,
    TimedBatches,
    WorkerLostError,
    detect_lost_workers,
    read_evaluation_batches,
)
from flopping.data.images import ImageDataset
from flopping.data.order import MicroBatchSampler, Order
from flopping.errors import (
    PeerLostError,
    RunInterruptedError,
    RunStoppedError,
    StopRequested,
    UsageError,
    as_usage_error,
    pluralize,
)
from flopping.files import suggest_fix
from flopping.groups import trivial
from flopping.training.checkpoint import Checkpoint, CheckpointManager
from flopping.training.distributed import World
from flopping.training.evaluate import Accuracy, UnreadableImages, accuracy, pad_after_read_error, stop_on_all_ranks
from flopping.training.initial_weights import create_networks
from flopping.training.job import Job, RunOptions
from flopping.training.learner import Learner
from flopping.training.networks import create_config, group_to_test
from flopping.training.preprocessing import Preprocessing
from flopping.training.run_log import LogInterval, Progress, RunLog, SyncInterval
from flopping.training.signals import StopSignals

MAX_STEPS_PER_SYNC = {"cpu": 1, "cuda": 10}
"""The largest number of steps between two synchronisations of the loss, for which a GPU has to be waited for."""


class Trainer:
    """One run, on one of its ranks."""

    def __init__(
        self,
        job: Job,
        options: RunOptions,
        folder: Path,
        world: World,
        train: ImageDataset,
        validation: ImageDataset,
        console: Console,
        signals: StopSignals | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """If it `resumes`, weights come from the checkpoint that `restore` gets: `--init` is not read, and no filters
        are whitened.
        """
        self.job, self.options, self.folder, self.world, self.console = job, options, folder, world, console
        self.recipe = recipe = job.recipe
        self.train, self.validation = train, validation
        assert job.micro_batch is not None
        with world.raise_on_all_ranks():
            self.order = Order(len(train), recipe.batch_size, job.micro_batch, recipe.repeats, recipe.seed)
            self.sampler = MicroBatchSampler(self.order, world.rank, world.size)
            self.steps = self.order.steps * recipe.epochs
            model, source = create_networks(job, train, world, console, shard=options.shard, resumes=resumes)
            self.test_group = group_to_test(model, options.group, (recipe.img_size, recipe.img_size))
        compiled, shard = options.compile, options.shard
        self.learner = Learner(model, recipe, self.sampler, world, shard=shard, compiled=compiled, source=source)
        self.model, self.dtype = model, self.learner.dtype
        self.preprocessing = Preprocessing(recipe, model, world.device, self.dtype)
        self.source = DataSource(train, self.preprocessing.for_training(), self.sampler, options.workers)
        self.config = create_config(model, job.model, recipe, self.preprocessing.normalisation, train.classes)
        self.manager = CheckpointManager(folder)
        self.progress = Progress()
        self.unreadable = UnreadableImages(train, validation, world, options.unreadable_share)
        self.problem: str | None = None
        """Why this rank can't go on, until all ranks know."""
        self.signals = signals or StopSignals(verbose=world.is_main, launched=world.launched)
        self.interval = LogInterval()
        self.sync = SyncInterval(MAX_STEPS_PER_SYNC[world.device.type], (options.log_steps, options.save_steps))
        self.is_warm = False
        self.saved_at = monotonic()

    def run(self) -> Accuracy:
        """Train from the last checkpoint, or from the beginning, to the end, and test."""
        self.model.train()
        progress = self.progress
        with (
            self.world.detect_lost_peers(lambda: f"{self._name_last_checkpoint()}Go on with --resume"),
            self._detect_lost_workers(),
            RunLog(
                self.folder, self.console, self.steps, progress.step, progress.events, enabled=self.world.is_main
            ) as self.log,
        ):
            self._announce()
            self.signals.action = "ending the step and saving"
            result = None
            while progress.epochs < self.recipe.epochs:
                result = self._epoch()
            try:
                result = result or self._test()
            except StopRequested:
                raise self._interrupted(self.manager.step_folder(progress.step)) from None
            self._finish(result)
            self._stop_on_problem()
        return result

    def _epoch(self) -> Accuracy | None:
        epoch = self.progress.epochs
        first = self.progress.step - epoch * self.order.steps
        batches = self.source.start(epoch, first)
        if self.world.size > 1:
            batches = pad_after_read_error(batches, self.learner.padding_batch, self._set_problem)
        timed = TimedBatches(batches)
        recorded = self.unreadable.record(timed)
        losses: list[Tensor] = []
        started = monotonic()
        for step in range(first, self.order.steps):
            losses.append(self.learner.step(epoch, step, recorded))
            stop_requested = self.world.size == 1 and self.signals.requested
            if stop_requested or step + 1 == self.order.steps or self.sync.is_due(len(losses), self.progress.step):
                numbers = torch.stack(losses).tolist()
                losses = []
                self._process(numbers, monotonic() - started, timed.seconds)
                started, timed.seconds = monotonic(), 0.0  # without the time of a checkpoint
        return self._finish_epoch(epoch)

    def _process(self, losses: list[float], seconds: float, loading: float) -> None:
        """Share the losses of the last steps with all ranks; log, save or stop if it is time."""
        world, progress = self.world, self.progress
        save = world.is_main and self._save_is_due(len(losses))
        flags = (self.problem, self.unreadable.found, self.signals.requested, save, self.learner.overflows)
        *sums, took, problem, bad, stop, save_all, overflow = world.all_reduce(
            [*losses, seconds, *(float(bool(flag)) for flag in flags)]
        )
        self.sync.set(took / world.size / len(losses))
        if problem:
            self._stop_on_problem()
        means = [value / world.size for value in sums]
        for offset, mean in enumerate(means, 1):
            if not math.isfinite(mean):
                raise RunStoppedError(self._diverged(f"the loss is {mean} in step {progress.step + offset}"))
        if overflow:
            what = f"gradients overflow float16 at any scale: step {progress.step + len(means)} and those before it"
            raise RunStoppedError(self._diverged(f"{what} were left out"))
        images = len(means) * self.order.batch_size
        progress.add(means, images)
        if self.is_warm:
            progress.timed_images += images
            progress.timed_seconds += seconds
            self.interval.images += images
            self.interval.seconds += seconds
            self.interval.waiting += loading
        self.is_warm = True
        if bad:
            self.unreadable.gather()
        if progress.step // self.options.log_steps > (progress.step - len(means)) // self.options.log_steps:
            interval = self.interval
            self._log(
                "step",
                epoch=progress.step / self.order.steps,
                loss=progress.loss_sum / progress.losses,
                lr=max(float(group["lr"]) for group in self.learner.optimizer.param_groups),
                images_per_s=interval.images / interval.seconds if interval.seconds else None,
                waiting=interval.waiting / interval.seconds if interval.seconds else None,
            )
            progress.loss_sum, progress.losses = 0.0, 0
            self.interval = LogInterval()
        self.log.update_bar(progress.step, f"loss {means[-1]:.3f}{progress.describe_speed()}")
        if stop or (save_all and progress.step % self.order.steps):
            self._require_finite()
            checkpoint = self.save(None)
            if stop:
                raise self._interrupted(checkpoint)

    def _save_is_due(self, steps: int) -> bool:
        every, step = self.options.save_steps, self.progress.step
        if every is not None and (step + steps) // every > step // every:
            return True
        return monotonic() - self.saved_at > 60 * self.options.save_minutes

    def _finish_epoch(self, epoch: int) -> Accuracy | None:
        progress = self.progress
        self._require_finite()
        tested = (epoch + 1) % self.options.test_epochs == 0 or progress.step == self.steps
        try:
            result = self._test() if tested else None
            average = None
            if tested and self.learner.average is not None:
                with self.learner.use_average():
                    average = self._test()
        except StopRequested:  # the test is repeated after resuming
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
            self.log.say(
                f"epoch {epoch + 1:3d} of {self.recipe.epochs}: loss {loss:.4f}, top-1 {result.top1:.2f} %{more}"
                f"{progress.describe_speed()}"
            )
        progress.epochs += 1
        checkpoint = self.save(None if result is None else result.top1)
        (stop,) = self.world.all_reduce([float(self.signals.requested)])
        if stop and progress.step < self.steps:
            raise self._interrupted(checkpoint)
        return result

    def _test(self) -> Accuracy:
        """Accuracy on the validation images; at the end of the run also moved by each element of the group."""
        self.model.eval()
        self.unreadable.tests.clear()
        preparation, world = self.preprocessing.for_testing(), self.world
        batch_size, workers = self.options.test_batch, self.options.workers
        batches = read_evaluation_batches(self.validation, preparation, batch_size, workers, world.rank, world.size)
        try:
            return accuracy(
                self.model,
                stop_on_all_ranks(batches, self.world, lambda: self.signals.requested),
                self.world,
                self.learner.autocast,
                dtype=self.dtype,
                group=self.test_group if self.progress.step == self.steps else trivial,
                on_batch=lambda batch: self.unreadable.tests.update(batch.unreadable),
            )
        finally:
            self.learner.parallel.reshard()
            self.model.train()

    def save(self, score: float | None) -> Path:
        """Save a checkpoint, after `_require_finite` and maybe a test. All ranks take part; rank 0 writes."""
        self.progress.events = self.log.events
        progress = {
            "progress": vars(self.progress).copy(),
            "unreadable": sorted(self.unreadable.known),
            "images": len(self.train),
        }
        parts = chain([(CONFIG, self.config)], self.learner.gather(progress))
        problem: Exception | None = None
        path = self.folder
        if self.world.is_main:
            try:
                path = self.manager.save(self.progress.step, score, parts)
            except Exception as error:
                problem = error
        else:
            deque(parts, maxlen=0)  # takes part in gathering
        with self.world.raise_on_all_ranks():
            if isinstance(problem, OSError):
                then = f"{self._name_last_checkpoint()}{suggest_fix(problem)}, then go on with --resume"
                raise RunStoppedError(f"{problem.strerror}. {then}") from problem
            if problem is not None:
                raise problem
        self.saved_at = monotonic()
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Only rank 0 reads it."""
        what = f"checkpoint {str(checkpoint.folder)!r}"
        with self.world.raise_on_all_ranks():
            state = checkpoint.training() if self.world.is_main else {}
            if self.world.is_main and state.get("images") != len(self.train):
                raise UsageError(
                    f"{what} was written in a run on {state.get('images')} training images, and {self.job.data!r} has"
                    f" {len(self.train)} now: bring them back, or start another run (--init takes weights along)"
                )
        with as_usage_error(UsageError, context=f"{what} is not of this run ({self.job.model})"):
            self.learner.restore(checkpoint, state)
        state = self.world.broadcast_object({key: state[key] for key in ("progress", "unreadable") if key in state})
        self.progress = Progress(**state["progress"])
        self.unreadable.known = set(state["unreadable"])

    def _name_last_checkpoint(self) -> str:
        if not self.world.is_main:
            return ""
        good = self.manager.checkpoints()
        return f"The last good checkpoint is {str(good[0].folder)!r}. " if good else "There is no checkpoint yet. "

    @contextmanager
    def _detect_lost_workers(self) -> Iterator[None]:
        """Within it, a worker process that is killed stops the run. Other ranks, which wait for this one, report it."""
        try:
            with detect_lost_workers(self.options.workers):
                yield
        except WorkerLostError as error:
            kind = PeerLostError if self.world.size > 1 else RunStoppedError
            raise kind(f"{error}. {self._name_last_checkpoint()}Go on with --resume") from error

    def _set_problem(self, problem: str) -> None:
        self.problem = problem

    def _stop_on_problem(self) -> None:
        problem = self.world.first_problem(self.problem)
        if problem is not None:
            raise RunStoppedError(problem)

    def _interrupted(self, checkpoint: Path) -> RunInterruptedError:
        return RunInterruptedError(
            f"stopped after step {self.progress.step} of {self.steps}; all is kept in {str(checkpoint)!r}"
        )

    def _diverged(self, what: str) -> str:
        other = ", or precision=bfloat16" if self.recipe.precision == "float16" else ""
        return (
            f"{what}. {self._name_last_checkpoint()}Start again in another folder with a lower lr (it was"
            f" {self.recipe.lr:g}), longer warm-up, or clip_grad=1.0{other}; --init takes weights along"
        )

    def _require_finite(self) -> None:
        """Stop if a step whose own loss was finite has left NaN or an infinity in what would be saved."""
        problem = self.world.first_problem(self.learner.find_non_finite())
        if problem is not None:
            raise RunStoppedError(
                self._diverged(f"NaN or infinite values in {problem} after step {self.progress.step}")
            )

    def _finish(self, result: Accuracy) -> None:
        """Log the result, and warn of images that could not be read."""
        warnings, places = self.unreadable.summarize()
        for warning in warnings:
            self.log.warn(warning)
        self._log("end", result=result.as_dict(), unreadable=places)

    def _log(self, kind: str, **values: Any) -> None:
        """Log an event. If it can't be written, rank 0 doesn't stop alone: the others would wait for it."""
        try:
            self.log.write(kind, self.progress.step, **values)
        except OSError as error:
            if self.world.size == 1:
                raise
            self._set_problem(f"{error.strerror}. {suggest_fix(error)}, then go on with --resume")

    def _announce(self) -> None:
        recipe, order = self.recipe, self.order
        parameters = sum(p.numel() for p in self.model.parameters())
        each = f"{order.micro_batches} x {order.micro_batch}" + (
            f" over {self.world.size} processes" if self.world.size > 1 else ""
        )
        passes = self.sampler.passes * self.world.size
        idle = passes - order.micro_batches
        each += f", unevenly: {idle} of {passes} turns are idle" if idle else ""
        rest = order.images - order.steps * order.batch_size if order.repeats == 1 else 0
        left_out = f"; every epoch leaves out {pluralize(rest, 'image')}, chosen at random" if rest else ""
        self.log.say(
            f"{self.job.model}: {parameters / 1e6:.2f} M parameters; {order.images} training and"
            f" {len(self.validation)} validation images of {len(self.train.classes)} classes;"
            f" {pluralize(recipe.epochs, 'epoch')} of {pluralize(order.steps, 'step')}; batch {order.batch_size}"
            f" ({each}){left_out}"
        )
        for note in self.preprocessing.describe_left_out():
            self.log.say(note)
        if self.progress.step:
            self.log.say(f"Resumed after step {self.progress.step} of {self.steps}.")
        if self.options.compile:
            self.log.say("The first step compiles the network, for a minute or two; --no-compile leaves that out.")
