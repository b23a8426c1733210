"""Random numbers that depend on where in a run they are drawn, never on what was drawn before.

So a run that is resumed, or spread over another number of processes, draws the same ones.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derived(seed: int, *place: int | str) -> int:
    """A seed for one place of a run, from the run's seed.

    >>> derived(0, "order", 1) == derived(0, "order", 1), derived(0, "order", 1) == derived(0, "order", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr((seed, *place)).encode(), digest_size=7).digest(), "little")


def reseed(seed: int) -> None:
    """Start all generators that transforms, mixup and dropout draw from at a seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes half a millisecond: it asks every backend
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
