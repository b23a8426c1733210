"""All networks by name: their registration with timm, and the names by which they are found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from flopping.errors import UsageError, name_closest
from flopping.models.arguments import with_current_names
from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.paper import ordinary_name
from flopping.models.resnet import ResNet
from flopping.models.sizes import BASELINES, ENTRIES, Entry
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.weights import checkpoint_filter_fn

ZOO: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
"""Every model that we register, by its name."""
TRAINED = Path(__file__).parent / "trained"
"""A folder for each network whose weights are part of the package, as timm loads it, with a model card."""


def trained_folder(name: str) -> Path | None:
    """The folder with a network's weights, if they are part of the package."""
    folder = TRAINED / name
    return folder if name in ZOO and (folder / "model.safetensors").is_file() else None


def _default_cfg(entry: Entry) -> dict[str, Any]:
    trained = trained_folder(entry.name)
    return {
        "num_classes": 1000,
        "input_size": (3, entry.img_size, entry.img_size),
        "pool_size": None,
        "crop_pct": 1.0,  # as the paper's networks are tested
        "interpolation": "bicubic",
        "fixed_input_size": entry.model not in (ConvNeXt, ResNet),
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": (),  # `checkpoint_filter_fn` fits the folded filters to another number of image channels
        "classifier": {ConvNeXt: "head.fc", ResNet: "fc"}.get(entry.model, "head"),
        "license": "apache-2.0",
        **({"file": str(trained / "model.safetensors")} if trained else {}),
        **entry.cfg,
    }


def _entrypoint(entry: Entry) -> Callable[..., Backbone]:
    stages = len(entry.args["depths"]) if entry.model in (ConvNeXt, ResNet) else 1
    every = tuple(range(stages + (entry.model is ResNet)))  # a ResNet has one more map, after its stem

    def create(pretrained: bool = False, **kwargs: Any) -> Backbone:
        if kwargs.get("feature_cls", "getter") != "getter":
            raise ValueError(
                f"features_only of {entry.name} uses forward_intermediates: feature_cls must be 'getter',"
                f" got {kwargs['feature_cls']!r}"
            )
        out_indices = kwargs.pop("out_indices", every if stages > 1 else 3)
        model: Backbone = build_model_with_cfg(
            entry.model,
            entry.name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **{**entry.args, **with_current_names(kwargs)},
        )
        return model

    create.__name__ = create.__qualname__ = entry.name
    create.__module__ = entry.model.__module__  # timm sorts models by module, and its tests choose by that
    create.__doc__ = f"{entry.paper or 'A small network for tests'}: {entry.model.__name__} of timm's registry."
    return create


def _register() -> None:
    for model in (VisionTransformer, ResMlp, ConvNeXt, ResNet):
        entries = [entry for entry in ZOO.values() if entry.model is model]
        module = sys.modules[model.__module__]
        module.default_cfgs = generate_default_cfgs({e.name: _default_cfg(e) for e in entries})  # type: ignore[attr-defined]
        for entry in entries:
            setattr(module, entry.name, register_model(_entrypoint(entry)))


_register()


def paper_names() -> dict[str, str]:
    """Registered names by the paper's: ours, and timm's ordinary networks."""
    return BASELINES | {entry.paper: entry.name for entry in ZOO.values() if entry.paper is not None}


def names_in_paper() -> dict[str, str]:
    """The paper's names by the registered ones."""
    return {registered: paper for paper, registered in paper_names().items()}


def ordinary_twin(name: str) -> str | None:
    """The registered name of X for that of E(X), H(X) or I(X), and None for what has no twin.

    >>> ordinary_twin("deit3_flop_base_patch16_224"), ordinary_twin("deit3_base_patch16_224"), ordinary_twin("resnet50")
    ('deit3_base_patch16_224', None, None)
    """
    paper = names_in_paper().get(name, "")
    ordinary = ordinary_name(paper)
    return None if ordinary == paper else paper_names().get(ordinary)


def is_our_ordinary(name: str) -> bool:
    """Whether a name is that of an ordinary network that we register because timm lacks it.

    >>> is_our_ordinary("resmlp_b24_224"), is_our_ordinary("resmlp_flop_b24_224"), is_our_ordinary("resmlp_24_224")
    (True, False, False)
    """
    paper = ZOO[name].paper if name in ZOO else None
    return paper is not None and ordinary_name(paper) == paper


def registered_name(name: str) -> str:
    """The registered name of a model given by it or by the paper's name; spelling may be loose.

    >>> registered_name("E(ViT-B)"), registered_name("e(convnext-s iso)"), registered_name("resnet50")
    ('deit3_flop_base_patch16_224', 'convnext_flop_iso_small', 'resnet50')
    >>> registered_name("E(ViT-X)")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: no model is called 'E(ViT-X)'; the closest are E(ViT-S), E(ViT-L), E(ViT-H)
    """
    papers = paper_names()
    found = {_plain(paper): registered for paper, registered in papers.items()}.get(_plain(name))
    if found is not None and name.count("(") == name.count(")"):
        return found
    if timm.is_model(name):
        return name
    raise UsageError(f"no model is called {name!r}{closest(name)}")


def closest(name: str, also: Iterable[str] = ()) -> str:
    """The end of an error message: the names most like one that doesn't exist.

    >>> closest("e(vit-b")
    '; the closest are E(ViT-B), ViT-B, I(ViT-B)'
    """
    known = {other.lower(): other for other in (*timm.list_models(), *paper_names(), *also)}
    near = [known[other] for other in get_close_matches(name.lower(), known, n=3, cutoff=0.6)]
    return f"; {name_closest(near)}" if near else ""


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
