"""The formats of exported networks: `.pt2`, `.onnx`, and a folder that timm loads."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from flopping.checkpoints.weight_files import CONFIG, fill_folder, require_output_folder
from flopping.deploy import onnx_file
from flopping.deploy.classifier import Classifier
from flopping.errors import UsageError
from flopping.files import require_writable, suffix_of

Run = Callable[[Tensor], Tensor]
"""From images `(B, C, H, W)` to logits `(B, classes)`."""


@dataclass(frozen=True)
class Format:
    """A way to write a network."""

    name: str
    suffix: str
    write: Callable[[Classifier, Path, int | None, int | None], None]
    """Takes the network, the path, the batch size of the graph (None for any), and the version of the operators."""
    read: Callable[[Path], Run]
    options: tuple[str, ...] = ()
    """The options of the command line that it has."""
    modules: tuple[str, ...] = ()
    """The modules that it needs, of the extra with its name."""
    require_fit: Callable[[nn.Module, str], None] = lambda model, name: None
    """Raises for networks, given with their names, that can't be written in this format."""


def describe(classifier: Classifier) -> dict[str, Any]:
    """What a user of an exported network has to know, as plain data: its classes and its preprocessing.

    An image is resized so that its shorter side is that of `input_size` divided by `crop_pct`, its middle is cut out,
    its pixels are divided by 255, and then shifted by `mean` and divided by `std`, channel by channel.
    """
    cfg = resolve_model_data_config(classifier.model)
    normal = classifier.normalisation
    return {
        "name": classifier.name,
        "labels": list(classifier.labels),
        "input_size": list(classifier.input_size),
        "mean": list(normal.mean),
        "std": list(normal.std),
        **{key: cfg[key] for key in ("interpolation", "crop_pct", "crop_mode")},
        "trained": classifier.trained,
        "producer": f"flopping {version('flopping')}",
    }


def _write_pt2(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    program = onnx_file.trace(classifier.model, classifier.input_size, batch)
    archive = io.BytesIO()  # torch ends the whole process if it writes to a disk that is full
    torch.export.save(program, archive, extra_files={"flopping.json": json.dumps(describe(classifier))})
    path.write_bytes(archive.getbuffer())


def _write_onnx(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    onnx_file.write_graph(classifier.model, classifier.input_size, path, batch, opset, describe(classifier))


def _write_folder(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    size = classifier.input_size
    cfg = timm.get_pretrained_cfg(classifier.name)
    args = {"img_size": size[1]} if cfg is not None and cfg.fixed_input_size and cfg.input_size != size else {}
    if classifier.folder is not None:
        args = json.loads((classifier.folder / CONFIG).read_text(encoding="utf-8")).get("model_args", {})
    fill_folder(path, classifier.model, args, classifier.labels, size)


def _require_registered(model: nn.Module, name: str) -> None:
    if not timm.is_model(name):
        raise UsageError(f"{name!r} is no architecture that timm knows, so it is exported as .pt2 or .onnx")


ONNX = Format(
    "onnx",
    ".onnx",
    _write_onnx,
    onnx_file.read,
    options=("--batch", "--opset"),
    modules=("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    require_fit=onnx_file.require_small,
)
FORMATS = (
    Format("pt2", ".pt2", _write_pt2, lambda path: torch.export.load(path).module(), options=("--batch",)),
    ONNX,
    Format(
        "folder",
        "",
        _write_folder,
        lambda path: timm.create_model(f"local-dir:{path}", pretrained=True).eval(),
        require_fit=_require_registered,
    ),
)


def find_format(output: str) -> Format:
    """The format of a suffix; a folder has none.

    >>> find_format("model.onnx").name, find_format("exports/v1.2/").name, find_format("mine").name
    ('onnx', 'folder', 'folder')
    """
    suffix = suffix_of(output, [form.suffix for form in FORMATS if form.suffix])
    if output.endswith(("/", os.sep)):
        suffix = ""
    for form in FORMATS:
        if form.suffix == suffix:
            return form
    raise UsageError(f"can't write {output!r}: names end in .pt2 or .onnx, and a folder's in no suffix or in /")


def require_valid_request(form: Format, output: Path, *, batch: int | None, opset: int | None, force: bool) -> None:
    """Refuse what can't be written, before the work begins."""
    for option, value in (("--batch", batch), ("--opset", opset)):
        if value is not None and option not in form.options:
            having = " or ".join(other.suffix for other in FORMATS if option in other.options)
            raise UsageError(f"{option} {value} is for {having}, got {str(output)!r}")
    if batch is not None and batch < 1:
        raise UsageError(f"--batch is at least 1, got {batch}")
    if opset is not None and opset not in onnx_file.OPSETS:
        raise UsageError(f"--opset is between {onnx_file.OPSETS[0]} and {onnx_file.OPSETS[-1]}, got {opset}")
    require_modules(form)
    (require_writable if form.suffix else require_output_folder)(output, force)


def require_modules(form: Format = ONNX) -> None:
    missing = [name for name in form.modules if find_spec(name) is None]
    if missing:
        raise UsageError(f"{form.name} needs {', '.join(missing)}: pip install 'flopping[{form.name}]'")
