"""Which architecture a network belongs to, told by its name."""

from __future__ import annotations

import re
from typing import Literal

Family = Literal["ViT", "ResMLP", "ConvNeXt"]

# Names of timm's registry, ours among them; `test_vit` is timm's own small one.
_REGISTERED: dict[str, Family] = {
    r"(test_)?(deit\d?|vit\d?)": "ViT",
    r"resmlp": "ResMLP",
    r"(test_)?convnext(v2)?\d?": "ConvNeXt",
}
# Names of the paper without marks and capitals: E(ConvNeXt-S (iso.)) is econvnextsiso.
_PAPER: dict[str, Family] = {
    r"[ehi]?vit[sblh]": "ViT",
    r"[ehi]?resmlp[tsbl](12|24)": "ResMLP",
    r"[ehi]?convnext[tsbl](iso)?": "ConvNeXt",
}


def family_of(name: str) -> Family | None:
    """The architecture of a network by its name in the registry or in the paper, None where a name tells nothing.

    >>> family_of("H(ViT-B)"), family_of("deit3_small_patch16_224"), family_of("e(convnext-s iso)")
    ('ViT', 'ViT', 'ConvNeXt')
    >>> family_of("swin_tiny_patch4_window7_224"), family_of("mine.py:vit_net")
    (None, None)
    """
    source, _, last = name.rpartition(":")
    if source not in ("", "hf-hub", "hf_hub"):  # a file or a folder, whose name means nothing
        return None
    registered = last.rpartition("/")[2]  # hf-hub:timm/NAME
    plain = re.sub(r"[\W_]", "", name.lower())
    for patterns, text, end in ((_REGISTERED, registered, r"[_.]|\Z"), (_PAPER, plain, r"\Z")):
        for pattern, family in patterns.items():
            if re.match(f"(?:{pattern})(?:{end})", text):
                return family
    return None
