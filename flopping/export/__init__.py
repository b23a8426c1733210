"""Networks as files that others run: `.pt2`, `.onnx`, folders that timm loads; checked before they are there."""

from flopping.export.check import Checked, CheckFailedError
from flopping.export.exporting import Exported, ExportError, export
from flopping.export.formats import FORMATS, Format

__all__ = ["FORMATS", "CheckFailedError", "Checked", "ExportError", "Exported", "Format", "export"]
