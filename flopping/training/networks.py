"""The network of a run: made for a recipe and its data, described for others, filled with weights."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from flopping.checkpoints.files import read_weights
from flopping.models.backbone import Backbone
from flopping.models.zoo import registered_name
from flopping.symmetries import SYMMETRIES
from flopping.training.checkpoint import WEIGHTS
from flopping.training.learning import set_drop_path
from flopping.training.loader import Normalisation, per_channel
from flopping.training.processes import blocks_of
from flopping.training.randomness import derived, reseed
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
    reseed(derived(recipe.seed, "weights"))
    try:
        model: nn.Module = timm.create_model(
            registered, pretrained=False, num_classes=classes, in_chans=recipe.in_chans, **args
        )
    except TypeError as error:
        raise ValueError(f"{name} can't be made with {args}: {error}") from error
    set_drop_path(blocks_of(model), recipe.drop_path, recipe.drop_path_rises)
    return model


def normalisation(recipe: Recipe, model: nn.Module) -> Normalisation:
    """Mean and deviation of the recipe, or those that the network was made for."""
    cfg = resolve_data_config({}, model=model)

    mean, std = recipe.mean or cfg["mean"], recipe.std or cfg["std"]
    return Normalisation(per_channel(mean, recipe.in_chans), per_channel(std, recipe.in_chans))


def description(model: nn.Module, recipe: Recipe, normal: Normalisation, labels: Sequence[str]) -> str:
    """The network as timm's config.json: with weights beside it, timm makes it again from the folder."""
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


def weights_of(path: Path) -> dict[str, Tensor]:
    """Weights of a file, of a checkpoint's folder, or of a run's best checkpoint."""
    for inside in (path / "best" / WEIGHTS, path / "last" / WEIGHTS, path / WEIGHTS):
        if inside.is_file():
            return read_weights(inside)
    if path.is_dir():
        raise ValueError(f"no checkpoint in {str(path)!r}: neither {WEIGHTS} nor best/ or last/ with it")
    if not path.exists():
        raise ValueError(f"there is no {str(path)!r}: --init is a run, one of its checkpoints, or a file of weights")
    return read_weights(path)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], what: str, *, new_head: bool = False) -> None:
    """Put weights into a network; a classifier for other classes is refused, or left as it was made."""
    own = model.state_dict()
    weights = dict(weights)
    head = [name for name in own if name.startswith(str(model.pretrained_cfg["classifier"]) + ".")]  # type: ignore[index]
    other = [name for name in head if name in weights and weights[name].shape[:1] != own[name].shape[:1]]
    if other and not new_head:
        raise ValueError(
            f"{what} knows {len(weights[other[0]])} classes, and the data has {len(own[other[0]])}:"
            " --new-head keeps all weights but the classifier's"
        )
    if new_head:
        weights = {name: value for name, value in weights.items() if name not in head}
    missing = [name for name in own if name not in weights and not (new_head and name in head)]
    strange = [name for name in weights if name not in own]
    shapes = [n for n, v in weights.items() if n in own and v.shape != own[n].shape]
    for names, problem in ((missing, "lacks"), (strange, "has besides"), (shapes, "has in another shape")):
        if names:
            raise ValueError(
                f"{what} is of another network than {type(model).__name__}: it {problem} {', '.join(names[:3])}"
            )
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
