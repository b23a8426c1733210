"""The network of a run: built by a recipe, described for timm, loaded from a checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from timm.data import resolve_model_data_config
from timm.layers import DropPath
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from flopping.checkpoints.weight_files import CONFIG, WEIGHTS, read_config, read_weights
from flopping.data.augment import Normalisation
from flopping.data.order import derive_seed, seed_generators
from flopping.errors import UsageError, as_usage_error, own_code
from flopping.files import require_regular
from flopping.groups import Group, flop, get_group
from flopping.machine import is_out_of_memory
from flopping.models import targets
from flopping.models.arguments import MODEL_ARGS, check_arguments
from flopping.models.backbone import Backbone
from flopping.models.blocks import find_blocks
from flopping.models.weights import load_weights
from flopping.models.zoo import ZOO, paper_names, registered_name, trained_folder
from flopping.nn import DropPath as EquivariantDropPath
from flopping.testing import group_of
from flopping.training.checkpoint import AVERAGE, MANIFEST, read_manifest
from flopping.training.recipe import Family, Recipe

FAMILIES: dict[Family, set[str]] = {
    "ViT": {"VisionTransformer"},
    "ResMLP": {"ResMlp", "MlpMixer"},
    "ConvNeXt": {"ConvNeXt"},
    "ResNet": {"ResNet"},
}
"""The classes of a family, in this library and in timm."""


def ignores(model: nn.Module, group: Group) -> bool:
    """Whether an image moved by any element of a group has the same logits by construction.

    E(X) and I(X) ignore their group, H(X) and X see it.

    >>> ignores(timm.create_model("deit3_flop_test_patch16_64"), flop)
    True
    >>> ignores(timm.create_model("deit3_flop_hybrid_test_patch16_64"), flop)
    False
    """
    return isinstance(model, Backbone) and {*group.symmetries} <= {*model.layouts[-1].group.symmetries}


def group_to_test(model: nn.Module, asked: str | None, size: tuple[int, int]) -> Group:
    """The group whose elements move the images of a test: the one asked for, or the network's, or flop.

    H(X) is tested with the group of its first blocks. `size` is height and width of the images.
    """
    own = group_of(model)
    group = get_group(asked) if asked is not None else own if own is not None and len(own.symmetries) > 1 else flop
    if group.swaps_axes and size[0] != size[1]:
        raise UsageError(
            f"{group} has elements that swap rows and columns, as {group.elements[1]}: it needs square images, got"
            f" {size[0]} x {size[1]}. flop, flip, rot180 and flipflop take any size"
        )
    return group


def describe_mismatch(recipe: Recipe, model: nn.Module) -> str | None:
    """A note on a network of another family than the recipe was made for; None if it fits, or any does.

    >>> from flopping.training.recipe import load
    >>> describe_mismatch(load("deit3_small"), timm.create_model("test_vit"))
    >>> describe_mismatch(load("deit3_small"), timm.create_model("test_resnet"))
    'The recipe was made for ViT, and the network is a ResNet: other values may suit it better.'
    """
    if recipe.family is None or FAMILIES[recipe.family] & {kind.__name__ for kind in type(model).__mro__}:
        return None
    kind = type(model).__name__
    return f"The recipe was made for {recipe.family}, and the network is a {kind}: other values may suit it better."


def build(recipe: Recipe, name: str, classes: int) -> nn.Module:
    """The network of a recipe, with weights that its seed decides."""
    model = (_build_own if is_own_code(name) else _build_registered)(recipe, name, classes)
    blocks = find_blocks(model)
    set_drop_path(blocks, recipe.drop_path, recipe.drop_path_rises)
    if recipe.layer_scale is not None:
        set_layer_scale(blocks, recipe.layer_scale)
    return model


def _build_registered(recipe: Recipe, name: str, classes: int) -> nn.Module:
    registered = registered_name(name)
    check_arguments(recipe.model_args, MODEL_ARGS, "the recipe")
    args: dict[str, Any] = {"drop_rate": recipe.dropout, **recipe.model_args}
    if registered in ZOO and "weight_init" in signature(ZOO[registered].model).parameters:
        args["weight_init"] = recipe.weight_init
    cfg = timm.get_pretrained_cfg(registered)
    if cfg is not None and cfg.fixed_input_size:
        args.setdefault("img_size", recipe.img_size)
    seed_generators(derive_seed(recipe.seed, "weights"))
    refusal = f"{name} can't be made with {args}"
    try:
        with as_usage_error(TypeError, ValueError, context=refusal):
            model: nn.Module = timm.create_model(
                registered, pretrained=False, num_classes=classes, in_chans=recipe.in_chans, **args
            )
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(f"{refusal}: it takes more memory than there is") from error
    return model


def is_own_code(name: str) -> bool:
    """Whether a network is named by the file of a user's own code, as `my_net.py:build`."""
    return name.rpartition(":")[0].endswith(".py")


