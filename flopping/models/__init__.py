"""The networks of the paper, as models of timm. Importing this registers them."""

from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.resnet import ResNet
from flopping.models.sizes import Entry
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.weights import from_timm
from flopping.models.zoo import ZOO, is_our_ordinary, names_in_paper, ordinary_twin, paper_names, registered_name

__all__ = [
    "ZOO",
    "Backbone",
    "ConvNeXt",
    "Entry",
    "ResMlp",
    "ResNet",
    "VisionTransformer",
    "from_timm",
    "is_our_ordinary",
    "names_in_paper",
    "ordinary_twin",
    "paper_names",
    "registered_name",
]
