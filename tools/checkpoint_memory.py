"""The peak of host memory while a checkpoint is saved, beyond what the training itself holds.

    python tools/checkpoint_memory.py --model deit3_flop_base_patch16_224

Linux only: the peak is the kernel's (VmHWM), reset before saving. Between saving and the file there is nothing of the
network but one tensor at a time, so on a CPU the peak is far below the size of the checkpoint; a GPU or `--copies`
(CPU copies of one part, as `full_state_dict` with `cpu_offload` makes them) adds the largest part.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from timm.utils import ModelEmaV3

import flopping  # noqa: F401 - registers the models
from flopping.checkpoints.weight_files import CONFIG, WEIGHTS
from flopping.training.checkpoint import AVERAGE, TRAINING, CheckpointManager


def memory(kind: str) -> int:
    """Bytes that this process holds (VmRSS), or has held at most (VmHWM)."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def copied(value: Any) -> Any:
    """The same with tensors copied."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return {key: copied(each) for key, each in value.items()} if isinstance(value, dict) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit3_flop_base_patch16_224")
    parser.add_argument("--copies", action="store_true")
    options = parser.parse_args()
    model = timm.create_model(options.model)
    average = ModelEmaV3(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    names = {parameter: name for name, parameter in model.named_parameters()}

    def parts() -> Iterator[tuple[str, Any]]:
        take = copied if options.copies else lambda value: value
        yield CONFIG, "{}"
        yield WEIGHTS, take(model.state_dict())
        yield AVERAGE, take(average.module.state_dict())
        yield TRAINING, take({names[parameter]: dict(state) for parameter, state in optimizer.state.items()})

    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(Path(folder))
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        path = manager.save(1, None, parts())
        peak = memory("VmHWM") - before
        size = sum(file.stat().st_size for file in path.iterdir())
    print(f"{options.model}: checkpoint {size / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB, {peak / size:.2f} of its size")


if __name__ == "__main__":
    main()
