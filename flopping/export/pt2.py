"""`.pt2`: the graph as PyTorch itself writes it, for Python and, compiled ahead of time, for C++."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from flopping.classifier import Classifier
from flopping.export.check import Run
from flopping.export.describe import description
from flopping.export.traced import traced

DESCRIPTION = "flopping.json"
"""The file in the archive that holds classes and preprocessing."""


def write(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    program = traced(classifier.model, classifier.input_size, batch)
    archive = io.BytesIO()  # torch ends the whole process if it writes to a disk that is full
    torch.export.save(program, archive, extra_files={DESCRIPTION: json.dumps(description(classifier))})
    path.write_bytes(archive.getbuffer())


def read(path: Path) -> Run:
    found: Run = torch.export.load(path).module()
    return found
