"""Small networks to export: saved as timm's models are, with weights that hide nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from timm.models._hub import save_config_for_hf
from torch import nn

from flopping.checkpoints.files import write_weights
from flopping.testing import randomize_

LABELS = ["ankle boot", "bag", "coat", "dress", "sneaker"]
MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)
BATCHES = (1, 5)
NETWORKS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "E(ViT)": ("deit3_flop_test_patch16_64", {"depth": 1}, True),
    "H(ViT)": ("deit3_flop_hybrid_test_patch16_64", {"depth": 2, "handoffs": {"1": "hybrid"}}, False),
    "I(ViT)": ("deit3_flop_invariant_test_patch16_64", {"depth": 2, "handoffs": {"1": "invariant"}}, True),
    "E(ResMLP)": ("resmlp_flop_test_64", {"depth": 1}, True),
    "ResMLP": ("resmlp_test_64", {"depth": 1}, False),
    "E(ConvNeXt iso.)": ("convnext_flop_iso_test", {"depths": [1]}, True),
    "E(ConvNeXt)": ("convnext_flop_test", {"depths": [1, 1], "dims": [8, 16]}, True),
}
"""Its registered name, what makes it small, and whether a mirrored image has the same logits."""


@dataclass(frozen=True)
class Saved:
    """A network, and the folder that holds it."""

    folder: Path
    model: nn.Module
    mirror: bool


def saved(folder: Path, name: str, args: dict[str, Any], mirror: bool) -> Saved:
    """A checkpoint with classes and preprocessing of its own."""
    folder.mkdir()
    model = randomize_(timm.create_model(name, num_classes=len(LABELS), **args)).eval()
    model.pretrained_cfg.update(mean=MEAN, std=STD, crop_pct=0.8)
    save_config_for_hf(model, folder / "config.json", {"label_names": LABELS}, args)
    write_weights(model.state_dict(), folder / "model.safetensors")
    return Saved(folder, model, mirror)


def listing(folder: Path) -> dict[str, bytes]:
    """All files in a folder, hidden ones too, with their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
