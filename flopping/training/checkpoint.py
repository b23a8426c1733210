"""Checkpoints of a run: folders that are complete or absent.

    RUN/checkpoints/step-00000400/   config.json, model.safetensors, ema.safetensors, training.pt, manifest.json
    RUN/last, RUN/best               links to two of them

A folder is written under another name and renamed. The prefixes show what a writer did when it was killed: `.new-` is
incomplete, `.old-` is replaced by a newer checkpoint of the same step, `.gone-` is being deleted.

The format is ours, not that of `torch.distributed.checkpoint`: full tensors by name, the same for any number of ranks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from flopping.checkpoints.weight_files import CONFIG, WEIGHTS, read_torch, read_weights, write_safetensors
from flopping.errors import UsageError

FORMAT = "flopping-checkpoint-1"
MANIFEST = "manifest.json"
AVERAGE, TRAINING = "ema.safetensors", "training.pt"
KEEP = 2
"""How many of the newest checkpoints are kept."""
_NAME = re.compile(r"step-([0-9]{8,})")


class CorruptedCheckpointError(UsageError):
    """A checkpoint whose files differ from what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, as its manifest describes it."""

    folder: Path
    step: int
    score: float | None
    """Accuracy on the validation images, if it was measured just before."""
    files: Mapping[str, str]
    """The SHA-256 of every file."""

    def verify(self, *names: str) -> None:
        """Compare files with their checksums: those that are named, or all."""
        for name, expected in self.files.items():
            if names and name not in names:
                continue
            digest = hashlib.sha256()
            try:
                with _open_regular(self.folder / name) as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError as error:
                raise CorruptedCheckpointError(
                    f"checkpoint {str(self.folder)!r}: {name} cannot be read ({error.strerror})"
                ) from error
            if digest.hexdigest() != expected:
                raise CorruptedCheckpointError(f"checkpoint {str(self.folder)!r}: {name} is corrupted")

    def weights(self) -> dict[str, Tensor]:
        return read_weights(self.folder / WEIGHTS)

    def average(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, if the recipe has one."""
        return read_weights(self.folder / AVERAGE) if AVERAGE in self.files else None

    def training(self) -> dict[str, Any]:
        """What resuming needs besides the weights; a file that holds anything but plain data is refused."""
        state = read_torch(self.folder / TRAINING)
        if not isinstance(state, dict):
            kind = type(state).__name__
            raise CorruptedCheckpointError(f"{str(self.folder / TRAINING)!r} holds a {kind}, not the state of a run")
        return state


