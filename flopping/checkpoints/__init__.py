"""Checkpoints from elsewhere in, safetensors out."""

from flopping.checkpoints.reference import Converted, convert_reference, load_reference, translate
from flopping.checkpoints.weight_files import read_weights, write_weights

__all__ = ["Converted", "convert_reference", "load_reference", "read_weights", "translate", "write_weights"]
