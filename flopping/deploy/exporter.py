"""Export a network: write it, read it back, and compare it with the network, number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.deploy.classifier import Classifier, open_classifier
from flopping.deploy.formats import Run, find_format, require_valid_request
from flopping.files import atomic_write, atomic_write_folder
from flopping.groups import flop
from flopping.models.backbone import Backbone
from flopping.testing import relative_error
from flopping.training.networks import ignores
from flopping.training.preprocessing import normalisation_of

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
    """The batch sizes that were tried."""
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
    form.require_fit(classifier.model, classifier.name)
    with (atomic_write if form.suffix else atomic_write_folder)(path) as place:
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
    normal = normalisation_of(model, size[0])
    mean, std = (torch.tensor(values)[:, None, None] for values in (normal.mean, normal.std))
    return (pixels - mean) / std
