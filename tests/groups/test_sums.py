"""Linear combinations that share their work: the right numbers, and few operations."""

import pytest
import torch
from torch import Tensor, nn

from flopping import Layout, flipflop, flop, octic, rot90
from flopping import nn as fnn
from flopping.cost.count import count
from flopping.groups import Group
from flopping.groups.sums import combine, sums_of


@pytest.mark.parametrize("seed", range(20))
def test_combinations_are_products_with_a_matrix(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(1, 9, (2,), generator=generator).tolist()
    sizes = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5, 3.0], dtype=torch.float64)
    matrix = sizes[torch.randint(len(sizes), (rows, columns), generator=generator)]
    matrix[:, 0] = torch.where(matrix.any(1), matrix[:, 0], -1.0)  # no row of zeros
    x = torch.randn(columns, 4, generator=generator, dtype=torch.float64)
    before = x.clone()
    torch.testing.assert_close(torch.stack(combine(x.unbind(), sums_of(matrix.tolist()))), matrix @ x)
    assert torch.equal(x, before)  # nothing of the caller's is changed in place


def test_gradients_of_shared_sums() -> None:
    x = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(8)]
    assert torch.autograd.gradcheck(lambda *terms: tuple(combine(terms, octic.to_irreps)), x)


def test_a_sign_is_no_operation_of_its_own() -> None:
    """-a - b is the sum with a negative size, a - b and b - a are differences; sizes equal up to rounding are one."""
    sums = sums_of([[-2.0, -2.0, 0.0], [0.0, -1.0, 1.0], [-3.0, 0.0, 0.0]])
    assert all(row == ((k, False),) for k, row in enumerate(sums.rows))
    assert sums.scaled[1:] == ((1.0, ((2, False), (1, True))), (-3.0, ((0, False),)))
    assert len(sums_of([[0.1 + 0.2, 0.3], [0.3, -0.3]]).scaled) == 2
    with pytest.raises(ValueError, match=r"got \[0.0, 0.0\]"):
        sums_of([[1.0, 0.0], [0.0, 0.0]])


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(("group", "work"), [(flop, 4), (flipflop, 6), (rot90, 5), (octic, 7)], ids=str)
def test_work_of_the_regular_basis_and_back(group: Group, work: int) -> None:
    """Per channel, without the function; row by row it would be 4, 8, 7 and 13."""
    layout = Layout.regular(group, 16 * group.order)
    shapes = tuple((5, *shape) for shape in layout.part_shapes)
    assert count(fnn.Activation(layout, Same()), shapes).flops == work * 5 * layout.dim
