"""The network of a run: built by a recipe, described for timm, loaded from a checkpoint."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from timm.layers import DropPath
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from flopping.checkpoints.weight_files import read_weights
from flopping.data.augment import Normalisation, Preparation, create_eval_transform
from flopping.data.order import derive_seed, seed_generators
from flopping.errors import UsageError, as_usage_error
from flopping.groups.symmetries import SYMMETRIES
from flopping.models.backbone import Backbone
from flopping.models.blocks import find_blocks
from flopping.models.weights import load_weights, under_our_names
from flopping.models.zoo import registered_name
from flopping.nn import DropPath as EquivariantDropPath
from flopping.training.checkpoint import AVERAGE, CONFIG, MANIFEST, WEIGHTS, read_manifest
from flopping.training.recipe import Recipe


def ignores_mirroring(model: nn.Module) -> bool:
    """Whether a mirrored image gives the same logits by construction: E(X) and I(X), but not H(X) and X.

    >>> ignores_mirroring(timm.create_model("deit3_flop_test_patch16_64"))
    True
    >>> ignores_mirroring(timm.create_model("deit3_flop_hybrid_test_patch16_64"))
    False
    """
    return isinstance(model, Backbone) and SYMMETRIES["flop"] in model.layouts[-1].group.symmetries


def build(recipe: Recipe, name: str, classes: int) -> nn.Module:
    """The network of a recipe, with weights that its seed decides."""
    registered = registered_name(name)
    args: dict[str, Any] = {"drop_rate": recipe.dropout, **recipe.model_args}
    cfg = timm.get_pretrained_cfg(registered)
    if cfg is not None and cfg.fixed_input_size:
        args.setdefault("img_size", recipe.img_size)
    seed_generators(derive_seed(recipe.seed, "weights"))
    with as_usage_error(TypeError, ValueError, context=f"{name} can't be made with {args}"):
        model: nn.Module = timm.create_model(
            registered, pretrained=False, num_classes=classes, in_chans=recipe.in_chans, **args
        )
    set_drop_path(find_blocks(model), recipe.drop_path, recipe.drop_path_rises)
    return model


def set_drop_path(blocks: Sequence[nn.Module], rate: float, rises: bool) -> None:
    """Give blocks their stochastic depth: the same to all, or rising from 0 to the rate, as the recipe has it.

    Architectures have their own habits, and X and E(X) different ones: the recipe decides for both.
    """
    rates = torch.linspace(0, rate, len(blocks), device="cpu").tolist() if rises else [rate] * len(blocks)
    for block, own in zip(blocks, rates, strict=True):
        for name, layer in block.named_children():
            if isinstance(layer, EquivariantDropPath):
                layer.drop_prob = own
            elif name in ("drop_path", "drop_path1", "drop_path2"):
                setattr(block, name, DropPath(own) if own else nn.Identity())


def normalisation(recipe: Recipe, model: nn.Module) -> Normalisation:
    """Mean and deviation of the recipe, or those that the network was made for."""
    cfg = resolve_model_data_config(model)
    mean, std = recipe.mean or cfg["mean"], recipe.std or cfg["std"]
    return Normalisation.for_channels(mean, std, recipe.in_chans)


def create_config(model: nn.Module, recipe: Recipe, normal: Normalisation, labels: Sequence[str]) -> str:
    """The content of a config.json, by which timm makes the network from a folder with its weights."""
    size = recipe.img_size
    model.pretrained_cfg.update(  # type: ignore[operator, union-attr]
        input_size=(recipe.in_chans, size, size),
        mean=normal.mean,
        std=normal.std,
        crop_pct=recipe.test_crop,
        interpolation=recipe.interpolation,
        num_classes=len(labels),
    )
    args = {"in_chans": recipe.in_chans, **recipe.model_args}
    if model.pretrained_cfg.get("fixed_input_size"):  # type: ignore[operator, union-attr]
        args.setdefault("img_size", size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        save_config_for_hf(model, path, {"label_names": list(labels)}, args)
        return path.read_text(encoding="utf-8")


def find_checkpoint(path: Path) -> Path:
    """The folder of a checkpoint: itself, or the best or last one of a run. Links are followed."""
    for folder in (path, path / "best", path / "last"):
        if (folder / CONFIG).is_file() or (folder / WEIGHTS).is_file():
            return folder.resolve()
    if not path.exists():
        raise UsageError(f"no folder {str(path)!r}: a run, one of its checkpoints, or a saved model of timm")
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file: name the folder of a run, of a checkpoint, or of a saved model")
    raise UsageError(f"{str(path)!r} holds no checkpoint: neither {CONFIG} nor best/ or last/ with it")


def load_checkpoint(folder: Path, *, average: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The network in a checkpoint's folder, and its config. Corrupted files are refused."""
    if (folder / MANIFEST).exists():
        read_manifest(folder).verify()
    with as_usage_error(OSError, ValueError, context=f"{str(folder / CONFIG)!r} can't be read"):
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UsageError(f"{str(folder / CONFIG)!r} names no architecture: it is none of timm's")
    if average and not (folder / AVERAGE).is_file():
        raise UsageError(f"{str(folder)!r} has no averaged weights: its recipe has no ema")
    try:
        model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=not average)
        if average:
            load_weights(model, read_weights(folder / AVERAGE))
    except Exception as error:  # the readers of weights, and networks, raise errors of all kinds
        reason = shorten(" ".join(str(error).split()), 400)
        name = config["architecture"]
        raise UsageError(f"the network {name!r} in {str(folder)!r} can't be loaded: {reason}") from error
    return model, config


