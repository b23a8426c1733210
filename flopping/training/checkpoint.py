"""Checkpoints that are whole or not there: folders with a list of their contents, written beside and then renamed.

A run keeps the last, one older in reserve, and the best:

    RUN/checkpoints/step-00000400/   config.json, model.safetensors, ema.safetensors, training.pt, manifest.json
    RUN/last, RUN/best               links to two of them

A name tells what a writer was about when it was killed: `.new-` is not whole yet, `.old-` makes room for a newer one of
the same step, `.gone-` is being removed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from flopping.checkpoints.files import read_torch, read_weights

FORMAT = "flopping-checkpoint-1"
MANIFEST = "manifest.json"
WEIGHTS, AVERAGE, TRAINING, CONFIG = "model.safetensors", "ema.safetensors", "training.pt", "config.json"
KEEP = 2
"""The last one, and one in reserve."""
_NAME = re.compile(r"step-([0-9]{8,})")


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is on the disk, as its manifest describes it."""

    folder: Path
    step: int
    score: float | None
    """Accuracy on the test images, where it was measured just before."""
    files: Mapping[str, str]
    """The SHA-256 of every file."""

    def check(self) -> None:
        """Compare every file with its checksum."""
        for name, expected in self.files.items():
            try:
                found = _digest(self.folder / name)
            except OSError as error:
                raise DamagedError(
                    f"checkpoint {str(self.folder)!r}: {name} can't be read ({error.strerror})"
                ) from error
            if found != expected:
                raise DamagedError(f"checkpoint {str(self.folder)!r}: {name} is not as it was written")

    def weights(self) -> dict[str, Tensor]:
        return read_weights(self.folder / WEIGHTS)

    def average(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, if the recipe has one."""
        return read_weights(self.folder / AVERAGE) if AVERAGE in self.files else None

    def training(self) -> dict[str, Any]:
        """All that is needed to go on, beside the weights; plain data, and refused if it is anything else."""
        state = read_torch(self.folder / TRAINING)
        if not isinstance(state, dict):
            raise DamagedError(f"{str(self.folder / TRAINING)!r} is no state of a run but a {type(state).__name__}")
        return state


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _sealed(content: dict[str, Any]) -> str:
    """The checksum of a manifest, which is part of it: a score that was changed would make another one the best."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Checkpoint:
    """A checkpoint from its folder; what it says about itself is checked, its files are not yet."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise DamagedError(f"{str(folder)!r} is no checkpoint: {MANIFEST} can't be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"checkpoint {str(folder)!r}: {MANIFEST} is not as it was written") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        kind = content.get("format") if isinstance(content, dict) else None
        raise DamagedError(f"{str(folder)!r} is a checkpoint of format {kind!r}; this reads {FORMAT!r}")
    seal = content.pop("sha256", None)
    step, score, files = (content.get(key) for key in ("step", "score", "files"))
    needed = {CONFIG, WEIGHTS, TRAINING}
    if (
        seal != _sealed(content)
        or type(step) is not int
        or not (score is None or (isinstance(score, (int, float)) and math.isfinite(score)))
        or not isinstance(files, dict)
        or not needed <= files.keys() <= {*needed, AVERAGE}  # names of ours only: none leads out of the folder
    ):
        raise DamagedError(f"checkpoint {str(folder)!r}: {MANIFEST} is not as it was written")
    return Checkpoint(folder, step, score, files)


class Keeper:
    """The checkpoints of a run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoints"

    def place(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def _places(self) -> list[Path]:
        """Folders that are called like checkpoints, newest first; what else lies there is none of ours."""
        found = [(int(name[1]), path) for path in self.folder.glob("step-*") if (name := _NAME.fullmatch(path.name))]
        return [path for step, path in sorted(found, reverse=True) if path == self.place(step)]

    def _read(self, folder: Path) -> Checkpoint:
        checkpoint = read_manifest(folder)
        if folder != self.place(checkpoint.step):
            raise DamagedError(f"{str(folder)!r} holds the checkpoint of another step, {checkpoint.step}")
        return checkpoint

    def found(self) -> list[Checkpoint]:
        """Checkpoints with a sound manifest, newest first."""
        good = []
        for folder in self._places():
            with suppress(DamagedError):
                good.append(self._read(folder))
        return good

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is as it was written, and what is wrong with newer ones, which are set aside."""
        problems = []
        found = None
        self.clean()
        for folder in self._places():
            try:
                found = self._read(folder)
                found.check()
                break
            except DamagedError as error:
                found = None
                problems.append(str(error))
                aside = folder.with_name(f"damaged-{folder.name}")
                _remove(aside)
                os.rename(folder, aside)
        if problems:
            self._link()
        return found, problems

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
        buffer = io.BytesIO()
        torch.save(dict(training), buffer)
        contents = {
            CONFIG: config.encode(),
            WEIGHTS: save(dict(weights), {"format": "pt"}),
            TRAINING: buffer.getvalue(),
        }
        if average is not None:
            contents[AVERAGE] = save(dict(average), {"format": "pt"})
        target = self.place(step)
        new, old = (target.with_name(f".{kind}-{target.name}") for kind in ("new", "old"))
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                _sync(self.run)
            self.clean()
            new.mkdir()
            for name, content in contents.items():
                _write(new / name, content)
            files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
            manifest = {"format": FORMAT, "step": step, "score": score, "files": files}
            _write(new / MANIFEST, json.dumps({**manifest, "sha256": _sealed(manifest)}, indent=1).encode())
            _sync(new)
            if target.exists():  # it was saved before it was tested
                os.rename(target, old)
            os.rename(new, target)
            _sync(self.folder)
        except OSError as error:
            with suppress(OSError):
                self.clean()
            size = sum(map(len, contents.values())) / 1e6
            raise OSError(
                error.errno,
                f"the checkpoint of step {step} could not be written: it takes {size:.1f} MB in {str(self.folder)!r}"
                f" ({error.strerror or error})",
            ) from error
        self._forget_others()
        return target

    def _best(self, good: list[Checkpoint]) -> Checkpoint | None:
        tested = [
            (checkpoint.score, checkpoint.step, checkpoint) for checkpoint in good if checkpoint.score is not None
        ]
        return max(tested)[2] if tested else None

    def _forget_others(self) -> None:
        self._link()
        good = self.found()
        kept = [*good[:KEEP], self._best(good)]
        for checkpoint in good:
            if checkpoint not in kept:
                with suppress(OSError):  # what can't be removed now goes the next time
                    os.rename(checkpoint.folder, checkpoint.folder.with_name(f".gone-{checkpoint.folder.name}"))
        self.clean()

    def _link(self) -> None:
        """Let the links of the run point where they should."""
        good = self.found()
        for name, checkpoint in (("last", next(iter(good), None)), ("best", self._best(good))):
            if checkpoint is not None:
                _link(self.run / name, checkpoint.folder)
            else:
                with suppress(OSError):
                    (self.run / name).unlink()

    def clean(self) -> None:
        """Undo what an interrupted writer began: what was to be replaced gets its name back, the rest goes."""
        for old in self.folder.glob(".old-*"):
            place = old.with_name(old.name.removeprefix(".old-"))
            if not place.exists():
                os.rename(old, place)
        for kind in (".new-*", ".old-*", ".gone-*"):
            for leftover in self.folder.glob(kind):
                _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a folder or a file, if there is one and it can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk, where the file system can be asked to."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
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
