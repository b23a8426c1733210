"""A network with its optimizer and the average of its weights (EMA), on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.utils import clip_grad_norm_

from flopping.checkpoints.weight_files import WEIGHTS
from flopping.data.batches import Batch
from flopping.data.order import MicroBatchSampler, derive_seed, seed_generators
from flopping.errors import UsageError
from flopping.models.weights import check_weights
from flopping.training.checkpoint import AVERAGE, TRAINING, Checkpoint
from flopping.training.distributed import (
    FULL,
    ParallelModel,
    World,
    broadcast_network,
    compile_network,
    find_non_finite,
    load_full_state,
    shard_network,
)
from flopping.training.recipe import Recipe

LEAST_SCALE = 2.0**-14
"""The smallest scale of losses in float16. Gradients that still overflow are above 1e9, or no numbers at all."""


class Learner:
    """A network that learns by a recipe, micro-batch by micro-batch."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        sampler: MicroBatchSampler,
        world: World,
        *,
        shard: bool,
        compiled: bool,
        source: nn.Module | None = None,
    ) -> None:
        """With `shard` the model is on the meta device, and rank 0 passes the same network with weights as `source`."""
        self.recipe, self.sampler, self.world, self.model = recipe, sampler, world, model
        self.dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        model.to(None if shard else world.device, self.dtype)
        self.average = ModelEmaV3(model, decay=recipe.ema) if recipe.ema is not None else None
        if compiled:
            compile_network(model, shard)
        if shard:
            shard_network(model, world, self.low_precision)
            broadcast_network(model, source and source.to(self.dtype), world)
            if self.average is not None:
                shard_network(self.average.module, world)
                self.average.set(model)
        self.parallel = ParallelModel(model, world, sharded=shard)
        self.optimizer = create_optimizer(model, recipe)
        self.schedule = create_schedule(self.optimizer, recipe, sampler.order.steps)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "float16")
        self.mix = create_mixup(recipe, int(model.num_classes))  # type: ignore[arg-type]
        self.loss = create_loss(recipe).to(world.device)

    @property
    def low_precision(self) -> torch.dtype | None:
        """The type of mixed precision, if the recipe has it."""
        mixed = self.recipe.precision in ("float16", "bfloat16")
        return getattr(torch, self.recipe.precision) if mixed else None

    def autocast(self) -> AbstractContextManager[object]:
        if self.low_precision is None:
            return nullcontext()
        return torch.autocast(self.world.device.type, self.low_precision)

    def step(self, epoch: int, step: int, batches: Iterator[Batch]) -> Tensor:
        """One step of the optimiser. Returns this rank's loss, whose mean over ranks is the loss of the step."""
        self.optimizer.zero_grad(set_to_none=True)
        mine, passes, share = self.sampler.assigned, self.sampler.passes, self.sampler.mean_assigned
        total = torch.zeros((), device=self.world.device, dtype=self.dtype)
        for index in range(mine.start, mine.start + passes):
            is_mine = index in mine  # else a pass without images: other ranks have one more
            batch = next(batches) if is_mine else self.padding_batch()
            images = batch.images.to(self.world.device, self.dtype, non_blocking=True)
            targets = batch.labels.to(self.world.device, non_blocking=True)
            seed_generators(derive_seed(self.recipe.seed, "chunk", epoch, step, index))  # for mixing and dropout
            if self.mix is not None:
                images, targets = self.mix(images, targets)
            with self.parallel.accumulate_gradients(sync=index == mine.start + passes - 1):
                with self.autocast():
                    logits = self.parallel(images)
                # the loss in full precision; a mixed target has the precision of the logits
                logits = logits.to(self.dtype)
                loss = self.loss(logits, targets.to(self.dtype) if targets.is_floating_point() else targets)
                # gradients are averaged over processes, so that a micro-batch counts the same on any rank
                self.scaler.scale(loss / share if is_mine else 0 * loss).backward()
            if is_mine:
                total += loss.detach() / share
        if self.recipe.clip_grad is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.schedule.step_update(epoch * self.sampler.order.steps + step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update(self.model)
        return total

    def padding_batch(self) -> Batch:
        """A micro-batch without images."""
        size, number = self.recipe.img_size, self.sampler.order.micro_batch
        images = torch.zeros(number, self.recipe.in_chans, size, size, dtype=self.dtype, device=self.world.device)
        return Batch(images, torch.zeros(number, dtype=torch.int64), [])

    @property
    def overflows(self) -> bool:
        """Whether the loss scale fell below LEAST_SCALE, because step after step overflowed."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < LEAST_SCALE

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """Within it, the network has the averaged weights: compiled code serves both."""
        assert self.average is not None
        own, average = self.model.state_dict(), self.average.module.state_dict()
        kept = {name: tensor.clone() for name, tensor in own.items()}
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(average[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(kept[name])

    def gather(self, progress: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The files of a checkpoint and their contents, gathered one at a time. All ranks iterate; rank 0 gets them."""
        yield WEIGHTS, get_model_state_dict(self.model, options=FULL)
        if self.average is not None:
            yield AVERAGE, get_model_state_dict(self.average.module, options=FULL)
        found: dict[str, Any] = {**get_optimizer_state_dict(self.model, self.optimizer, options=FULL)}
        groups = [{k: value for k, value in group.items() if k != "params"} for group in found.get("param_groups", [])]
        optimizer = {"state": found.get("state"), "groups": groups}
        yield TRAINING, {"optimizer": optimizer, "scaler": self.scaler.state_dict(), **progress}

    def restore(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, which only rank 0 reads; `state` is what `checkpoint.training()` gave there."""
        main = self.world.is_main
        weights: list[tuple[Callable[[], dict[str, Tensor] | None], nn.Module]] = [(checkpoint.weights, self.model)]
        if self.average is not None:
            weights.append((checkpoint.average, self.average.module))
        for read, network in weights:
            with self.world.raise_on_all_ranks():
                tensors = (read() if main else None) or {}
                if main:
                    check_weights(tensors, network.state_dict(), f"the network of {str(checkpoint.folder)!r}")
            load_full_state(network, tensors, self.world)
        optimizer: dict[str, Any] = {"state": {}, "param_groups": []}
        with self.world.raise_on_all_ranks():
            if main:
                names = {parameter: name for name, parameter in self.model.named_parameters()}
                params = [[names[parameter] for parameter in group["params"]] for group in self.optimizer.param_groups]
                saved = state["optimizer"]["groups"]
                if len(saved) != len(params):
                    raise UsageError(
                        f"the optimizer has {len(saved)} parameter groups there and {len(params)} in this run"
                    )
                optimizer["param_groups"] = [{**group, "params": own} for group, own in zip(saved, params, strict=True)]
                optimizer["state"] = state["optimizer"]["state"]
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world.size > 1)
        set_optimizer_state_dict(self.model, self.optimizer, optimizer, options=options)
        self.scaler.load_state_dict(self.world.broadcast_object(state.get("scaler", {})))

    def find_non_finite(self) -> str | None:
        """The first tensor to be saved that holds NaN or infinity, on this rank."""
        tensors = {f"the weights {name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"the average of {name}": value for name, value in self.average.module.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"the optimizer's {key} of {name}"] = value
        return find_non_finite(tensors)


def is_decayed(name: str, parameter: nn.Parameter, spared: set[str]) -> bool:
    """Whether weight decay acts on a parameter: on matrices and filters, not on vectors, positions and tokens.

    >>> [is_decayed("some.weight", nn.Parameter(torch.ones(shape)), set()) for shape in ((2, 3), (1, 1, 3), (3,))]
    [True, False, False]
    """
    return sum(size > 1 for size in parameter.shape) > 1 and name not in spared


def create_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer. The gradient is clipped outside of it, and not once more inside."""
    spared = set(getattr(model, "no_weight_decay", set)())
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    spared = {name for name, parameter in trained if not is_decayed(name, parameter, spared)}
    if recipe.layer_decay is not None:
        groups = param_groups_layer_decay(model, recipe.weight_decay, spared, layer_decay=recipe.layer_decay)
    else:
        groups = [
            {"params": [p for n, p in trained if n not in spared], "weight_decay": recipe.weight_decay},
            {"params": [p for n, p in trained if n in spared], "weight_decay": 0.0},
        ]
    own_clipping: dict[str, Any] = {"max_grad_norm": None} if recipe.optimizer == "lamb" else {}
    made: torch.optim.Optimizer = create_optimizer_v2(
        [group for group in groups if group["params"]],
        opt=recipe.optimizer,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        **own_clipping,
    )
    return made


def create_schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int) -> Scheduler:
    """Linear warm-up, then half a cosine over the rest, for so many steps per epoch. It has no state of its own."""
    warmup = round(recipe.warmup_epochs * steps)
    if warmup >= recipe.epochs * steps:
        raise UsageError(
            f"warmup_epochs={recipe.warmup_epochs:g} are {warmup} steps, and the run has no others: set it lower"
        )
    return CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps - warmup,
        lr_min=recipe.min_lr,
        warmup_t=warmup,
        warmup_lr_init=recipe.warmup_lr,
        warmup_prefix=True,
        t_in_epochs=False,
    )


def create_mixup(recipe: Recipe, classes: int) -> Mixup | None:
    if not recipe.mixes:
        return None
    return Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        label_smoothing=recipe.label_smoothing,
        num_classes=classes,
    )


def create_loss(recipe: Recipe) -> nn.Module:
    """The recipe's loss, for targets as `create_mixup` makes them."""
    loss: nn.Module = nn.CrossEntropyLoss()
    if recipe.loss == "bce":
        loss = BinaryCrossEntropy(smoothing=recipe.label_smoothing, target_threshold=0.0)  # any share counts as present
    elif recipe.mixes:
        loss = SoftTargetCrossEntropy()
    elif recipe.label_smoothing:
        loss = LabelSmoothingCrossEntropy(recipe.label_smoothing)
    return loss
