"""What a command-line argument means: a module of yours, or a model of timm; and an input to try it on."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import timm
import torch
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.errors import UsageError, as_usage_error, own_code
from flopping.features import Feature
from flopping.files import require_regular
from flopping.groups import grid_groups
from flopping.models.arguments import CONFIG_ARGS, check_arguments
from flopping.models.zoo import closest, registered_name

LAYERS = [name for name in fnn.__all__ if name not in {"Module", "RotaryEmbed", "Sequential"}]


def load(target: str, img_size: int | None = None, layers: Iterable[str] = ()) -> nn.Module:
    """`package.module:attribute`, `file.py:attribute` (a module, or a function that makes one), or a model's name.

    A model has a registered name, a name in the paper ("E(ViT-B)"), or a folder: "local-dir:FOLDER". Behind the name
    may stand another group for the same architecture: "E(ViT-B):trivial". A model by name that takes one size of images
    is made for `img_size`. `layers` are names that the caller takes beside those of networks, for the error message.

    >>> load("deit3_flop_test_patch16_64:trivial").layouts[0]
    Layout(trivial, even=64)
    """
    if target.startswith("local-dir:"):
        with as_usage_error(OSError, ValueError, KeyError, RuntimeError, context=repr(target)):
            return load_folder(Path(target.removeprefix("local-dir:")))
    network, _, group = target.rpartition(":")
    is_group = bool(network) and not network.endswith(".py") and group in grid_groups()
    options: dict[str, Any] = {"group": group} if is_group else {}
    if ":" in target and not options:
        return load_attribute(target)
    if target.endswith(".py"):
        raise missing_attribute(target)
    try:
        name = registered_name(network if options else target)
    except ValueError as error:
        what = f"no {'layer and no ' if layers else ''}model is called {target!r}{closest(target, also=layers)}"
        if target in LAYERS and target not in layers:
            what = f"{target} is a layer, not a network"
        raise UsageError(f"{what}. For your own module write FILE.py:ATTRIBUTE") from error
    context = f"{target!r}"
    if img_size is not None and timm.get_pretrained_cfg(name).fixed_input_size:
        context, options = f"--img-size {img_size}", {**options, "img_size": img_size}
    with as_usage_error(ValueError, TypeError, context=context) if options else nullcontext():
        model: nn.Module = timm.create_model(name, **options)
    return model


def load_folder(folder: Path, *, pretrained: bool = True) -> nn.Module:
    """The network in a folder that timm loads; its config.json sets no arguments but those of `CONFIG_ARGS`."""
    path = folder / "config.json"
    require_regular(path)
    with as_usage_error(OSError, ValueError, RecursionError, context=f"{str(path)!r} can't be read"):
        config = json.loads(path.read_text(encoding="utf-8"))
    check_arguments(config.get("model_args", {}) if isinstance(config, dict) else {}, CONFIG_ARGS, str(path))
    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=pretrained)
    return model


def load_on_meta(target: str, img_size: int | None = None) -> nn.Module:
    """A model by name on the meta device, without memory for weights; a module of yours as it is."""
    if ":" in target:
        return load(target, img_size)
    try:
        with torch.device("meta"):
            return load(target, img_size)
    except (NotImplementedError, RuntimeError):  # a constructor that reads values
        return load(target, img_size)


def missing_attribute(file: str) -> UsageError:
    """The error for a file without `:ATTRIBUTE`. It names what the file defines; the file is parsed, not run."""
    path = Path(file)
    if not path.is_file():
        return UsageError(f"no file {file!r}")
    try:
        body = ast.parse(path.read_bytes()).body
    except SyntaxError as error:
        return UsageError(f"{file!r} can't be loaded as Python code: {error}")
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names += [name.id for name in node.targets if isinstance(name, ast.Name)]
    public = [name for name in names if not name.startswith("_")]
    hint = f"; it defines {', '.join(public[:8])}" if public else ""
    return UsageError(
        f"{file!r} is a file: write {file}:ATTRIBUTE for a module in it, or a function that makes one{hint}"
    )


def load_attribute(
    target: str, arguments: Mapping[str, Any] | None = None, offered: Mapping[str, Any] | None = None
) -> nn.Module:
    """The module that `file.py:attribute` or `package.module:attribute` names, or that a function of this name makes.

    The function gets the arguments, and those of the `offered` ones that it has a name for. A file may import modules
    that lie beside it.
    """
    where, _, attribute = target.rpartition(":")
    if not where or (where.startswith(".") and not where.endswith(".py")):
        raise UsageError(f"{target!r} names no file and no package: write FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE")
    is_file = where.endswith(".py")
    folder = Path(os.path.realpath(where)).parent if is_file else Path.cwd()
    with _importable(folder):
        source = _run_file(Path(where)) if is_file else _import(where)
    if not hasattr(source, attribute):
        names = [name for name in vars(source) if not name.startswith("_")]
        near = get_close_matches(attribute, names, n=3, cutoff=0.4) or names[:8]
        raise UsageError(f"{where!r} has no {attribute!r}; it has {', '.join(near)}")
    found = getattr(source, attribute)
    made = found
    if not isinstance(found, nn.Module) and callable(found):
        with as_usage_error(ValueError, context=f"{target!r} can't be called"):  # some built-in functions have none
            signature = inspect.signature(found)
        taken = {name: value for name, value in (offered or {}).items() if name in signature.parameters}
        taken.update(arguments or {})
        with as_usage_error(TypeError, context=f"{target!r} can't be called with {taken}"):
            signature.bind(**taken)
        with own_code(f"{target!r} can't be called with {taken}"), _importable(folder):
            made = found(**taken)
    elif arguments:
        raise UsageError(f"{target!r} is no function, and takes no arguments: got {dict(arguments)}")
    if not isinstance(made, nn.Module):
        raise UsageError(f"{target!r} is {type(found).__name__}, not a torch module or a function that makes one")
    return made


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} can't be loaded as Python code")
    source = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, source)
    broken = f"{str(path)!r} can't be loaded as Python code"
    with own_code(broken), as_usage_error(SyntaxError, context=broken):
        spec.loader.exec_module(source)
    return source


def _import(name: str) -> ModuleType:
    context = f"cannot import {name!r}"
    with own_code(context), as_usage_error(ModuleNotFoundError, context=context):
        return importlib.import_module(name)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Within it, modules in a folder can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(str(folder))


def example_input(model: nn.Module, img_size: int | None, dtype: torch.dtype, batch: int = 2) -> Tensor | Feature:
    """Random images of the size the model was built for, or a random feature of the layout that it takes."""
    generator = torch.Generator().manual_seed(1)
    layout = model.in_layout if isinstance(model, fnn.Module) else None
    if isinstance(model, fnn.Module) and layout is not None:
        if img_size is not None:
            raise UsageError(f"{type(model).__name__} takes features of {layout}, so --img-size has no meaning")
        if model.leading == 3:
            return layout.random(batch, 12, 12, generator=generator, dtype=dtype)
        grids = (getattr(layer, "grid_size", None) for layer in model.modules())
        height, width = next((grid for grid in grids if isinstance(grid, tuple)), (4, 4))
        return layout.random(batch, height * width, generator=generator, dtype=dtype)
    channels, size = 3, (img_size or 64, img_size or 64)
    embed = next((layer for layer in model.modules() if isinstance(layer, fnn.PatchEmbed)), None)
    if embed is not None:
        channels = embed.in_chans
    if img_size is None:
        cfg = getattr(model, "default_cfg", None) or {}
        if embed is not None and embed.img_size is not None:
            size = embed.img_size
        elif "input_size" in cfg:
            size = tuple(cfg["input_size"][1:])
            channels = cfg["input_size"][0] if embed is None else channels
        elif embed is not None:
            size = (4 * embed.patch_size[0], 4 * embed.patch_size[1])
    return torch.randn(batch, channels, *size, generator=generator, dtype=dtype)
