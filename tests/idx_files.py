"""Bytes of idx files, and what is said when they are refused."""

import gzip
import struct
from collections.abc import Callable

import numpy as np
import pytest


def idx(*shape: int, content: bytes | None = None, kind: int = 8) -> bytes:
    """The bytes of an idx file, by default with what its header announces."""
    header = bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + (bytes(range(int(np.prod(shape)))) if content is None else content)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read()
    return str(caught.value)
