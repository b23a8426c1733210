"""What learns: a network with its optimiser and the average of its weights, in one of the processes that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from flopping.training.learning import loss_function, mixing, optimiser, schedule
from flopping.training.loader import Batch
from flopping.training.optimiser_state import fill_optimiser_, optimiser_state
from flopping.training.order import Chunks
from flopping.training.processes import Replica, World, fill_, not_finite, whole_state
from flopping.training.randomness import derived, reseed
from flopping.training.recipe import Recipe

LEAST_SCALE = 2.0**-14
"""The smallest scale of losses in float16. Gradients that still overflow are above 1e9, or no numbers at all."""


class Learner:
    """A network that learns by a recipe, chunk by chunk."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, chunks: Chunks, world: World, *, shard: bool, compiled: bool
    ) -> None:
        self.recipe, self.chunks, self.world, self.model = recipe, chunks, world, model
        self.dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        model.to(world.device, self.dtype)
        self.average = ModelEmaV3(model, decay=recipe.ema) if recipe.ema is not None else None
        self.replica = Replica(model, world, shard=shard, compiled=compiled)
        if self.average is not None and shard:
            Replica(self.average.module, world, shard=True, compiled=False)
        self.optimizer = optimiser(model, recipe)
        self.schedule = schedule(self.optimizer, recipe, chunks.order.steps)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "float16")
        self.mix = mixing(recipe, int(model.num_classes))  # type: ignore[arg-type]
        self.loss = loss_function(recipe).to(world.device)

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def precision(self) -> AbstractContextManager[object]:
        """The arithmetic of the forward pass."""
        if self.recipe.precision in ("float32", "float64"):
            return nullcontext()
        return torch.autocast(self.world.device.type, getattr(torch, self.recipe.precision))

    def step(self, epoch: int, step: int, batches: Iterator[Batch]) -> Tensor:
        """One step of the optimiser; gives this process's part of the loss, whose mean over all is that of the step."""
        self.optimizer.zero_grad(set_to_none=True)
        mine, turns, share = self.chunks.mine, self.chunks.turns, self.chunks.share
        total = torch.zeros((), device=self.world.device, dtype=self.dtype)
        for chunk in range(mine.start, mine.start + turns):
            is_mine = chunk in mine  # else a turn without images: others have one more, and wait for this process
            batch = next(batches) if is_mine else self.blank()
            images = batch.images.to(self.world.device, self.dtype, non_blocking=True)
            targets = batch.labels.to(self.world.device, non_blocking=True)
            reseed(derived(self.recipe.seed, "chunk", epoch, step, chunk))  # for mixing and for what is dropped
            if self.mix is not None:
                images, targets = self.mix(images, targets)
            with self.replica.gradients(exchanged=chunk == mine.start + turns - 1):
                with self.precision():
                    logits = self.replica(images)
                # the loss in full precision; a mixed target has the precision of the logits
                logits = logits.to(self.dtype)
                loss = self.loss(logits, targets.to(self.dtype) if targets.is_floating_point() else targets)
                # gradients are averaged over processes, so that a chunk counts the same whoever has it
                self.scaler.scale(loss / share if is_mine else 0 * loss).backward()
            if is_mine:
                total += loss.detach() / share
        if self.recipe.clip_grad is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.schedule.step_update(epoch * self.chunks.order.steps + step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update(self.model)
        return total

    def blank(self) -> Batch:
        """A chunk without images."""
        size, chunk = self.recipe.img_size, self.chunks.order.chunk
        images = torch.zeros(chunk, self.recipe.in_chans, size, size, dtype=self.dtype, device=self.world.device)
        return Batch(images, torch.zeros(chunk, dtype=torch.int64), [])

    @property
    def overflows(self) -> bool:
        """Whether float16 is given up: steps were left out, one after the other, until no scale was small enough."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < LEAST_SCALE

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it, the averaged weights are in the network's place: what was compiled serves them, too."""
        assert self.average is not None
        own, other = self.model.state_dict(), self.average.module.state_dict()
        kept = {name: tensor.clone() for name, tensor in own.items()}
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(other[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(kept[name])

    def weights(self, keep: bool) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """The weights and their average; all processes take part, and some keep them."""
        average = None if self.average is None else whole_state(self.average.module.state_dict(), keep)
        return whole_state(self.model.state_dict(), keep), average

    def state(self, keep: bool) -> dict[str, Any]:
        """What else is needed to go on; all processes take part, and some keep it."""
        return {
            "optimizer": optimiser_state(self.model, self.optimizer, keep),
            "scaler": self.scaler.state_dict(),
        }

    def restore(
        self, weights: Mapping[str, Tensor], average: Mapping[str, Tensor] | None, state: Mapping[str, Any]
    ) -> None:
        """Stand where another learner of the same recipe and network stood."""
        _fill(self.model, weights)
        if self.average is not None:
            _fill(self.average.module, average or {})
        fill_optimiser_(self.model, self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def not_finite(self) -> str | None:
        """What of all that is kept holds NaN or an infinity, in this process."""
        tensors = {f"the weights {name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"the average of {name}": value for name, value in self.average.module.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"the optimiser's {key} of {name}"] = value
        return not_finite(tensors)


def _fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    for name in sorted({*own, *weights}):
        ours, theirs = (tuple(state[name].shape) if name in state else None for state in (own, weights))
        if ours != theirs:
            raise ValueError(f"{name} is {theirs} there, and {ours} in this network")
        fill_(own[name], weights[name])
