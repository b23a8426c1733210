"""Layers of convolutional networks, on maps `(B, H, W, ...)`."""

from flopping.nn.maps.batch_norm import BatchNorm, GroupNorm
from flopping.nn.maps.conv import Conv2d
from flopping.nn.maps.depthwise import DepthwiseConv2d, Downsample
from flopping.nn.maps.pool import AvgPool2d, GlobalPool, MaxPool2d, SqueezeExcite, Upsample

__all__ = [
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "DepthwiseConv2d",
    "Downsample",
    "GlobalPool",
    "GroupNorm",
    "MaxPool2d",
    "SqueezeExcite",
    "Upsample",
]
