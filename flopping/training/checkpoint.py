"""Checkpoints that are whole or not there: folders with a list of their contents, written beside and then renamed.

A run keeps the last, one older in reserve, and the best:

    RUN/checkpoints/step-00000400/   config.json, model.safetensors, ema.safetensors, training.pt, manifest.json
    RUN/last, RUN/best               links to two of them
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

FORMAT = "flopping-checkpoint-1"
MANIFEST = "manifest.json"
WEIGHTS, AVERAGE, TRAINING, CONFIG = "model.safetensors", "ema.safetensors", "training.pt", "config.json"
KEEP = 2
"""The last one, and one in reserve."""


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is on the disk, as its manifest describes it."""

    folder: Path
    step: int
    score: float | None
    """Accuracy on the test images, where it was measured just before."""
    files: Mapping[str, Mapping[str, Any]]

    def check(self) -> None:
        """Compare every file with its checksum."""
        for name, expected in self.files.items():
            path = self.folder / name
            try:
                found = _digest(path)
            except OSError as error:
                raise DamagedError(
                    f"checkpoint {str(self.folder)!r}: {name} can't be read ({error.strerror})"
                ) from error
            if found != expected["sha256"]:
                raise DamagedError(f"checkpoint {str(self.folder)!r}: {name} is not as it was written")

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.folder / WEIGHTS)

    def average(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, if the recipe has one."""
        return load_file(self.folder / AVERAGE) if AVERAGE in self.files else None

    def training(self) -> dict[str, Any]:
        """All that is needed to go on, beside the weights; plain data."""
        state: dict[str, Any] = torch.load(self.folder / TRAINING, map_location="cpu", weights_only=True)
        return state


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def read_manifest(folder: Path) -> Checkpoint:
    """A checkpoint from its folder; what it says about itself is checked, its files are not yet."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise DamagedError(
                f"{str(folder)!r} is a checkpoint of format {content['format']!r}; this reads {FORMAT!r}"
            )
        score = content["score"]
        files = {Path(name).name: dict(values) for name, values in content["files"].items()}
        return Checkpoint(folder, int(content["step"]), None if score is None else float(score), files)
    except OSError as error:
        raise DamagedError(f"{str(folder)!r} is no checkpoint: {MANIFEST} can't be read ({error.strerror})") from error
    except DamagedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{str(folder)!r} is no checkpoint: its {MANIFEST} is damaged") from error


class Keeper:
    """The checkpoints of a run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoints"

    def place(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def found(self) -> tuple[list[Checkpoint], list[str]]:
        """Checkpoints with a readable manifest, newest first, and what is wrong with the others."""
        good, problems = [], []
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            try:
                good.append(read_manifest(folder))
            except DamagedError as error:
                problems.append(str(error))
        return sorted(good, key=lambda c: c.step, reverse=True), problems

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is as it was written, and what is wrong with newer ones, which are set aside."""
        good, problems = self.found()
        for checkpoint in good:
            try:
                checkpoint.check()
            except DamagedError as error:
                problems.append(str(error))
                aside = self.folder / f"damaged-{checkpoint.folder.name}"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(checkpoint.folder, aside)
            else:
                return checkpoint, problems
        return None, problems

    def write(
        self,
        step: int,
        score: float | None,
        config: str,
        weights: Mapping[str, Tensor],
        average: Mapping[str, Tensor] | None,
        training: Mapping[str, Any],
    ) -> Path:
        """A new checkpoint, on the disk before it has its name; then older ones that are not kept go."""
        target = self.place(step)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clean()
        buffer = io.BytesIO()
        torch.save(dict(training), buffer)
        contents = {
            CONFIG: config.encode(),
            WEIGHTS: save(dict(weights), {"format": "pt"}),
            TRAINING: buffer.getvalue(),
        }
        if average is not None:
            contents[AVERAGE] = save(dict(average), {"format": "pt"})
        place = self.folder / f".new-{target.name}"
        try:
            place.mkdir()
            files = {}
            for name, content in contents.items():
                _write(place / name, content)
                files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            manifest = {"format": FORMAT, "step": step, "score": score, "files": files}
            _write(place / MANIFEST, json.dumps(manifest, indent=1).encode())
            _sync(place)
            if target.exists():  # of a run that was resumed before it, or damaged
                os.rename(target, self.folder / f".old-{target.name}")
            os.rename(place, target)
            _sync(self.folder)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            size = sum(map(len, contents.values())) / 1e6
            raise OSError(
                error.errno,
                f"checkpoint of step {step} could not be written: it needs {size:.0f} MB in {str(self.folder)!r}"
                f" ({error.strerror or error})",
            ) from error
        self._forget_others()
        return target

    def _forget_others(self) -> None:
        good, _ = self.found()
        best = max((c for c in good if c.score is not None), key=lambda c: (c.score, c.step), default=None)
        kept = [*good[:KEEP], *([best] if best else [])]
        for name, checkpoint in (("last", good[0]), ("best", best)):
            if checkpoint is not None:
                _link(self.run / name, checkpoint.folder)
        for checkpoint in good:
            if checkpoint not in kept:
                with suppress(OSError):  # what can't be removed now goes the next time
                    gone = checkpoint.folder.with_name(f".old-{checkpoint.folder.name}")
                    os.rename(checkpoint.folder, gone)
        self.clean()

    def clean(self) -> None:
        """Remove what an interrupted writer left."""
        for leftover in (*self.folder.glob(".new-*"), *self.folder.glob(".old-*")):
            shutil.rmtree(leftover, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(link: Path, folder: Path) -> None:
    """Let a link point to a folder beside it, without a moment in which it points nowhere."""
    new = link.with_name(f".{link.name}.new")
    with suppress(OSError):  # links are a convenience: some file systems have none
        with suppress(FileNotFoundError):
            new.unlink()
        new.symlink_to(folder.relative_to(link.parent))
        os.replace(new, link)
