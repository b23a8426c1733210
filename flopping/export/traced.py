"""The graph of a network, as `torch.export` sees it: what `.pt2` and `.onnx` are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

EXAMPLES = 2
"""Images to trace with. One or none would make a graph for that number alone."""


@torch.no_grad()
def traced(model: nn.Module, input_size: tuple[int, int, int], batch: int | None) -> ExportedProgram:
    """The graph for batches of one size, or of any."""
    example = torch.zeros(batch or EXAMPLES, *input_size)
    shapes = None if batch else ({0: Dim("batch")},)
    return torch.export.export(model, (example,), dynamic_shapes=shapes)