def identify(name: str) -> str:
    """What a network's name stands for: a registered name, or the hash of a user's file and what it defines."""
    if name.endswith(".py"):
        raise targets.missing_attribute(name)
    if not is_own_code(name):
        return registered_name(name)
    file, _, attribute = name.rpartition(":")
    require_regular(Path(file))
    with as_usage_error(OSError, context=f"the file of the network {name!r} can't be read"):
        return f"{hashlib.sha256(Path(file).read_bytes()).hexdigest()}:{attribute}"


def _build_own(recipe: Recipe, name: str, classes: int) -> nn.Module:
    """A network of a user's own code, which gets the arguments of the recipe that it takes."""
    size = (recipe.in_chans, recipe.img_size, recipe.img_size)
    offered = {"num_classes": classes, "in_chans": recipe.in_chans, "img_size": recipe.img_size}
    seed_generators(derive_seed(recipe.seed, "weights"))
    model = targets.load_attribute(name, recipe.model_args, offered)
    with own_code(f"{name!r} refuses an image of {size}"):
        output = model.eval()(torch.zeros(1, *size))
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found != (1, classes):
        raise UsageError(
            f"{name!r} gives {found} for one image, and the data has {classes} classes: give it an argument num_classes"
        )
    if not output.requires_grad or output.is_complex():
        raise UsageError(f"{name!r} gives {output.dtype} values that can't be trained: no free parameter decides them")
    model.num_classes, model.pretrained_cfg = classes, {"classifier": None}  # type: ignore[assignment]
    return model.train()


def set_drop_path(blocks: Sequence[nn.Module], rate: float, rises: bool) -> None:
    """Give blocks their stochastic depth: the same to all, or rising from 0 to the rate, as the recipe has it.

    Architectures have their own habits, and X and E(X) different ones: the recipe decides for both.
    """
    rates = torch.linspace(0, rate, len(blocks), device="cpu").tolist() if rises else [rate] * len(blocks)
    for block, own in zip(blocks, rates, strict=True):
        for layer in block.children():
            if isinstance(layer, EquivariantDropPath):
                layer.drop_prob = own
        for name in ("drop_path", "drop_path1", "drop_path2"):  # timm's, which are None in its ResNets
            if hasattr(block, name) and not isinstance(getattr(block, name), EquivariantDropPath):
                setattr(block, name, DropPath(own) if own else nn.Identity())


def set_layer_scale(blocks: Sequence[nn.Module], value: float) -> None:
    """Start the layer scales of blocks at a value, in ours and in timm's networks."""
    for block in blocks:
        for name, parameter in block.named_parameters():
            if re.search(r"(^|\.)(gamma(\.\w+)?|ls[12])$", name):
                nn.init.constant_(parameter, value)


