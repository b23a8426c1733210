"""Checkpoints from elsewhere rewritten as files of this library, which timm loads by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopping.checkpoints.files import require_output, write_weights
from flopping.checkpoints.reference import build, paper_name, translate
from flopping.checkpoints.translation import Handoff
from flopping.grid import Grid


@dataclass(frozen=True)
class Converted:
    """A file that was written: which network it holds, and how to load it."""

    path: Path
    paper: str | None
    name: str
    args: dict[str, Any]

    @property
    def arguments(self) -> str:
        """As they stand in a call.

        >>> Converted(Path("a.safetensors"), None, "convnext_flop_test", {"num_classes": 5}).arguments
        'num_classes=5'
        """
        return ", ".join(f"{key}={value!r}" for key, value in self.args.items())

    @property
    def line(self) -> str:
        """The Python that loads it.

        >>> print(Converted(Path("a.safetensors"), None, "convnext_flop_test", {"num_classes": 5}).line)
        timm.create_model("convnext_flop_test", checkpoint_path="a.safetensors", num_classes=5)
        """
        rest = f", {self.arguments}" if self.args else ""
        path = json.dumps(str(self.path), ensure_ascii=False)
        return f'timm.create_model("{self.name}", checkpoint_path={path}{rest})'


def convert_reference(
    source: str | Path,
    out: str | Path,
    *,
    num_heads: int | None = None,
    img_size: int | Grid | None = None,
    handoff: Handoff | None = None,
    overwrite: bool = False,
) -> Converted:
    """Rewrite a checkpoint of the reference code as a `.safetensors` file; arguments as for `load_reference`."""
    out = Path(out)
    require_output(out, overwrite)
    found = translate(source, num_heads=num_heads, img_size=img_size, handoff=handoff)
    metadata = {"architecture": found.name, "args": json.dumps(found.args)}
    write_weights(build(found).state_dict(), out, metadata, overwrite=overwrite)
    return Converted(out, paper_name(found), found.name, found.args)
