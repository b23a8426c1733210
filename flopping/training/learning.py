"""The parts of a step that a recipe names: optimiser, schedule, loss, mixing of images. All of them are timm's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.data import Mixup
from timm.layers import DropPath
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from flopping.nn import DropPath as EquivariantDropPath
from flopping.training.recipe import Recipe

BCE_THRESHOLD = 0.0
"""A class that has any share in a mixed target counts as present."""


def is_decayed(name: str, parameter: nn.Parameter, spared: set[str]) -> bool:
    """Whether weight decay acts on a parameter: on matrices and filters, not on vectors, positions and tokens.

    >>> [is_decayed("some.weight", nn.Parameter(torch.ones(shape)), set()) for shape in ((2, 3), (1, 1, 3), (3,))]
    [True, False, False]
    """
    return sum(size > 1 for size in parameter.shape) > 1 and name not in spared


def optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser. The gradient is clipped outside of it, and not once more inside."""
    spared = set(getattr(model, "no_weight_decay", set)())
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for n, p in trained if is_decayed(n, p, spared)], "weight_decay": recipe.weight_decay},
        {"params": [p for n, p in trained if not is_decayed(n, p, spared)], "weight_decay": 0.0},
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


def schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int) -> Scheduler:
    """Linear warm-up, then half a cosine over the rest, for so many steps per epoch. It has no state of its own."""
    warmup = round(recipe.warmup_epochs * steps)
    return CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps - warmup,
        lr_min=recipe.min_lr,
        warmup_t=warmup,
        warmup_lr_init=recipe.warmup_lr,
        warmup_prefix=True,
        t_in_epochs=False,
    )


def mixing(recipe: Recipe, classes: int) -> Mixup | None:
    """Mixup and CutMix, if the recipe has them."""
    if not recipe.mixes:
        return None
    return Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        label_smoothing=recipe.label_smoothing,
        num_classes=classes,
    )


def loss_function(recipe: Recipe) -> nn.Module:
    """The recipe's loss, for targets as `mixing` makes them."""
    loss: nn.Module = nn.CrossEntropyLoss()
    if recipe.loss == "bce":
        loss = BinaryCrossEntropy(smoothing=recipe.label_smoothing, target_threshold=BCE_THRESHOLD)
    elif recipe.mixes:
        loss = SoftTargetCrossEntropy()
    elif recipe.label_smoothing:
        loss = LabelSmoothingCrossEntropy(recipe.label_smoothing)
    return loss


def set_drop_path(blocks: Sequence[nn.Module], rate: float, rises: bool) -> None:
    """Give blocks their stochastic depth: the same to all, or rising from 0 to the rate, as the recipe has it.

    Architectures have their own habits, and X and E(X) different ones: the recipe decides for both.
    """
    rates = torch.linspace(0, rate, len(blocks)).tolist() if rises else [rate] * len(blocks)
    for block, own in zip(blocks, rates, strict=True):
        for name, layer in block.named_children():
            if isinstance(layer, EquivariantDropPath):
                layer.drop_prob = own
            elif name in ("drop_path", "drop_path1", "drop_path2"):
                setattr(block, name, DropPath(own) if own else nn.Identity())