def create_config(
    model: nn.Module, name: str, recipe: Recipe, normalisation: Normalisation, labels: Sequence[str]
) -> str:
    """The content of a config.json, by which timm makes a network from a folder, unless it is your own code."""
    size = recipe.img_size
    model.pretrained_cfg.update(  # type: ignore[operator, union-attr]
        input_size=(recipe.in_chans, size, size),
        mean=normalisation.mean,
        std=normalisation.std,
        crop_pct=recipe.test_crop,
        crop_mode="center",  # as in the tests of the run, whatever mode the network was registered with
        interpolation=recipe.interpolation,
        num_classes=len(labels),
    )
    if is_own_code(name):
        content = {
            "architecture": name,
            "source": identify(name),
            "model_args": recipe.model_args,
            "num_classes": len(labels),
            "label_names": list(labels),
            "pretrained_cfg": model.pretrained_cfg,
        }
        return json.dumps(content, indent=2)
    args = {"in_chans": recipe.in_chans, **recipe.model_args}
    if model.pretrained_cfg.get("fixed_input_size"):  # type: ignore[operator, union-attr]
        args.setdefault("img_size", size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        save_config_for_hf(model, path, {"label_names": list(labels)}, args)
        return path.read_text(encoding="utf-8")


def find_checkpoint(path: Path) -> Path:
    """The folder of a checkpoint: itself, or the best or last one of a run, or a network of the package by its name.

    Links are followed.
    """
    for folder in (path, path / "best", path / "last"):
        if (folder / CONFIG).is_file() or (folder / WEIGHTS).is_file():
            return folder.resolve()
    named = trained_folder(paper_names().get(str(path), str(path)))
    if named is not None and not path.exists():
        return named
    if not path.exists():
        raise UsageError(f"no folder {str(path)!r}: a run, one of its checkpoints, or a saved model of timm")
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file: name the folder of a run, of a checkpoint, or of a saved model")
    raise UsageError(f"{str(path)!r} holds no checkpoint: neither {CONFIG} nor best/ or last/ with it")


LOAD_ERRORS = (AssertionError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)
"""What timm, torch and safetensors raise for names, values and files that don't fit."""


def load_checkpoint(
    folder: Path, *, average: bool = False, code: str | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The network in a checkpoint's folder, and its config. Corrupted files are refused.

    A user's own code runs only if `code` names it, and if it is the code that was trained.
    """
    if (folder / MANIFEST).exists():
        read_manifest(folder).verify(CONFIG, AVERAGE if average else WEIGHTS)
    config = read_config(folder)
    if average and not (folder / AVERAGE).is_file():
        raise UsageError(f"{str(folder)!r} has no averaged weights: its recipe has no ema")
    require_regular(folder / WEIGHTS)
    _require_real(folder / (AVERAGE if average else WEIGHTS))
    own = is_own_code(config["architecture"])
    if own or code is not None:
        _require_same_code(config, code, folder)
    made = _build_from_code(code or "", config, folder) if own else None
    try:
        model = targets.load_folder(folder, pretrained=not average) if made is None else made
        if own or average:
            load_weights(model, read_weights(folder / (AVERAGE if average else WEIGHTS)))
        with own_code(f"{code!r} can't be run") if own else nullcontext():
            _require_finite_answer(model)
    except LOAD_ERRORS as error:
        reason = shorten(" ".join(str(error).split()), 400)
        name = config["architecture"]
        raise UsageError(f"the network {name!r} in {str(folder)!r} can't be loaded: {reason}") from error
    return model, config


def _require_real(path: Path) -> None:
    """Refuse complex weights, of which torch would take the real parts."""
    if path.is_file():
        with as_usage_error(SafetensorError, context=repr(str(path))), safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no table
                if file.get_slice(name).get_dtype().startswith("C"):
                    raise UsageError(f"{str(path)!r} holds complex weights ({name}), and networks have real ones")


@torch.no_grad()
def _require_finite_answer(model: nn.Module) -> None:
    """Refuse a network that takes no image of the size in its config, or whose weights are not finite.

    Nothing cheaper finds both. One image takes a third of the time of loading: 0.2 s for E(ViT-S), 1.2 s for ViT-B, on
    one thread.
    """
    size = resolve_model_data_config(model)["input_size"]
    answer = model.eval()(torch.zeros(1, *size))
    if not isinstance(answer, Tensor) or not answer.isfinite().all():
        what = "values that are not finite" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
        raise UsageError(f"for an image of {size} it gives {what}")


def _require_same_code(config: Mapping[str, Any], code: str | None, folder: Path) -> None:
    """Refuse a checkpoint of a user's own code unless the user names that code."""
    name = config["architecture"]
    if not is_own_code(name):
        raise UsageError(f"--code {code}: the network in {str(folder)!r} is {name}, which needs no code of yours")
    if code is None:
        raise UsageError(
            f"the network in {str(folder)!r} is your own code, which runs only if you name it: --code {name}"
        )
    if not is_own_code(code) or identify(code) != config.get("source"):
        raise UsageError(f"--code {code} is not the code that was trained in {str(folder)!r}: {name} as it was then")


def _build_from_code(code: str, config: Mapping[str, Any], folder: Path) -> nn.Module:
    """A network of a user's own code, with the arguments of its training. Errors of that code stay as they are."""
    with as_usage_error(KeyError, TypeError, ValueError, context=f"{str(folder / CONFIG)!r} is not of your own code"):
        cfg, classes, args = config["pretrained_cfg"], config["num_classes"], dict(config["model_args"])
        chans, size, _ = cfg["input_size"]
    model = targets.load_attribute(code, args, {"num_classes": classes, "in_chans": chans, "img_size": size})
    model.num_classes, model.pretrained_cfg = classes, cfg
    return model


def open_checkpoint(
    path: Path, *, average: bool = False, code: str | None = None
) -> tuple[Path, nn.Module, dict[str, Any]]:
    """The folder of a checkpoint, its network and its config.

    If a run that goes on deletes the checkpoint meanwhile, its successor is opened.
    """
    while True:
        folder = find_checkpoint(path)
        try:
            return folder, *load_checkpoint(folder, average=average, code=code)
        except Exception:
            if folder.exists():
                raise


def read_initial_weights(source: str) -> dict[str, Tensor]:
    """The weights of a file, of a checkpoint, of a run's best checkpoint, or those that timm knows for a name."""
    path = Path(source)
    if path.exists() and not path.is_dir():
        return read_weights(path)
    name = paper_names().get(source, source)
    if not path.exists() and timm.is_model(name) and timm.get_pretrained_cfg(name).has_weights:
        return load_timm_pretrained(name).state_dict()
    return read_weights(find_checkpoint(path) / WEIGHTS)


def read_initial_classes(source: str) -> tuple[str, ...] | None:
    """The classes of weights to start from, where a checkpoint or a folder names them."""
    folder = find_checkpoint(Path(source)) if Path(source).is_dir() else None
    if folder is None or not (folder / CONFIG).is_file():
        return None
    labels = read_config(folder).get("label_names")
    return tuple(map(str, labels)) if isinstance(labels, list) else None


def load_timm_pretrained(name: str, **arguments: Any) -> nn.Module:
    """A network with the weights that timm knows for its name, which are downloaded once."""
    with as_usage_error(*LOAD_ERRORS, context=f"the weights of {name!r} can't be downloaded"):
        model: nn.Module = timm.create_model(name, pretrained=True, **arguments)
    return model
