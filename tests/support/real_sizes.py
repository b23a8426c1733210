"""Networks at a real size: one of each architecture and variant, because further ones differ in numbers alone."""

from __future__ import annotations

import re

from flopping.models import ZOO


def real_sizes() -> list[str]:
    """The smallest network of each architecture and variant that is no small `test` member.

    >>> [name for name in real_sizes() if name.startswith("resmlp")]
    ['resmlp_flop_t12_224', 'resmlp_flipflop_t12_224', 'resmlp_octic_t12_224', 'resmlp_b24_224']
    """
    first: dict[tuple[object, ...], str] = {}
    for name in ZOO:
        if "test" not in name:
            without_size = re.sub(r"_(tiny|small|base|large|huge|patch\d+|[tsbl]?\d+)(?=_|d?$)", "", name)
            blocks = [ZOO[name].args.get(argument) for argument in ("bottleneck", "stem_type")]  # of ResNets
            first.setdefault((without_size, *blocks), name)
    return [*first.values()]
