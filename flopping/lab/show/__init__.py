"""One picture that explains the idea: what a network makes of an image and of its mirror image."""

from flopping.lab.show.capture import Captured, capture
from flopping.lab.show.figure import draw
from flopping.lab.show.view import View, look, open_picture

__all__ = ["Captured", "View", "capture", "draw", "look", "open_picture"]
