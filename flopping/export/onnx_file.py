"""`.onnx`: the graph for ONNX Runtime and all others that read it, with classes and preprocessing as its metadata."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flopping.classifier import Classifier
from flopping.export.check import Run
from flopping.export.describe import INPUT, OUTPUT, description
from flopping.export.traced import traced

if TYPE_CHECKING:
    import onnxruntime

OPSETS = range(18, 24)
"""Versions of the operators that PyTorch can write, and ONNX Runtime reads."""
DEFAULT_OPSET = 20
"""The first one with GELU as one operator."""
LARGEST = 2**31 - 2**26
"""Bytes of weights that a file may hold: 2 GB is the limit of its format, and the graph needs some."""


def refuse_large(model: nn.Module, name: str) -> None:
    """Weights beyond 2 GB would need a second file, which gets lost."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if size > LARGEST:
        raise ValueError(
            f"{name} has {size / 1e9:.1f} GB of weights, and an .onnx file holds 2 GB at most: export it as .pt2 or as"
            " a folder"
        )


def write(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    """The graph, and all that its users have to know, in one file."""
    write_graph(classifier.model, classifier.input_size, path, batch, opset, metadata(description(classifier)))


def write_graph(
    model: nn.Module,
    input_size: tuple[int, int, int],
    path: Path,
    batch: int | None = None,
    opset: int | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """The graph for batches of one size, or of any."""
    from flopping.export.fold import fold

    program = traced(model, input_size, batch)
    with _silence():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=None if batch else ({0: "batch"},),  # the name that users see
            opset_version=opset or DEFAULT_OPSET,
            verbose=False,
        )
    assert made is not None  # as it is only where the exporter writes the file itself
    fold(made.model.graph)
    made.model.metadata_props.update(about or {})
    made.save(path, external_data=False)


def metadata(about: dict[str, Any]) -> dict[str, str]:
    """Metadata are words: what isn't becomes JSON.

    >>> metadata({"name": "a", "mean": [0.5]})
    {'name': 'a', 'mean': '[0.5]'}
    """
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}


def read(path: Path) -> Run:
    started = session(path, threads=torch.get_num_threads())

    def run(images: Tensor) -> Tensor:
        (logits,) = started.run([OUTPUT], {INPUT: images.numpy(force=True)})
        return torch.from_numpy(logits)

    return run


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """The graph in ONNX Runtime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnxruntime_version() -> str:
    """Of the module: the package that brings it may have another name."""
    import onnxruntime

    return str(onnxruntime.__version__)


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter speaks of its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