def _open_regular(path: Path) -> BinaryIO:
    """Open a file. A pipe or a device, which may be waited for without end, is an error as if it were missing."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file")
    return open(path, "rb")


def _checksum(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest, which is stored in it: a changed score would make another checkpoint the best."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Checkpoint:
    """Read and validate the manifest of a checkpoint. `Checkpoint.verify` validates its files."""
    try:
        with _open_regular(folder / MANIFEST) as file:
            content = json.loads(file.read())
    except OSError as error:
        reason = f"{MANIFEST} cannot be read ({error.strerror})"
        raise CorruptedCheckpointError(f"{str(folder)!r} is no checkpoint: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptedCheckpointError(f"checkpoint {str(folder)!r}: {MANIFEST} is corrupted") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        kind = content.get("format") if isinstance(content, dict) else None
        raise CorruptedCheckpointError(f"{str(folder)!r} is a checkpoint of format {kind!r}, not {FORMAT!r}")
    checksum = content.pop("sha256", None)
    step, score, files = (content.get(key) for key in ("step", "score", "files"))
    needed = {CONFIG, WEIGHTS, TRAINING}
    if (
        checksum != _checksum(content)
        or type(step) is not int
        or not (score is None or (isinstance(score, (int, float)) and math.isfinite(score)))
        or not isinstance(files, dict)
        or not needed <= files.keys() <= {*needed, AVERAGE}  # so no name leads out of the folder
    ):
        raise CorruptedCheckpointError(f"checkpoint {str(folder)!r}: {MANIFEST} is corrupted")
    return Checkpoint(folder, step, score, files)


class CheckpointManager:
    """The checkpoints of a run: the newest ones and the best are kept."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoints"

    def step_folder(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _step_folders(self) -> list[Path]:
        """Folders that are named like checkpoints, newest first. Other files there are ignored."""
        found = [(int(name[1]), path) for path in self.folder.glob("step-*") if (name := _NAME.fullmatch(path.name))]
        return [path for step, path in sorted(found, reverse=True) if path == self.step_folder(step)]

    def _read(self, folder: Path) -> Checkpoint:
        checkpoint = read_manifest(folder)
        if folder != self.step_folder(checkpoint.step):
            raise CorruptedCheckpointError(f"{str(folder)!r} holds the checkpoint of step {checkpoint.step}")
        return checkpoint

    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints with a valid manifest, newest first."""
        valid = []
        for folder in self._step_folders():
            with suppress(CorruptedCheckpointError):
                valid.append(self._read(folder))
        return valid

    def find_newest(self, *, restart: bool = False) -> tuple[Checkpoint | None, list[str]]:
        """The newest valid checkpoint, and the problems of newer ones, which are renamed to `corrupted-...`.

        If all are corrupted they stay where they are, and an error is raised unless `restart`.
        """
        problems: dict[Path, str] = {}
        newest = None
        self.clean_up()
        for folder in self._step_folders():
            try:
                newest = self._read(folder)
                newest.verify()
                break
            except CorruptedCheckpointError as error:
                problems[folder], newest = str(error), None
        if problems and newest is None and not restart:
            raise CorruptedCheckpointError(
                f"all checkpoints of the run are corrupted: {'; '.join(problems.values())}. Bring back one of them, or"
                " start the run from the beginning (--restart)"
            )
        for folder in problems:
            aside = folder.with_name(f"corrupted-{folder.name}")
            _remove(aside)
            os.rename(folder, aside)
        if problems:
            self._update_links()
        return newest, list(problems.values())

    def save(self, step: int, score: float | None, parts: Iterable[tuple[str, Any]]) -> Path:
        """Write a checkpoint, then delete older ones that are not kept.

        `parts` are names of files with their contents: text, tensors by name (.safetensors), or plain data (.pt). One
        is written before the next is asked for, so only one is in memory. All are asked for, even after an error: other
        ranks take part in gathering them.
        """
        target = self.step_folder(step)
        new, old = (target.with_name(f".{kind}-{target.name}") for kind in ("new", "old"))
        files: dict[str, str] = {}
        problem: Exception | None = None
        try:
            self._make_folder(new)
        except OSError as error:
            problem = error
        for name, content in parts:
            try:
                if problem is None:
                    files[name] = _write_file(new / name, content)
            except Exception as error:  # raised below
                problem = error
            del content  # before the next one is gathered
        try:
            if problem is not None:
                raise problem
            manifest = {"format": FORMAT, "step": step, "score": score, "files": files}
            _write_file(new / MANIFEST, json.dumps({**manifest, "sha256": _checksum(manifest)}, indent=1))
            _sync(new)
            if target.exists():  # it was saved before it was tested
                os.rename(target, old)
            os.rename(new, target)
            _sync(self.folder)
        except Exception as error:
            with suppress(OSError):
                self.clean_up()
            if not isinstance(error, OSError):
                raise
            reason = (
                f"the checkpoint of step {step} was not written to {str(self.folder)!r} ({error.strerror or error})"
            )
            raise OSError(error.errno, reason) from error
        self._delete_others()
        return target

    def _make_folder(self, new: Path) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            _sync(self.run)
        self.clean_up()
        new.mkdir()

    def best(self) -> Checkpoint | None:
        """The valid checkpoint of the highest score."""
        return self._best(self.checkpoints())

    def _best(self, valid: list[Checkpoint]) -> Checkpoint | None:
        tested = [(c.score, c.step, c) for c in valid if c.score is not None]
        return max(tested)[2] if tested else None

    def _delete_others(self) -> None:
        self._update_links()
        valid = self.checkpoints()
        kept = [*valid[:KEEP], self._best(valid)]
        for checkpoint in valid:
            if checkpoint not in kept:
                with suppress(OSError):  # the next call tries again
                    os.rename(checkpoint.folder, checkpoint.folder.with_name(f".gone-{checkpoint.folder.name}"))
        self.clean_up()

    def _update_links(self) -> None:
        valid = self.checkpoints()
        for name, checkpoint in (("last", next(iter(valid), None)), ("best", self._best(valid))):
            link = self.run / name
            with suppress(OSError):  # some file systems have no links
                if checkpoint is None:
                    link.unlink()
                else:  # replaced in one step, so that it is always there
                    new = link.with_name(f".{name}.new")
                    new.unlink(missing_ok=True)
                    new.symlink_to(checkpoint.folder.relative_to(self.run))
                    os.replace(new, link)

    def clean_up(self) -> None:
        """Delete what a killed writer left; a checkpoint that it had not yet replaced gets its name back."""
        for old in self.folder.glob(".old-*"):
            original = old.with_name(old.name.removeprefix(".old-"))
            if not original.exists():
                os.rename(old, original)
        for kind in (".new-*", ".old-*", ".gone-*"):
            for leftover in self.folder.glob(kind):
                _remove(leftover)


class _HashedFile:
    """A file that hashes what is written to it. It keeps the first error: `torch.save` would raise another one."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115 - closed by `_write_file`
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        if self.error is None:
            try:
                self.file.write(data)
                self.digest.update(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """`torch.save` calls it; `_write_file` flushes."""


def _write_file(path: Path, content: Any) -> str:
    """Put a file on disk; gives its SHA-256."""
    file = _HashedFile(path)
    try:
        if path.suffix == ".safetensors":
            write_safetensors(file, content)
        elif path.suffix == ".pt":
            torch.save(content, file)  # type: ignore[arg-type]
        else:
            file.write(content.encode())
        if file.error is not None:
            raise file.error
        file.file.flush()
        os.fsync(file.file.fileno())
    finally:
        with suppress(OSError):  # after a failed write it tries to write its buffer once more
            file.file.close()
    return file.digest.hexdigest()


def _remove(path: Path) -> None:
    """Delete a folder or a file, if there is one and the system allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(folder: Path) -> None:
    """Put the names in a folder on disk, if the file system supports it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
