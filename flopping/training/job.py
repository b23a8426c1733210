"""A run: its recipe, its network and data, and how it is carried out on the machine at hand."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from flopping.data.images import ImageDataset
from flopping.errors import UsageError, as_usage_error
from flopping.files import read_json, write_json
from flopping.models.arguments import with_current_names
from flopping.training.networks import identify
from flopping.training.recipe import Count, Recipe, read

RUN = "run.json"
FORMAT = "flopping-run-1"


@checked_dataclass(config=ConfigDict(extra="ignore"), frozen=True)
class Job:
    """What decides the result of a run. It is stored in the run's folder."""

    recipe: Recipe
    model: str
    data: str
    root: str | None = None
    micro_batch: Count | None = None
    """Images that go through the network together; by default as many as fit the device."""
    init: str | None = None
    new_head: bool = False
    network: str | None = None
    """What `model` stands for: see `identify`. Unknown for runs of older versions."""
    fingerprint: str | None = None
    """What the data is, wherever it lies: see `fingerprint`. Unknown before the data is open."""

    def write(self, folder: Path) -> None:
        write_json(folder / RUN, {"format": FORMAT, **asdict(self), "recipe": self.recipe.to_yaml()})

    @classmethod
    def read(cls, folder: Path) -> Job:
        path = folder / RUN
        if not path.exists():
            raise UsageError(f"{str(folder)!r} is no run: it has no {RUN}")
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            form = content.get("format") if isinstance(content, dict) else None
            raise UsageError(f"{str(path)!r} is of format {form!r}; this version reads {FORMAT!r}")
        recipe = read(str(content.pop("recipe", "")), f"the recipe in {str(path)!r}")
        content["micro_batch"] = content.pop("chunk", content.get("micro_batch"))  # the name in older versions
        with as_usage_error(ValidationError, context=f"{str(path)!r} does not describe a run"):
            return cls(recipe=recipe, **{name: value for name, value in content.items() if name != "format"})

    def resume(self, stored: Job, folder: Path) -> Job:
        """The stored job, with its data where this one finds it; refused if this one asks for something else.

        Whether the data is the same is decided by its fingerprint, once it is open.
        """
        requested = self if self.micro_batch is not None else replace(self, micro_batch=stored.micro_batch)
        differ = [f"{name}={_short(new)} (was {_short(old)})" for name, old, new in _differences(stored, requested)]
        if differ:
            raise UsageError(
                f"the run in {str(folder)!r} was started with other settings: {'; '.join(differ)}. Resume it as it was,"
                " or start another one in another folder (--init takes weights along)"
            )
        return replace(stored, data=self.data, root=self.root)


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out. It decides how fast a run is, and how numbers are rounded, not what is learned."""

    device: str = "auto"
    workers: int = 2
    compile: bool = True
    shard: bool = False
    deterministic: bool = False
    """Only algorithms that give the same bits every time (`torch.use_deterministic_algorithms`)."""
    save_steps: int | None = None
    save_minutes: float = 10.0
    log_steps: int = 10
    test_epochs: int = 1
    test_batch: int = 100
    group: str | None = None
    """The last test also moves the images by the elements of this group; None for the network's own."""
    unreadable_share: float = 0.01
    """The run stops when more than this share of the training images can't be read."""


def fingerprint(train: ImageDataset, test: ImageDataset) -> str:
    """What data is, wherever it lies: numbers of images, and a hash of the names of classes and images."""
    digest = hashlib.sha256(json.dumps(train.classes).encode())
    for images in (train, test):
        digest.update(f"\n{len(images)}\n".encode())
        for name in images.portable_names():
            digest.update(name.encode(errors="surrogateescape") + b"\0")
    counts = f"{len(train)} training and {len(test)} test images of {len(train.classes)} classes"
    return f"{counts}, names {digest.hexdigest()[:16]}"


def _differences(stored: Job, requested: Job) -> list[tuple[str, Any, Any]]:
    """The fields in which two jobs differ, whatever the spelling of names and paths."""
    found = [
        (each.name, getattr(stored.recipe, each.name), getattr(requested.recipe, each.name))
        for each in fields(Recipe)
        if each.name not in ("about", "model", "model_args")  # the job names the model
    ]
    with as_usage_error(ValueError, context="model_args"):
        old_args, new_args = (with_current_names(job.recipe.model_args) for job in (stored, requested))
    found += [(f"model_args.{name}", old_args.get(name), new_args.get(name)) for name in old_args | new_args]
    found += [(name, getattr(stored, name), getattr(requested, name)) for name in ("micro_batch", "new_head")]
    old, new = (job.network or identify(job.model) for job in (stored, requested))
    if old != new:
        changed = f"{requested.model}, whose file has changed" if requested.model == stored.model else requested.model
        found.append(("model", stored.model, changed))
    for name in ("init",) if stored.fingerprint else ("init", "data", "root"):  # older runs know no fingerprint
        old, new = getattr(stored, name), getattr(requested, name)
        if (old and os.path.realpath(old)) != (new and os.path.realpath(new)):
            found.append((name, old, new))
    return [(name, old, new) for name, old, new in found if old != new]


def _short(value: object) -> str:
    return str(value) if len(str(value)) < 60 else f"{str(value)[:57]}..."