def open_checkpoint(path: Path, *, average: bool = False) -> tuple[Path, nn.Module, dict[str, Any]]:
    """The folder of a checkpoint, its network and its config.

    If a run that goes on deletes the checkpoint meanwhile, its successor is opened.
    """
    while True:
        folder = find_checkpoint(path)
        try:
            return folder, *load_checkpoint(folder, average=average)
        except Exception:
            if folder.exists():
                raise


def read_initial_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a file, of a checkpoint, or of a run's best checkpoint."""
    if path.exists() and not path.is_dir():
        return read_weights(path)
    with as_usage_error(UsageError, context="--init"):
        return read_weights(find_checkpoint(path) / WEIGHTS)


def load_pretrained(model: nn.Module, weights: Mapping[str, Tensor], what: str, *, new_head: bool = False) -> None:
    """Put weights into a network; a classifier for other classes is refused, or left as it was made."""
    own = model.state_dict()
    weights = under_our_names(weights, model)
    head = [name for name in own if name.startswith(str(model.pretrained_cfg["classifier"]) + ".")]  # type: ignore[index]
    other = [name for name in head if name in weights and weights[name].shape[:1] != own[name].shape[:1]]
    if other and not new_head:
        raise UsageError(
            f"{what} knows {len(weights[other[0]])} classes, and the data has {len(own[other[0]])}:"
            " --new-head keeps all weights but the classifier's"
        )
    if new_head:
        weights = {name: value for name, value in weights.items() if name not in head}
    with as_usage_error(ValueError, context=what):
        load_weights(model, weights, keep=head if new_head else ())


def preparation_of(
    model: nn.Module, device: torch.device, input_size: tuple[int, int, int] | None = None
) -> Preparation:
    """How a network wants its images in a test, as its own config says; `input_size` if that doesn't know it."""
    cfg = resolve_model_data_config(model)
    chans, height, width = input_size or cfg["input_size"]
    normal = normalisation_of(model, chans)
    size, crop, interpolation = (height, width), cfg["crop_pct"], cfg["interpolation"]
    transform = create_eval_transform(size, crop, interpolation, cfg["crop_mode"], normal.mean)
    return Preparation(transform, chans, normal, device, torch.float32)


def normalisation_of(model: nn.Module, chans: int) -> Normalisation:
    """What a network's pixels are shifted and scaled by, as its own config says, for so many channels."""
    cfg = resolve_model_data_config(model)
    return Normalisation.for_channels(cfg["mean"], cfg["std"], chans)
