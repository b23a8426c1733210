"""Layers of convolutional networks, on maps `(B, H, W, ...)`."""

from flopping.nn.maps.conv import Conv2d
from flopping.nn.maps.norm import BatchNorm, GroupNorm
from flopping.nn.maps.pool import AvgPool2d, GlobalPool, MaxPool2d, SqueezeExcite, Upsample

__all__ = ["AvgPool2d", "BatchNorm", "Conv2d", "GlobalPool", "GroupNorm", "MaxPool2d", "SqueezeExcite", "Upsample"]
