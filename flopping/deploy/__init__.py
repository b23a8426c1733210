"""Networks in use: classifiers, predictions for photos, and files that other programs run."""

from flopping.deploy.classifier import Classifier, open_classifier
from flopping.deploy.exporter import FORMATS, Checked, CheckFailedError, Exported, ExportError, Format, export
from flopping.deploy.prediction import Moved, Prediction, Ranked, predict

__all__ = [
    "FORMATS",
    "CheckFailedError",
    "Checked",
    "Classifier",
    "ExportError",
    "Exported",
    "Format",
    "Moved",
    "Prediction",
    "Ranked",
    "export",
    "open_classifier",
    "predict",
]
