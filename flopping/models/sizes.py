"""The tables of networks: sizes of each architecture, and the variants (equivariant, hybrid, ...) of each size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.resnet import ResNet
from flopping.models.vision_transformer import VisionTransformer


@dataclass(frozen=True)
class Entry:
    """A model that we register: its name, its name in a paper, and the arguments that make it."""

    name: str
    paper: str | None
    """E(X), H(X), I(X), the same after a group's name, or X for an ordinary network that timm doesn't have.

    None for small networks for tests."""
    model: type[Backbone]
    args: Mapping[str, Any]
    img_size: int = 224
    cfg: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name of the group that the first block follows."""
        return str(self.args.get("group", "flop"))


@dataclass(frozen=True)
class Variant:
    """A way to follow a group: what it adds to names, and to the arguments of an ordinary network.

    >>> octic = Variant("octic", "H", "hybrid", ("concat",))
    >>> octic.prefix, octic.name_in_paper("ViT-L"), octic.arguments(depth=24)
    ('octic_hybrid_', 'octic H(ViT-L)', {'group': 'octic', 'handoffs': {12: 'concat'}})
    """

    group: str
    letter: str = ""
    """The paper's letters E, H and I, S for a step down through subgroups; none for the ordinary network."""
    kind: str = ""
    handoffs: tuple[str, ...] = ()
    """What happens before each of the later segments, which are equally long."""
    args: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    """Those that have it, if not all."""

    @property
    def prefix(self) -> str:
        """What stands in a registered name between the architecture and the size."""
        words = (self.group if self.letter else "", self.kind)
        return "".join(f"{word}_" for word in words if word)

    def name_in_paper(self, ordinary: str) -> str:
        """The paper's networks follow flop; names of others begin with their group."""
        if not self.letter:
            return ordinary
        return f"{self.letter}({ordinary})" if self.group == "flop" else f"{self.group} {self.letter}({ordinary})"

    def arguments(self, depth: int) -> dict[str, Any]:
        """The arguments that this adds to those of an ordinary network of so many blocks; flop is the default."""
        segments = len(self.handoffs) + 1
        handoffs = {depth * number // segments: handoff for number, handoff in enumerate(self.handoffs, 1)}
        group = {} if self.group == "flop" else {"group": self.group}
        return {**group, **({"handoffs": handoffs} if handoffs else {}), **self.args}


@dataclass(frozen=True)
class Size:
    """An ordinary network: how registered names end, its name in the paper, its arguments and its number of blocks."""

    name: str
    ending: str
    paper: str
    args: Mapping[str, Any]
    depth: int
    img_size: int = 224
    cfg: Mapping[str, Any] = field(default_factory=dict)


E = Variant("flop", "E")
FLIPFLOP, OCTIC = Variant("flipflop", "E"), Variant("octic", "E")
EHI = (E, Variant("flop", "H", "hybrid", ("hybrid",)), Variant("flop", "I", "invariant", ("invariant",)))
ORDINARY = Variant("trivial")

OCTIC_VITS_NORM = {"norm_eps": (1e-5, 1e-6), "norm_by_irrep": True}
"""Octic Vision Transformers has other norms than ours; its published networks have them here, too."""
PUBLISHED_SIZES = ("large", "huge", "test")
"""Those that octic-vits has checkpoints of, and the small one for tests."""
VIT_VARIANTS = (
    *EHI,
    FLIPFLOP,
    Variant("flipflop", "H", "hybrid", ("hybrid",)),
    Variant("flipflop", "I", "invariant", ("invariant",)),
    OCTIC,
    Variant("octic", "I", "invariant", ("polynomial",), OCTIC_VITS_NORM, PUBLISHED_SIZES),
    Variant("octic", "H", "hybrid", ("concat",), OCTIC_VITS_NORM, PUBLISHED_SIZES),
    Variant("octic", "S", "stepdown", ("flop", "trivial")),
)
# name: width, depth, heads, patch
VITS = {
    "small": (384, 12, 6, 16),
    "base": (768, 12, 12, 16),
    "large": (1024, 24, 16, 16),
    "huge": (1280, 32, 16, 14),
    "test": (64, 4, 2, 16),
}
DINOV2_VARIANTS = (
    Variant("octic", "H", "hybrid", ("concat",), OCTIC_VITS_NORM),
    Variant("octic", "I", "invariant", ("power_spectrum",), OCTIC_VITS_NORM),
    ORDINARY,
)
DINOV2 = {"large": VITS["large"], "huge": (*VITS["huge"][:3], 16), "test": VITS["test"]}
# The paper's networks were trained with this approximation of GELU; timm's ResMLP has the exact one.
RESMLP_ACTIVATION = "quick_gelu"
RESMLP_VARIANTS = (
    *(replace(variant, args={"act_layer": RESMLP_ACTIVATION}) for variant in (E, FLIPFLOP, OCTIC)),
    ORDINARY,
)
# name: width, depth, start of the layer scales
RESMLPS = {
    "t12": (384, 12, 0.1),
    "s24": (384, 24, 1e-5),
    "b24": (768, 24, 1e-6),
    "l24": (1280, 24, 1e-6),
    "test": (64, 4, 0.1),
}
# name: width, depth, start of the layer scales
ISOTROPIC: dict[str, tuple[int, int, float | None]] = {
    "small": (384, 18, None),
    "base": (768, 18, None),
    "large": (1024, 36, 1e-6),
    "test": (32, 3, 1e-6),
}
# name: depths, width of the first stage
HIERARCHICAL = {
    "tiny": ((3, 3, 9, 3), 96),
    "small": ((3, 3, 27, 3), 96),
    "base": ((3, 3, 27, 3), 128),
    "large": ((3, 3, 27, 3), 192),
    "test": ((1, 1, 2, 1), 16),
}
# name: depths, whether blocks are bottlenecks; with a d: a deep stem, and means in shortcuts
RESNETS = {
    "18": ((2, 2, 2, 2), False),
    "34": ((3, 4, 6, 3), False),
    "50": ((3, 4, 6, 3), True),
    "101": ((3, 4, 23, 3), True),
    "test": ((1, 2, 1, 1), True),  # a hand-off within a stage
}
# for images of 32 x 32 pixels, without bottlenecks, every stage with a stride; name: depths, widths, width of the stem
SMALL_RESNET_ARGS = {"stem_type": "small", "stride_kernel": "max", "zero_init_last": False, "act_layer": "gelu"}
SMALL_RESNETS = {"8": ((1, 1, 1), (64, 256, 256), 32)}

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
    **{f"ResNet-{size}{d}": f"resnet{size}{d}" for d in ("", "d") for size in RESNETS if size != "test"},
}
"""The ordinary networks that timm has, by their names in the paper. ResNets are not in it and are named likewise."""


