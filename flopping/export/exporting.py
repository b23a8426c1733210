"""From a network to a file that is there only if it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flopping.classifier import Classifier, open_classifier
from flopping.export.check import Checked, CheckFailedError, check, pictures
from flopping.export.formats import format_of, require
from flopping.whole import whole, whole_folder

BATCHES = (1, 3)
"""Sizes of batches that a graph for any is checked with; it was traced with another one."""


class ExportError(RuntimeError):
    """A network that can't be written down, for a reason that shows when it is tried."""


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
    force: bool = False,
    progress: Callable[[str], object] = lambda text: None,
) -> Exported:
    """Write a network as `.pt2`, `.onnx` or a folder, read it back and compare; whole and right, or not at all.

    The target is a classifier, or anything that `open_classifier` opens. Without `batch`, graphs take any number of
    images. Raises `CheckFailedError` if what was written doesn't agree with the network; then what was there before
    is still there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = export("deit3_flop_test_patch16_64", f"{place}/small")
    >>> found.format, found.checked.batches, found.checked.difference
    ('folder', (1, 3), 0.0)
    """
    form = format_of(str(output))
    path = Path(output)
    require(form, path, batch=batch, opset=opset, force=force)
    if isinstance(target, Classifier):
        classifier = target
    else:
        progress(f"Opening {target}")
        classifier = open_classifier(target, average=average, img_size=img_size)
    form.refuse(classifier.model, classifier.name)
    with (whole if form.suffix else whole_folder)(path) as place:
        progress(f"Writing {path}")
        try:
            form.write(classifier, place, batch, opset)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # whatever a graph's maker doesn't understand
            reason = str(error).strip().split("\n")[0]
            raise ExportError(f"{classifier.name} can't be written as {form.name}: {reason}") from error
        progress(f"Checking {path}")
        images = [pictures(classifier.model, classifier.input_size, size) for size in ((batch,) if batch else BATCHES)]
        try:
            checked = check(form.read(place), classifier.model, images)
        except (OSError, MemoryError, CheckFailedError):
            raise
        except Exception as error:  # each reader has its own
            reason = str(error).strip().split("\n")[0]
            raise CheckFailedError(f"what was written can't be run: {reason or type(error).__name__}") from error
        size = sum(file.stat().st_size for file in ([place] if place.is_file() else place.iterdir()))
    return Exported(path, form.name, classifier.name, size, checked)
