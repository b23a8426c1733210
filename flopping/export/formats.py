"""The formats, as rows of a table, told by suffix; what can't be written is refused before the work begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from flopping.classifier import Classifier
from flopping.export import folder, onnx_file, pt2
from flopping.export.check import Run
from flopping.places import require_place, suffix_of


@dataclass(frozen=True)
class Format:
    """A way to write a network down."""

    name: str
    suffix: str
    write: Callable[[Classifier, Path, int | None, int | None], None]
    """Gets the network, the place, a fixed size of batches, and the version of the operators."""
    read: Callable[[Path], Run]
    options: tuple[str, ...] = ()
    """What may be asked of it."""
    modules: tuple[str, ...] = ()
    extra: str = ""
    """The extra of this package that brings these modules."""
    refuse: Callable[[nn.Module, str], None] = lambda model, name: None
    """Raises for networks, given with their names, that can't be written this way."""


FORMATS = (
    Format("pt2", ".pt2", pt2.write, pt2.read, options=("--batch",)),
    Format(
        "onnx",
        ".onnx",
        onnx_file.write,
        onnx_file.read,
        options=("--batch", "--opset"),
        modules=("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
        extra="onnx",
        refuse=onnx_file.refuse_large,
    ),
    Format("folder", "", folder.write, folder.read, refuse=folder.refuse_strange),
)


def format_of(output: str) -> Format:
    """The format that a name asks for: its suffix, or a folder's lack of one.

    >>> format_of("model.onnx").name, format_of("exports/v1.2/").name, format_of("mine").name
    ('onnx', 'folder', 'folder')
    >>> format_of("model.tflite")
    Traceback (most recent call last):
    ...
    ValueError: can't write 'model.tflite': names end in .pt2 or .onnx, and a folder's in no suffix or in /
    """
    suffix = suffix_of(output, [form.suffix for form in FORMATS if form.suffix])
    if output.endswith(("/", os.sep)):
        suffix = ""
    for form in FORMATS:
        if form.suffix == suffix:
            return form
    raise ValueError(f"can't write {output!r}: names end in .pt2 or .onnx, and a folder's in no suffix or in /")


def require(form: Format, output: Path, *, batch: int | None, opset: int | None, force: bool) -> None:
    """Refuse what can't be written, in words that say what would be right."""
    for option, value in (("--batch", batch), ("--opset", opset)):
        if value is not None and option not in form.options:
            having = " or ".join(other.suffix for other in FORMATS if option in other.options)
            raise ValueError(f"{option} {value} is for {having}, and {str(output)!r} is {_kind(form)}")
    if batch is not None and batch < 1:
        raise ValueError(f"--batch is at least 1, got {batch}")
    if opset is not None and opset not in onnx_file.OPSETS:
        raise ValueError(f"--opset is between {onnx_file.OPSETS[0]} and {onnx_file.OPSETS[-1]}, got {opset}")
    require_modules(form)
    require_place(output, force, folder=not form.suffix)
    _require_ours(output)


def require_modules(form: Format) -> None:
    """Refuse to begin what can't be finished without an extra."""
    missing = [name for name in form.modules if find_spec(name) is None]
    if missing:
        raise ValueError(f"{_kind(form)} needs {', '.join(missing)}: pip install 'flopping[{form.extra}]'")


def _require_ours(output: Path) -> None:
    """A folder that holds more than we write is not replaced."""
    strange = sorted(set(os.listdir(output)) - folder.CONTENTS) if output.is_dir() else []
    if strange:
        raise ValueError(f"{str(output)!r} holds more than an exported network ({strange[0]!r}), and is not replaced")


def _kind(form: Format) -> str:
    return form.suffix or "a folder"