def _vits(table: Mapping[str, tuple[int, ...]] = VITS) -> Iterator[Size]:
    for name, (width, depth, heads, patch) in table.items():
        img_size = 64 if name == "test" else 224
        args = {"embed_dim": width, "depth": depth, "num_heads": heads, "patch_size": patch}
        yield Size(name, f"{name}_patch{patch}_{img_size}", f"ViT-{name[0].upper()}", args, depth, img_size)


def _dinov2() -> Iterator[Size]:
    """Backbones: no classifier, unless one is asked for."""
    for size in _vits(DINOV2):
        ending, args = f"{size.name}_patch{size.args['patch_size']}_dinov2", {**size.args, "num_classes": 0}
        yield replace(size, ending=ending, paper=f"{size.paper} (DINOv2)", args=args, cfg={"num_classes": 0})


def _rotary() -> Iterator[Size]:
    """With four register tokens, and rotary positions in place of learned ones."""
    parts = {"reg_tokens": 4, "use_abs_pos_emb": False, "use_rot_pos_emb": True}
    for size in _vits({name: row for name, row in VITS.items() if name != "huge"}):
        ending = f"{size.name}_patch16_rope_reg4_{size.img_size}"
        yield replace(size, ending=ending, paper=f"{size.paper} (rope)", args={**size.args, **parts})


