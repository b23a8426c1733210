"""Small networks in folders, saved as timm's models are, with weights that hide nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
from timm.models._hub import save_config_for_hf
from torch import nn

from flopping.checkpoints.weight_files import write_weights
from flopping.testing import randomize_

TINY = "deit3_flop_test_patch16_64"
LABELS = ["ankle boot", "bag", "coat", "dress", "sneaker"]


def save_network(
    folder: Path, name: str = TINY, labels: list[str] | None = None, cfg: dict[str, Any] | None = None, **args: Any
) -> nn.Module:
    """Save a network with random weights; `labels` are its classes, and `cfg` changes its preprocessing."""
    if labels is not None:
        args.setdefault("num_classes", len(labels))
    model = randomize_(timm.create_model(name, **args)).eval()
    model.pretrained_cfg.update(cfg or {})
    folder.mkdir(exist_ok=True)
    save_config_for_hf(model, folder / "config.json", {} if labels is None else {"label_names": labels}, args)
    write_weights(model.state_dict(), folder / "model.safetensors")
    return model


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def list_files(folder: Path) -> dict[str, bytes]:
    """All files in a folder, hidden ones too, with their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
