"""All networks by name: a table of sizes, and their registration with timm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from flopping.errors import UsageError
from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.paper import ordinary_name
from flopping.models.resnet import ResNet
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.weights import checkpoint_filter_fn


@dataclass(frozen=True)
class Entry:
    """A model that we register: its name, its name in the paper, and the arguments that make it."""

    name: str
    paper: str | None
    """E(X), H(X), I(X), or X for an ordinary network that timm doesn't have; None for what the paper doesn't have."""
    model: type[Backbone]
    args: Mapping[str, Any]
    img_size: int = 224
    cfg: Mapping[str, Any] = field(default_factory=dict)


# name: width, depth, heads, patch
VITS = {
    "small": (384, 12, 6, 16),
    "base": (768, 12, 12, 16),
    "large": (1024, 24, 16, 16),
    "huge": (1280, 32, 16, 14),
}
# name: width, depth, start of the layer scales
RESMLPS = {"t12": (384, 12, 0.1), "s24": (384, 24, 1e-5), "b24": (768, 24, 1e-6), "l24": (1280, 24, 1e-6)}
# name: width, depth, start of the layer scales
ISOTROPIC = {"small": (384, 18, None), "base": (768, 18, None), "large": (1024, 36, 1e-6)}
# name: depths, width of the first stage
HIERARCHICAL = {
    "tiny": ((3, 3, 9, 3), 96),
    "small": ((3, 3, 27, 3), 96),
    "base": ((3, 3, 27, 3), 128),
    "large": ((3, 3, 27, 3), 192),
}
# name: depths, whether blocks are bottlenecks; with a d: a deep stem, and means in shortcuts
RESNETS = {
    "18": ((2, 2, 2, 2), False),
    "34": ((3, 4, 6, 3), False),
    "50": ((3, 4, 6, 3), True),
    "101": ((3, 4, 23, 3), True),
}

BASELINES = {
    "ViT-S": "deit3_small_patch16_224",
    "ViT-B": "deit3_base_patch16_224",
    "ViT-L": "deit3_large_patch16_224",
    "ViT-H": "deit3_huge_patch14_224",
    "ResMLP-T12": "resmlp_12_224",
    "ResMLP-S24": "resmlp_24_224",
    "ConvNeXt-T": "convnext_tiny",
    "ConvNeXt-S": "convnext_small",
    "ConvNeXt-B": "convnext_base",
    "ConvNeXt-L": "convnext_large",
    **{f"ResNet-{size}{d}": f"resnet{size}{d}" for d in ("", "d") for size in RESNETS},
}
"""The ordinary networks that timm has, by their names in the paper. ResNets are not in it and are named likewise."""

# The paper's networks were trained with this approximation of GELU; timm's ResMLP has the exact one.
RESMLP_ACTIVATION = "quick_gelu"


# part of a name: the paper's letter, and what happens before the second half of the blocks
HANDOFFS = {"": ("E", None), "hybrid_": ("H", "hybrid"), "invariant_": ("I", "invariant")}


def _vits() -> Iterator[Entry]:
    tests = {"test": (64, 4, 2, 16)}
    for size, (width, depth, heads, patch) in (VITS | tests).items():
        img_size = 64 if size in tests else 224
        for prefix, (letter, handoff) in HANDOFFS.items():
            args: dict[str, Any] = {"embed_dim": width, "depth": depth, "num_heads": heads, "patch_size": patch}
            if handoff is not None:
                args["handoffs"] = {depth // 2: handoff}
            paper = None if size in tests else f"{letter}(ViT-{size[0].upper()})"
            name = f"deit3_flop_{prefix}{size}_patch{patch}_{img_size}"
            yield Entry(name, paper, VisionTransformer, args, img_size)


def _resmlps() -> Iterator[Entry]:
    tests = {"test": (64, 4, 0.1)}
    for size, (width, depth, init) in (RESMLPS | tests).items():
        img_size = 64 if size in tests else 224
        args = {"embed_dim": width, "depth": depth, "init_values": init}
        paper = None if size in tests else f"ResMLP-{size.upper()}"
        equivariant = {**args, "act_layer": RESMLP_ACTIVATION}
        yield Entry(f"resmlp_flop_{size}_{img_size}", paper and f"E({paper})", ResMlp, equivariant, img_size)
        if paper not in BASELINES:
            yield Entry(f"resmlp_{size}_{img_size}", paper, ResMlp, {**args, "group": "trivial"}, img_size)


def _convnexts() -> Iterator[Entry]:
    tests: dict[str, tuple[int, int, float | None]] = {"test": (32, 3, 1e-6)}
    for size, (width, depth, init) in (ISOTROPIC | tests).items():
        img_size = 64 if size in tests else 224
        args = {"depths": (depth,), "dims": (width,), "patch_size": 16, "init_values": init}
        paper = None if size in tests else f"ConvNeXt-{size[0].upper()} (iso.)"
        cfg = {"pool_size": (img_size // 16,) * 2}
        yield Entry(f"convnext_flop_iso_{size}", paper and f"E({paper})", ConvNeXt, args, img_size, cfg)
        yield Entry(f"convnext_iso_{size}", paper, ConvNeXt, {**args, "group": "trivial"}, img_size, cfg)
    small = {"test": ((1, 1, 2, 1), 16)}
    for size, (depths, first) in (HIERARCHICAL | small).items():
        img_size = 64 if size in small else 224
        args = {"depths": depths, "dims": tuple(first * 2**stage for stage in range(4))}
        paper = None if size in small else f"E(ConvNeXt-{size[0].upper()})"
        cfg = {"pool_size": (img_size // 32,) * 2}
        yield Entry(f"convnext_flop_{size}", paper, ConvNeXt, args, img_size, cfg)


def _resnets() -> Iterator[Entry]:
    tests = {"test": ((1, 2, 1, 1), True)}  # a hand-off within a stage
    for size, (depths, bottleneck) in (RESNETS | tests).items():
        args: dict[str, Any] = {"depths": depths, "bottleneck": bottleneck}
        img_size, least = (65, 65) if size in tests else (225, 97)
        if size in tests:
            args |= {"widths": (8, 8, 16, 16), "stem_width": 16}
        cfg = {"pool_size": (img_size // 32 + 1,) * 2, "min_input_size": (3, least, least)}
        for prefix, (letter, handoff) in HANDOFFS.items():
            handoffs = {} if handoff is None else {"handoffs": {sum(depths) // 2: handoff}}
            paper = None if size in tests else f"{letter}(ResNet-{size})"
            yield Entry(f"resnet_flop_{prefix}{size}", paper, ResNet, {**args, **handoffs}, img_size, cfg)
        deep = {**args, "stem_type": "deep", "avg_down": True}
        paper = None if size in tests else f"E(ResNet-{size}d)"
        yield Entry(f"resnet_flop_{size}d", paper, ResNet, deep, img_size, cfg)


ZOO: dict[str, Entry] = {entry.name: entry for make in (_vits, _resmlps, _convnexts, _resnets) for entry in make()}
"""Every model that we register, by its name."""


def _default_cfg(entry: Entry) -> dict[str, Any]:
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
        **entry.cfg,
    }


def _entrypoint(entry: Entry) -> Callable[..., Backbone]:
    stages = len(entry.args["depths"]) if entry.model in (ConvNeXt, ResNet) else 1
    every = tuple(range(stages + (entry.model is ResNet)))  # a ResNet has one more map, after its stem

    def create(pretrained: bool = False, **kwargs: Any) -> Backbone:
        if kwargs.get("feature_cls", "getter") != "getter":
            raise ValueError(
                f"features of {entry.name} are taken by forward_intermediates: feature_cls is 'getter',"
                f" got {kwargs['feature_cls']!r}"
            )
        out_indices = kwargs.pop("out_indices", every if stages > 1 else 3)
        model: Backbone = build_model_with_cfg(
            entry.model,
            entry.name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **{**entry.args, **kwargs},
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
    return f"; the closest are {', '.join(near)}" if near else ""


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