def _resmlps() -> Iterator[Size]:
    for name, (width, depth, init) in RESMLPS.items():
        img_size = 64 if name == "test" else 224
        args = {"embed_dim": width, "depth": depth, "init_values": init}
        yield Size(name, f"{name}_{img_size}", f"ResMLP-{name.upper()}", args, depth, img_size)


def _isotropic() -> Iterator[Size]:
    for name, (width, depth, init) in ISOTROPIC.items():
        img_size = 64 if name == "test" else 224
        args = {"depths": (depth,), "dims": (width,), "patch_size": 16, "init_values": init}
        paper, cfg = f"ConvNeXt-{name[0].upper()} (iso.)", {"pool_size": (img_size // 16,) * 2}
        yield Size(name, f"iso_{name}", paper, args, depth, img_size, cfg)


def _hierarchical() -> Iterator[Size]:
    for name, (depths, first) in HIERARCHICAL.items():
        img_size = 64 if name == "test" else 224
        args = {"depths": depths, "dims": tuple(first * 2**stage for stage in range(4))}
        cfg = {"pool_size": (img_size // 32,) * 2}
        yield Size(name, name, f"ConvNeXt-{name[0].upper()}", args, sum(depths), img_size, cfg)


def _resnets(d: str = "") -> Iterator[Size]:
    for name, (depths, bottleneck) in RESNETS.items():
        args: dict[str, Any] = {"depths": depths, "bottleneck": bottleneck}
        img_size, least = (65, 65) if name == "test" else (225, 97)
        if name == "test":
            args |= {"widths": (8, 8, 16, 16), "stem_width": 16}
        if d:
            args |= {"stem_type": "deep", "avg_down": True}
        cfg = {"pool_size": (img_size // 32 + 1,) * 2, "min_input_size": (3, least, least)}
        yield Size(name, f"{name}{d}", f"ResNet-{name}{d}", args, sum(depths), img_size, cfg)


def _small_resnets() -> Iterator[Size]:
    """The number counts layers with weights. Values of pixels are those of CIFAR-10."""
    cfg = {
        "num_classes": 10,
        "mean": (0.491, 0.482, 0.447),
        "std": (0.247, 0.243, 0.262),
        "pool_size": (4, 4),
        "min_input_size": (3, 32, 32),
    }
    for name, (depths, widths, stem) in SMALL_RESNETS.items():
        args = {"depths": depths, "widths": widths, "stem_width": stem, "strides": (2,) * len(depths)}
        args |= {"bottleneck": False, **SMALL_RESNET_ARGS}
        yield Size(name, f"{name}_32", f"ResNet-{name} (32 px)", args, sum(depths), 32, cfg)


def _cross(model: type[Backbone], start: str, sizes: Iterable[Size], variants: tuple[Variant, ...]) -> Iterator[Entry]:
    """Every size in all its variants; ordinary networks only where timm has none."""
    for size in sizes:
        for variant in variants:
            if (variant.sizes and size.name not in variant.sizes) or (not variant.letter and size.paper in BASELINES):
                continue
            paper = None if size.name == "test" else variant.name_in_paper(size.paper)
            args = {**size.args, **variant.arguments(size.depth)}
            yield Entry(f"{start}_{variant.prefix}{size.ending}", paper, model, args, size.img_size, size.cfg)


ENTRIES = (
    *_cross(VisionTransformer, "deit3", _vits(), VIT_VARIANTS),
    *_cross(VisionTransformer, "vit", _dinov2(), DINOV2_VARIANTS),
    *_cross(VisionTransformer, "vit", _rotary(), (E, ORDINARY)),
    *_cross(ResMlp, "resmlp", _resmlps(), RESMLP_VARIANTS),
    *_cross(ConvNeXt, "convnext", _isotropic(), (E, FLIPFLOP, OCTIC, ORDINARY)),
    *_cross(ConvNeXt, "convnext", _hierarchical(), (E, OCTIC)),
    *_cross(ResNet, "resnet", _resnets(), (*EHI, OCTIC)),
    *_cross(ResNet, "resnet", _resnets("d"), EHI),
    *_cross(ResNet, "resnet", _small_resnets(), (E, ORDINARY)),
)
"""Every model that we register."""
