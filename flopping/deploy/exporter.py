"""Export a network as `.pt2`, `.onnx` or a folder that timm loads. What was written is read back and compared."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from flopping.checkpoints.weight_files import CONFIG, fill_folder, require_output_folder
from flopping.deploy import onnx_file
from flopping.deploy.classifier import Classifier, open_classifier
from flopping.errors import UsageError
from flopping.files import atomic_write, read_json, require_writable, suffix_of
from flopping.groups import flop
from flopping.models.backbone import Backbone
from flopping.testing import relative_error
from flopping.training.networks import ignores
from flopping.training.preprocessing import normalisation_of

Run = Callable[[Tensor], Tensor]
"""From images `(B, C, H, W)` to logits `(B, classes)`."""
TOLERANCE = 1e-4
"""The largest difference of two logits, as a share of the largest logit, that rounding may account for."""
BATCHES = (1, 3)
"""Batch sizes that a graph for any is checked with; it was traced with another one."""


class ExportError(RuntimeError):
    """A network that the format can't express."""


class CheckFailedError(RuntimeError):
    """An exported network whose logits are not those of the network."""


@dataclass(frozen=True)
class Checked:
    """What a check found; differences are shares of the largest logit."""

    batches: tuple[int, ...]
    difference: float
    """Between the logits of the exported network and those of the network."""
    mirror_difference: float
    """Between the logits of images and of mirrored images, both by the exported network."""
    ignores_mirroring: bool
    """Whether the network gives the same logits for both: E(X) and I(X) do, H(X) and X don't."""


@dataclass(frozen=True)
class Exported:
    """What was written, and what its check found."""

    path: Path
    format: str
    model: str
    bytes: int
    checked: Checked

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, **found.pop("checked"), "path": str(self.path)}


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


def describe(classifier: Classifier) -> dict[str, Any]:
    """What a user of an exported network has to know, as plain data: its classes and its preprocessing.

    An image is resized so that its shorter side is that of `input_size` divided by `crop_pct`, its middle is cut out,
    its pixels are divided by 255, and then shifted by `mean` and divided by `std`, channel by channel.
    """
    cfg = resolve_model_data_config(classifier.model)
    normalisation = classifier.normalisation
    return {
        "name": classifier.name,
        "labels": list(classifier.labels),
        "input_size": list(classifier.input_size),
        "mean": list(normalisation.mean),
        "std": list(normalisation.std),
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
        args = read_json(classifier.folder / CONFIG).get("model_args", {})
    fill_folder(path, classifier.model, args, classifier.labels, size)


FORMATS = (
    Format("pt2", ".pt2", _write_pt2, lambda path: torch.export.load(path).module(), ("--batch",)),
    Format("onnx", ".onnx", _write_onnx, onnx_file.read, ("--batch", "--opset")),
    Format("folder", "", _write_folder, lambda path: timm.create_model(f"local-dir:{path}", pretrained=True).eval()),
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
    if form.name == "onnx":
        require_onnx()
    (require_writable if form.suffix else require_output_folder)(output, force, python="force=True")


def require_onnx() -> None:
    missing = [name for name in ("onnx", "onnx_ir", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UsageError(f"onnx needs {', '.join(missing)}: pip install 'flopping[onnx]'")


def export(
    target: str | Classifier,
    output: str | Path,
    *,
    batch: int | None = None,
    opset: int | None = None,
    img_size: int | None = None,
    average: bool = False,
    code: str | None = None,
    force: bool = False,
    progress: Callable[[str], object] = lambda text: None,
) -> Exported:
    """Write a network as `.pt2`, `.onnx` or a folder, read it back and compare; whole and right, or not at all.

    The target is a classifier, or anything that `open_classifier` opens. Without `batch`, graphs take any number of
    images. Raises `CheckFailedError` if the exported network doesn't agree with the network; then what was there
    before is still there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = export("deit3_flop_test_patch16_64", f"{place}/small")
    >>> found.format, found.checked.batches, found.checked.difference
    ('folder', (1, 3), 0.0)
    """
    form = find_format(str(output))
    path = Path(output)
    require_valid_request(form, path, batch=batch, opset=opset, force=force)
    progress("Opening the network")
    if isinstance(target, str):
        target = open_classifier(target, average=average, code=code, img_size=img_size)
    classifier = target
    if form.name == "onnx":
        onnx_file.require_small(classifier.model, classifier.name)
    if form.name == "folder" and not timm.is_model(classifier.name):
        raise UsageError(f"{classifier.name!r} is no architecture that timm knows: it is exported as .pt2 or .onnx")
    with atomic_write(path, folder=not form.suffix) as place:
        progress(f"Writing {path}")
        with _raise_as(ExportError, f"{classifier.name} can't be written as {form.name}"):
            form.write(classifier, place, batch, opset)
        progress(f"Checking {path}")
        images = [make_images(classifier.model, classifier.input_size, n) for n in ((batch,) if batch else BATCHES)]
        with _raise_as(CheckFailedError, "what was written can't be run"):
            checked = check(form.read(place), classifier.model, images)
        size = sum(file.stat().st_size for file in ([place] if place.is_file() else place.iterdir()))
    return Exported(path, form.name, classifier.name, size, checked)


@contextmanager
def _raise_as(kind: type[Exception], what: str) -> Iterator[None]:
    """Raise errors of tracers, writers and readers, which have their own, as ours."""
    try:
        yield
    except (OSError, MemoryError, CheckFailedError):
        raise
    except Exception as error:
        raise kind(f"{what}: {next(iter(str(error).strip().splitlines()), type(error).__name__)}") from error


@torch.no_grad()
def check(run: Run, model: nn.Module, batches: Sequence[Tensor]) -> Checked:
    """Compare an exported network with the network, on images and mirrored images."""
    difference = mirror = 0.0
    expected = True
    for images in batches:
        mirrored = images.flip(-1)
        (logits, wanted), (mirrored_logits, mirrored_wanted) = ((run(x), model(x)) for x in (images, mirrored))
        if isinstance(model, Backbone):
            expected = ignores(model, flop)
        else:  # a network that isn't ours has the property if it has it here
            expected = expected and relative_error(mirrored_wanted, wanted) < TOLERANCE / 10
        difference = max(difference, relative_error(logits, wanted), relative_error(mirrored_logits, mirrored_wanted))
        mirror = max(mirror, relative_error(mirrored_logits, logits))
    if difference > TOLERANCE:
        raise CheckFailedError(f"its logits differ from the network's by {difference:.1e} of the largest")
    if expected and mirror > TOLERANCE:
        raise CheckFailedError(f"its logits for mirrored images differ by {mirror:.1e} of the largest")
    return Checked(tuple(len(images) for images in batches), difference, mirror, expected)


def make_images(model: nn.Module, size: tuple[int, int, int], batch: int) -> Tensor:
    """Random images `(batch, *size)`, normalised for the network: soft shapes and a little noise.

    >>> tuple(make_images(nn.Identity(), (3, 8, 8), batch=2).shape)
    (2, 3, 8, 8)
    """
    generator = torch.Generator().manual_seed(batch)
    shapes = F.interpolate(torch.rand(batch, size[0], 6, 6, generator=generator), size=size[1:], mode="bicubic")
    pixels = (shapes + 0.05 * torch.randn(batch, *size, generator=generator)).clamp(0, 1)
    normalisation = normalisation_of(model, size[0])
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalisation.mean, normalisation.std))
    return (pixels - mean) / std
