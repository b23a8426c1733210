"""What a command-line argument means: a module of yours, or a model of timm; and an input to try it on."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from difflib import get_close_matches
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.features import Feature
from flopping.models.zoo import closest, registered_name
from flopping.testing import grid_of, layouts_of, run

LAYERS = [name for name in fnn.__all__ if name not in {"Module", "Sequential"}]


def load(target: str, img_size: int | None = None) -> nn.Module:
    """`package.module:attribute`, `file.py:attribute` (a module, or a function that makes one), or a model's name.

    Models go by their registered names, by the paper's ("E(ViT-B)"), or by a folder: "local-dir:FOLDER". A model by
    name that takes one size of images is made for `img_size`.
    """
    if target.startswith("local-dir:"):
        saved: nn.Module = timm.create_model(target, pretrained=True)
        return saved
    if ":" in target:
        return _load_attribute(target)
    if target.endswith(".py"):
        raise ValueError(which_attribute(target))
    if target == "ToRegular":
        raise ValueError("ToRegular gives up the group: its result follows none, so there is nothing to check")
    try:
        name = registered_name(target)
    except ValueError as error:
        hint = closest(target, also=LAYERS)
        raise ValueError(
            f"no layer and no model is called {target!r}{hint}. For your own module write FILE.py:ATTRIBUTE"
        ) from error
    fixed = img_size is not None and timm.get_pretrained_cfg(name).fixed_input_size
    model: nn.Module = timm.create_model(name, pretrained=False, **({"img_size": img_size} if fixed else {}))
    return model


def load_without_numbers(target: str, img_size: int | None = None) -> nn.Module:
    """The same on the meta device, without memory for weights, as far as a network's code allows it."""
    if ":" in target:  # files, and whatever the user's code does with numbers
        return load(target, img_size)
    try:
        with torch.device("meta"):
            return load(target, img_size)
    except (NotImplementedError, RuntimeError):  # a constructor that looks at numbers
        return load(target, img_size)


def which_attribute(file: str) -> str:
    """What to write instead of a file alone; what it defines is read, not run."""
    path = Path(file)
    if not path.is_file():
        return f"no file {file!r}"
    try:
        body = ast.parse(path.read_bytes()).body
    except SyntaxError as error:
        return f"{file!r} can't be loaded as Python code: {error}"
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names += [name.id for name in node.targets if isinstance(name, ast.Name)]
    names = [name for name in names if not name.startswith("_")]
    hint = f"; it defines {', '.join(names[:8])}" if names else ""
    return f"{file!r} is a file: write {file}:ATTRIBUTE for a module in it, or a function that makes one{hint}"


def _load_attribute(target: str) -> nn.Module:
    where, _, attribute = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ValueError(f"no file {where!r}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{where!r} can't be loaded as Python code")
        source = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, source)
        try:
            spec.loader.exec_module(source)
        except SyntaxError as error:
            raise ValueError(f"{where!r} can't be loaded as Python code: {error}") from error
    else:
        sys.path.insert(0, os.getcwd())
        try:
            source = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise ValueError(f"cannot import {where!r}: {error}") from error
        finally:
            sys.path.pop(0)
    if not hasattr(source, attribute):
        names = [name for name in vars(source) if not name.startswith("_")]
        near = get_close_matches(attribute, names, n=3, cutoff=0.4) or names[:8]
        raise ValueError(f"{where!r} has no {attribute!r}; it has {', '.join(near)}")
    found = getattr(source, attribute)
    made = found if isinstance(found, nn.Module) else found() if callable(found) else None
    if not isinstance(made, nn.Module):
        raise ValueError(f"{target!r} is {type(found).__name__}, not a torch module or a function that makes one")
    return made


def try_size(model: nn.Module, x: Tensor | Feature, img_size: int) -> None:
    """Run the model once, and say that it was the size if it refuses."""
    try:
        run(model, x)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{type(model).__name__} refuses an image of --img-size {img_size}: {reason}") from error


def example_input(model: nn.Module, img_size: int | None, dtype: torch.dtype, batch: int = 2) -> Tensor | Feature:
    """An image of the size the model was built for, or a feature of the layout that it takes."""
    generator = torch.Generator().manual_seed(1)
    layout, _ = layouts_of(model)
    if layout is not None:
        if img_size is not None:
            raise ValueError(f"{type(model).__name__} takes features of {layout}, so --img-size has no meaning")
        if isinstance(model, fnn.Module) and model.leading == 3:
            return layout.random(batch, 12, 12, generator=generator, dtype=dtype)
        grid = grid_of(model, ()) or (4, 4)
        return layout.random(batch, grid[0] * grid[1], generator=generator, dtype=dtype)
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
