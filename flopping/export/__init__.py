"""Networks as files that others run: `.pt2`, `.onnx`, and folders that timm loads; each is checked before it is there."""

from flopping.export.check import CheckFailedError, Checked
from flopping.export.export import Exported, ExportError, export
from flopping.export.formats import FORMATS, Format

__all__ = ["FORMATS", "CheckFailedError", "Checked", "ExportError", "Exported", "Format", "export"]
