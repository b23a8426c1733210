"""Equivariant layers. A feature goes in and out as a tuple of tensors, one per irrep of the group."""

from flopping.nn.activation import Activation, GatedActivation
from flopping.nn.attention import Attention, RotaryEmbed
from flopping.nn.block import Mlp, TransformerBlock
from flopping.nn.drop import Dropout, DropPath
from flopping.nn.embed import ClassToken, PatchEmbed, PosEmbed, RegisterTokens
from flopping.nn.handoff import Concat, InvariantHead, Restrict, ToInvariant, ToRegular
from flopping.nn.invariants import AbsToInvariant, MaxFilter, Polynomials
from flopping.nn.linear import Linear
from flopping.nn.maps import (
    AvgPool2d,
    BatchNorm,
    Conv2d,
    DepthwiseConv2d,
    Downsample,
    GlobalPool,
    GroupNorm,
    MaxPool2d,
    SqueezeExcite,
    Upsample,
)
from flopping.nn.mix import TokenMix
from flopping.nn.module import Module, Sequential
from flopping.nn.norm import Affine, LayerNorm, LayerScale
from flopping.nn.orient import Orient, OrientedBias

__all__ = [
    "AbsToInvariant",
    "Activation",
    "Affine",
    "Attention",
    "AvgPool2d",
    "BatchNorm",
    "ClassToken",
    "Concat",
    "Conv2d",
    "DepthwiseConv2d",
    "Downsample",
    "DropPath",
    "Dropout",
    "GatedActivation",
    "GlobalPool",
    "GroupNorm",
    "InvariantHead",
    "LayerNorm",
    "LayerScale",
    "Linear",
    "MaxFilter",
    "MaxPool2d",
    "Mlp",
    "Module",
    "Orient",
    "OrientedBias",
    "PatchEmbed",
    "Polynomials",
    "PosEmbed",
    "RegisterTokens",
    "Restrict",
    "RotaryEmbed",
    "Sequential",
    "SqueezeExcite",
    "ToInvariant",
    "ToRegular",
    "TokenMix",
    "TransformerBlock",
    "Upsample",
]
