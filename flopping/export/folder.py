"""A folder: `model.safetensors` and `config.json`, which `timm.create_model("local-dir:FOLDER")` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
from timm.models._hub import save_config_for_hf
from torch import nn

from flopping.checkpoints.files import write_weights
from flopping.classifier import Classifier
from flopping.export.check import Run
from flopping.training.checkpoint import CONFIG, WEIGHTS

CONTENTS = {CONFIG, WEIGHTS}


def refuse_strange(model: nn.Module, name: str) -> None:
    """A folder holds weights, not code: timm has to know the architecture."""
    if not timm.is_model(name):
        raise ValueError(
            f"a folder holds weights for an architecture that timm knows, and {name!r} is none: register it with timm,"
            " or export it as .pt2 or .onnx"
        )


def write(classifier: Classifier, path: Path, batch: int | None, opset: int | None) -> None:
    own = classifier.folder
    args = json.loads((own / CONFIG).read_text(encoding="utf-8")).get("model_args", {}) if own else _args(classifier)
    save_config_for_hf(classifier.model, path / CONFIG, {"label_names": list(classifier.labels)}, args)
    config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    config["pretrained_cfg"]["input_size"] = list(classifier.input_size)
    (path / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    write_weights(classifier.model.state_dict(), path / WEIGHTS)


def _args(classifier: Classifier) -> dict[str, Any]:
    """Arguments that make a network by name: its size, where it was asked for another one."""
    cfg = timm.get_pretrained_cfg(classifier.name)
    size = classifier.input_size
    return {"img_size": size[1]} if cfg is not None and cfg.fixed_input_size and cfg.input_size != size else {}


def read(path: Path) -> Run:
    model: Run = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    return model
