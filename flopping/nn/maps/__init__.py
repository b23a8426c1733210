"""Layers of convolutional networks, on maps `(B, H, W, ...)`."""

from flopping.nn.maps.conv import Conv2d

__all__ = ["Conv2d"]
