"""The eight symmetries of the square, and what they do to an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Symmetry:
    """A symmetry of the square as a signed permutation of the centred (row, column) coordinates.

    It acts on images from the left: `(g f)(p) = f(g^-1 p)`, so `g(h(f)) == (g @ h)(f)`.

    >>> turn = SYMMETRIES["rot90"]
    >>> turn(torch.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """

    matrix: tuple[tuple[int, int], tuple[int, int]]

    @property
    def transposes(self) -> bool:
        return self.matrix[0][0] == 0

    @property
    def flipped_axes(self) -> tuple[int, ...]:
        """Axes of (row, column) that are reversed after the transposition."""
        return tuple(axis for axis in (0, 1) if sum(self.matrix[axis]) < 0)

    def __call__(self, image: Tensor, dims: tuple[int, int] = (-2, -1)) -> Tensor:
        """Move the pixels of `image`, whose rows and columns are the axes `dims`."""
        if self.transposes:
            image = image.transpose(*dims)
        flipped = [dims[axis] for axis in self.flipped_axes]
        return image.flip(flipped) if flipped else image


SYMMETRIES = {
    "identity": Symmetry(((1, 0), (0, 1))),
    "rot90": Symmetry(((0, -1), (1, 0))),
    "rot180": Symmetry(((-1, 0), (0, -1))),
    "rot270": Symmetry(((0, 1), (-1, 0))),
    "flop": Symmetry(((1, 0), (0, -1))),
    "transpose": Symmetry(((0, 1), (1, 0))),
    "flip": Symmetry(((-1, 0), (0, 1))),
    "antitranspose": Symmetry(((0, -1), (-1, 0))),
}


def planes(symmetries: Sequence[Symmetry]) -> Tensor:
    """Symmetries as 2 x 2 matrices."""
    return torch.tensor([s.matrix for s in symmetries], dtype=torch.float64, device="cpu")
