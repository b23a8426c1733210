"""The networks of the paper, as models of timm."""

from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.vision_transformer import VisionTransformer

__all__ = ["ConvNeXt", "ResMlp", "VisionTransformer"]
