"""`.onnx` files: traced, written and run; classes and preprocessing are their metadata."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from flopping.errors import UsageError
from flopping.models.fuse import fuse

if TYPE_CHECKING:
    import onnxruntime

INPUT, OUTPUT = "image", "logits"
OPSETS = range(18, 24)
"""Versions of the operators that PyTorch writes and ONNX Runtime reads."""
DEFAULT_OPSET = 20
"""The first one with GELU as one operator."""
LARGEST = 2**31 - 2**26
"""Bytes of weights that a file may hold: 2 GB is the limit of its format, and the graph needs some."""


def require_small(model: nn.Module, name: str) -> None:
    """Refuse weights beyond 2 GB: they would need a second file, which gets lost."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if size > LARGEST:
        raise UsageError(f"{name} has {size / 1e9:.1f} GB of weights, and .onnx holds 2 GB at most: export it as .pt2")


@torch.no_grad()
def trace(model: nn.Module, input_size: tuple[int, int, int], batch: int | None) -> ExportedProgram:
    """The graph of a network's inference form, for batches of one size, or of any.

    A trace with one image would take one image only.
    """
    example = torch.zeros(batch or 2, *input_size)
    return torch.export.export(fuse(model), (example,), dynamic_shapes=None if batch else ({0: Dim("batch")},))


def write_graph(
    model: nn.Module,
    input_size: tuple[int, int, int],
    path: Path,
    batch: int | None = None,
    opset: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the graph for batches of one size, or of any; metadata that isn't text becomes JSON."""
    program = trace(model, input_size, batch)
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
    assert made is not None  # it is None only where the exporter writes the file itself
    for key, value in (metadata or {}).items():
        made.model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    made.save(path, external_data=False)


def read(path: Path) -> Callable[[Tensor], Tensor]:
    session = start_session(path, threads=torch.get_num_threads())

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: images.numpy(force=True)})
        return torch.from_numpy(logits)

    return run


def start_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """The graph in ONNX Runtime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextmanager
def _silence() -> Iterator[None]:
    """Hide messages of the exporter about its own implementation."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
