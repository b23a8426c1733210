"""What a user of an exported network has to know: its classes, and how an image becomes its input."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from timm.data import resolve_model_data_config

from flopping.classifier import Classifier
from flopping.training.trained import normalisation_of

INPUT, OUTPUT = "image", "logits"
"""What the graph's input and output are called."""


def description(classifier: Classifier) -> dict[str, Any]:
    """Plain data that JSON can hold.

    An image is resized so that its shorter side is that of `input_size` divided by `crop_pct`, its middle is cut out,
    its pixels are divided by 255, and then shifted by `mean` and divided by `std`, channel by channel.

    >>> from flopping.classifier import open_classifier
    >>> found = description(open_classifier("deit3_flop_test_patch16_64"))
    >>> found["name"], found["input_size"], found["crop_pct"], len(found["labels"])
    ('deit3_flop_test_patch16_64', [3, 64, 64], 0.9, 1000)
    """
    cfg = resolve_model_data_config(classifier.model)
    normal = normalisation_of(classifier.model, classifier.input_size[0])
    return {
        "name": classifier.name,
        "labels": list(classifier.labels),
        "input_size": list(classifier.input_size),
        "mean": list(normal.mean),
        "std": list(normal.std),
        "interpolation": cfg["interpolation"],
        "crop_pct": cfg["crop_pct"],
        "crop_mode": cfg["crop_mode"],
        "trained": classifier.trained,
        "producer": f"flopping {version('flopping')}",
    }
