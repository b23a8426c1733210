"""Checkpoints from elsewhere in, safetensors out."""

from flopping.checkpoints.convert import Converted, convert_reference
from flopping.checkpoints.files import read_weights, write_weights
from flopping.checkpoints.reference import load_reference, translate

__all__ = ["Converted", "convert_reference", "load_reference", "read_weights", "translate", "write_weights"]
