"""Files of weights: read as data, never as code; written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import BaseModel, Field, FiniteFloat, PositiveInt, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from flopping.errors import UsageError, as_usage_error
from flopping.files import atomic_write, read_json, require_output, require_writable
from flopping.models.arguments import MAX_IMG_SIZE

CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""The files of a folder that timm loads."""
OVERWRITE = "overwrite=True"
"""What stands for `--force` in Python."""
_NESTED = ("model", "state_dict", "model_state_dict", "teacher")
"""Where training scripts put the weights beside their other state."""
_WORDS = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U"}


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of one that `torch.save` wrote, which may hold nothing but data."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}")
    if path.suffix != ".safetensors":
        return table_of_weights(read_torch(path), repr(str(path)))
    with as_usage_error(SafetensorError, OSError, context=f"{str(path)!r} is no whole .safetensors file"):
        return table_of_weights(load_file(path), repr(str(path)))


def table_of_weights(content: object, what: str) -> dict[str, Tensor]:
    """Names and tensors, which may lie beside the other state of a training run; anything else is refused."""
    if not isinstance(content, Mapping):
        raise UsageError(f"{what} is no table of weights but a {type(content).__name__}")
    table: Mapping[Any, Any] = content
    table = next((table[name] for name in _NESTED if isinstance(table.get(name), Mapping)), table)
    for key, value in table.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UsageError(f"{what} is no table of weights: it holds {key!r} ({type(value).__name__})")
    if not table:
        raise UsageError(f"{what} holds no weights")
    return dict(table)


Side = Annotated[int, Field(ge=1, le=MAX_IMG_SIZE)]


class PretrainedConfig(BaseModel):
    """What a config.json says about images; timm takes its own values for what is missing."""

    input_size: tuple[PositiveInt, Side, Side] = (3, 224, 224)
    crop_pct: Annotated[float, Field(strict=True, ge=0.1, le=1)] = 1.0
    crop_mode: Literal["center", "squash", "border"] = "center"
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bicubic"
    mean: tuple[FiniteFloat, ...] | None = None
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] | None = None

    @model_validator(mode="after")
    def _one_value_per_channel(self) -> PretrainedConfig:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.input_size[0]:
                channels = f"images of {self.input_size[0]} x {self.input_size[1]} x {self.input_size[2]}"
                raise ValueError(f"{name} has one value per channel of {channels}, got {list(values)}")
        return self


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder that timm loads; one that no images can be prepared by is refused."""
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UsageError(f"{str(path)!r} names no architecture: it is none of timm's")
    try:
        PretrainedConfig.model_validate(config.get("pretrained_cfg") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        what = f"{where}: {message}, got {first['input']!r}" if where else message
        raise UsageError(f"{str(path)!r}: {what}") from error
    return config


def read_torch(path: Path) -> object:
    """What `torch.save` wrote, if it is nothing but data."""
    with warnings.catch_warnings(), torch.serialization.safe_globals([Namespace]):  # the options of a training run
        warnings.simplefilter("ignore")  # about other formats, in files that are refused anyway
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle fails in as many ways as there are instructions
            code: list[str] = []
            with suppress(Exception):  # for the same reason, and because torch lists the code of its zip files only
                code = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            if code:
                raise UsageError(f"{str(path)!r} holds {code[0]}, which is no data, and code is never run") from error
            raise UsageError(
                f"{str(path)!r} is no whole file of weights and plain data that torch.save wrote"
                f" ({type(error).__name__})"
            ) from error


def write_weights(
    state_dict: Mapping[str, Tensor],
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """A `.safetensors` file; it appears under its name once it is whole, so an older one is never half-overwritten."""
    path = Path(path)
    require_output(path, ".safetensors", overwrite, OVERWRITE)
    with atomic_write(path) as place:
        _save(state_dict, place, metadata)


def _save(state_dict: Mapping[str, Tensor], place: Path, metadata: Mapping[str, str] | None = None) -> None:
    with open(place, "wb") as file:
        write_safetensors(file, state_dict, metadata)


class Writable(Protocol):
    """A file, or what passes on to one."""

    def write(self, data: memoryview, /) -> object: ...


def write_safetensors(file: Writable, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors one by one. `safetensors.torch.save_file` takes no open file, and hides the system's errors."""
    # wide types first, as the library does, so that all values are aligned
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _name_dtype(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(memoryview(len(text).to_bytes(8, "little") + text))
    for _, tensor in ordered:
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _name_dtype(dtype: torch.dtype) -> str:
    """The name of a type in safetensors.

    >>> _name_dtype(torch.bfloat16), _name_dtype(torch.uint8), _name_dtype(torch.bool)
    ('BF16', 'U8', 'BOOL')
    """
    word, bits = re.fullmatch(r"torch\.([a-z]+)(\d*)", str(dtype)).groups()  # type: ignore[union-attr]
    return f"{_WORDS[word]}{bits}" if bits else word.upper()


def require_output_folder(path: Path, overwrite: bool, python: str = OVERWRITE) -> None:
    """Refuse a folder that can't be written, or that holds more than a saved network."""
    require_writable(path, overwrite, folder=True, python=python)
    others = sorted(set(os.listdir(path)) - {CONFIG, WEIGHTS}) if path.is_dir() else []
    if others:
        raise UsageError(f"{str(path)!r} holds more than a saved network ({others[0]!r}), and is not replaced")


def fill_folder(
    folder: Path,
    model: nn.Module,
    model_args: Mapping[str, Any],
    labels: Sequence[str] | None = None,
    input_size: Sequence[int] | None = None,
) -> None:
    """Write what timm loads a network from into a folder that `atomic_write` made.

    These are the weights, and a config with the arguments, the classes and the preprocessing.
    """
    path = folder / CONFIG
    save_config_for_hf(model, path, {} if labels is None else {"label_names": list(labels)}, model_args)
    config = json.loads(path.read_text(encoding="utf-8"))
    if input_size is not None:
        config["pretrained_cfg"]["input_size"] = list(input_size)
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    _save(model.state_dict(), folder / WEIGHTS)
