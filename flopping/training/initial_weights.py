"""What a run starts with: random weights, those of --init, or a stem that whitens images."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from rich.console import Console
from torch import nn

from flopping.data.images import ImageDataset
from flopping.errors import as_usage_error, shorten
from flopping.models.weights import fit_weights
from flopping.training.distributed import World
from flopping.training.job import Job
from flopping.training.networks import build, read_initial_classes, read_initial_weights
from flopping.training.preprocessing import whiten_stem


def create_networks(
    job: Job, train: ImageDataset, world: World, console: Console, *, shard: bool, resumes: bool
) -> tuple[nn.Module, nn.Module | None]:
    """The network of a run and the one that has its weights: the same one or, for a sharded network, one on rank 0.

    A run that `resumes` gets its weights from a checkpoint: `--init` is not read, and no filters are whitened.
    """
    with torch.device("meta") if shard else nullcontext():
        model = build(job.recipe, job.model, len(train.classes))
    source: nn.Module | None = model
    if shard:
        source = build(job.recipe, job.model, len(train.classes)) if world.is_main else None
    if source is not None and not resumes:
        _initialise(source, job, train, console if world.is_main else None)
    return model, source


def _initialise(network: nn.Module, job: Job, train: ImageDataset, console: Console | None) -> None:
    """Set what a run starts with in place of random weights: those of --init, else filters that whiten images."""
    if job.init is None:
        if job.recipe.whiten_stem:
            whiten_stem(network, job.recipe, train)
        return
    with as_usage_error(ValueError, context=f"--init {job.init}"):
        known = read_initial_classes(job.init)
        new_head = job.new_head or known not in (None, train.classes)
        notes = fit_weights(network, read_initial_weights(job.init), new_head=new_head)
    if notes and console is not None:
        console.print(f"--init {job.init}: {shorten(notes, 3)}", highlight=False, markup=False)
    if job.recipe.whiten_stem and console is not None:
        console.print("whiten_stem is left out: the weights come from --init.", highlight=False)
