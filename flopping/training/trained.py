"""A trained network from its folder, on test images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from flopping.checkpoints.files import read_weights
from flopping.training.checkpoint import AVERAGE, CONFIG, MANIFEST, read_manifest
from flopping.training.evaluate import Accuracy, accuracy
from flopping.training.feeds import eval_batches
from flopping.training.loader import (
    FILLER,
    Batch,
    Normalisation,
    Preparation,
    eval_transform,
    lost_workers,
    per_channel,
)
from flopping.training.processes import World, chosen_device
from flopping.training.sources import open_source


@dataclass(frozen=True)
class Tested:
    """What a test found."""

    folder: Path
    model: str
    accuracy: Accuracy
    unreadable: list[str]


def checkpoint_folder(path: Path) -> Path:
    """The folder of a checkpoint: itself, or the best or last one of a run; links are followed once, for all files."""
    for folder in (path, path / "best", path / "last"):
        if (folder / CONFIG).is_file():
            return folder.resolve()
    if not path.exists():
        raise ValueError(f"no folder {str(path)!r}: a run, one of its checkpoints, or a saved model of timm")
    if not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file: name the folder of a run, of a checkpoint, or of a saved model")
    raise ValueError(f"{str(path)!r} holds no checkpoint: neither {CONFIG} nor best/ or last/ with it")


def load_checkpoint(folder: Path, *, average: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The network in a checkpoint's folder, which has to be as it was written, and its description."""
    if (folder / MANIFEST).exists():
        read_manifest(folder).check()
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(folder / CONFIG)!r} can't be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise ValueError(f"{str(folder / CONFIG)!r} names no architecture: it is none of timm's")
    if average and not (folder / AVERAGE).is_file():
        raise ValueError(f"{str(folder)!r} has no averaged weights: its recipe has no ema")
    try:
        model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=not average)
        if average:
            model.load_state_dict(read_weights(folder / AVERAGE))
    except Exception as error:  # every reader of weights, and every network, has its own
        reason = shorten(" ".join(str(error).split()), 400)
        raise ValueError(
            f"the network {config['architecture']!r} in {str(folder)!r} can't be loaded: {reason}"
        ) from error
    return model, config


def opened(path: Path, *, average: bool = False) -> tuple[Path, nn.Module, dict[str, Any]]:
    """The folder of a checkpoint, its network and its description.

    A run that goes on may remove a checkpoint that is about to be read, once there is a better one.
    """
    while True:
        folder = checkpoint_folder(path)
        try:
            return folder, *load_checkpoint(folder, average=average)
        except Exception:  # every library has its own for a file that is gone
            if folder.exists():
                raise


def preparation_of(
    model: nn.Module, device: torch.device, input_size: tuple[int, int, int] | None = None
) -> Preparation:
    """How a network wants its images in a test, as its own config says; `input_size` if that doesn't know it."""
    cfg = resolve_model_data_config(model)
    chans, height, width = input_size or cfg["input_size"]
    normal = normalisation_of(model, chans)
    transform = eval_transform((height, width), cfg["crop_pct"], cfg["interpolation"], cfg["crop_mode"], normal.mean)
    return Preparation(transform, chans, normal, device, torch.float32)


def normalisation_of(model: nn.Module, chans: int) -> Normalisation:
    """What a network's pixels are shifted and scaled by, as its own config says, for so many channels."""
    cfg = resolve_model_data_config(model)
    return Normalisation(per_channel(cfg["mean"], chans), per_channel(cfg["std"], chans))


def tested(
    path: Path,
    data: str,
    root: str | None,
    device: str,
    workers: int,
    batch_size: int,
    *,
    mirror: bool,
    average: bool,
    progress: Callable[[int, int], object],
) -> Tested:
    """Accuracy of a trained network on the test images of a data set; `progress` hears how many of them are done."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a test runs in one process: start it without torchrun")
    folder, model, config = opened(path, average=average)
    here = World(chosen_device(device))
    model.eval().to(here.device)
    source = open_source(data, "test", root)
    labels = _labels(config, folder, source.classes, data)
    preparation = preparation_of(model, here.device)
    unreadable: set[int] = set()
    done = 0

    def note(batch: Batch) -> None:
        nonlocal done
        unreadable.update(batch.unreadable)
        done = min(done + len(batch.labels), len(source))
        progress(done, len(source))

    batches = eval_batches(source, preparation, batch_size, workers, here)
    named = (Batch(batch.images, labels[batch.labels], batch.unreadable) for batch in batches)
    with lost_workers(workers):
        found = accuracy(model, named, here, nullcontext, dtype=torch.float32, mirror=mirror, each=note)
    return Tested(folder, config["architecture"], found, [source.where(index) for index in sorted(unreadable)])


def _labels(config: Mapping[str, Any], folder: Path, classes: Sequence[str], data: str) -> Tensor:
    """The network's number of each class of the data, found by its name; what only fills a batch stays so."""
    known = config.get("label_names")
    if config["num_classes"] != len(classes):
        raise ValueError(
            f"{str(folder)!r} knows {config['num_classes']} classes, and {data!r} has {len(classes)}: test it on the"
            " data it was trained for, or train a new classifier (flopping train --init ... --new-head)"
        )
    if not isinstance(known, list):  # a network that was saved without names
        return torch.tensor([*range(len(classes)), FILLER])
    strange = [name for name in classes if name not in known]
    if strange:
        raise ValueError(
            f"{str(folder)!r} knows no class {strange[0]!r} of {data!r}; its classes are {', '.join(known[:5])}"
            f"{', ...' if len(known) > 5 else ''}, as label_names in its {CONFIG} say: give the data the same names"
        )
    return torch.tensor([*(known.index(name) for name in classes), FILLER])
