"""Files of weights: read as data, never as code; written whole or not at all."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

NESTED = ("model", "state_dict", "model_state_dict")
"""Where training scripts put the weights beside their other state."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of one that `torch.save` wrote, which may hold nothing but data."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for name in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
            break
    strange = [key for key, value in content.items() if not isinstance(key, str) or not isinstance(value, Tensor)]
    if strange or not content:
        kinds = ", ".join(f"{key!r} ({type(content[key]).__name__})" for key in strange[:4]) or "nothing"
        raise ValueError(f"{str(path)!r} is no table of weights: besides tensors it holds {kinds}")
    return dict(content)


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} is no whole .safetensors file: {error}") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        what = str(error).splitlines()[0]
        hint = "it holds more than data, and code in it is never run" if is_zipfile(path) else "it is no whole file"
        raise ValueError(f"{str(path)!r} can't be read: {hint} ({what})") from error
    except (RuntimeError, EOFError, OSError, BadZipFile, ValueError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is no whole file of weights: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(path)!r} holds a {type(content).__name__}, not a table of weights")
    return content


def write_weights(
    state_dict: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """A `.safetensors` file; it appears under its name once it is whole, so an older one is never half-overwritten."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"weights are written as .safetensors, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"no folder {str(path.parent)!r}")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        tensors = {key: value.detach().contiguous() for key, value in state_dict.items()}
        save_file(tensors, name, metadata={"format": "pt", **(metadata or {})})
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
