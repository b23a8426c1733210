"""Norms over places: of a batch, and of groups of channels of one sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout


def batch_norm(
    x: Feature,
    layout: Layout,
    weight: Sequence[Tensor],
    bias: Tensor,
    running_mean: Tensor,
    running_var: Sequence[Tensor],
    *,
    training: bool,
    momentum: float,
    eps: float,
    sync: bool,
) -> Feature:
    """Divide every copy by its deviation over batch, places and components; subtract means of the trivial irrep only.

    Over an input and all its images under the group, the mean of any other irrep is zero, so its variance is its mean
    square. The statistics of a batch do not change if the group moves some of its samples. `weight` and `running_var`
    have one tensor per irrep that occurs. In training the running statistics are updated in place. With `sync`, they
    are those of all processes.
    """
    used = [i for i, m in enumerate(layout.multiplicities) if m]
    together = training and sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    moments = _moments_of_all(x, used, running_mean) if together else None
    parts = list(x)
    for n, i in enumerate(used):
        if i == 0 and moments is None:
            channels_second = x[0].movedim(-1, 1)
            y = F.batch_norm(channels_second, running_mean, running_var[n], weight[n], bias, training, momentum, eps)
            parts[0] = y.movedim(1, -1)
            continue
        exact = x[i].to(torch.promote_types(x[i].dtype, torch.float32))
        if not training:
            variance = running_var[n]
        elif moments is None:
            variance = _mean_square(exact)
            _update(running_var[n], variance, momentum)
        elif i == 0:
            mean, variance, correction = moments[i]
            exact = exact - mean
            _update(running_mean, mean, momentum)
            _update(running_var[n], variance * correction, momentum)
        else:
            variance = moments[i][1]
            _update(running_var[n], variance, momentum)
        y = exact * (weight[n] * (variance + eps).rsqrt())
        parts[i] = (y + bias if i == 0 else y).to(x[i].dtype)
    return tuple(parts)


def _mean_square(part: Tensor) -> Tensor:
    """Of every copy, over all other axes."""
    return part.flatten(0, -2).square().mean(0)


@torch.no_grad()
def _update(running: Tensor, value: Tensor, momentum: float) -> None:
    running.lerp_(value.to(running.dtype), momentum)  # one operation, which tracers record and do not run


def _moments_of_all(x: Feature, used: Sequence[int], shift: Tensor) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Mean, variance, and the factor to an unbiased one, over all processes, in one exchange.

    Sums are those of values minus the running mean, which all processes share: then the mean of the squares minus the
    square of the mean loses no digits.
    """
    from torch.distributed._functional_collectives import all_reduce  # it has a derivative; not every torch has it

    dtype = torch.promote_types(x[used[0]].dtype, torch.float32)
    sums = []
    for i in used:
        part = x[i].to(dtype)
        part = (part - shift if i == 0 else part).flatten(0, -2)
        sums += [part.sum(0), part.square().sum(0), part.new_full((1,), float(part.shape[0]))]
    totals = all_reduce(torch.cat(sums), "sum", dist.distributed_c10d._get_default_group()).split(
        [len(s) for s in sums]
    )
    found = {}
    for n, i in enumerate(used):
        total, squares, count = totals[3 * n : 3 * n + 3]
        mean, square = total / count, squares / count
        variance = square - mean.square() if i == 0 else square
        found[i] = (mean + shift if i == 0 else mean, variance, count / (count - 1))
    return found


def group_norm(
    x: Feature, layout: Layout, num_groups: int, weight: Sequence[Tensor], bias: Tensor, eps: float
) -> Feature:
    """Normalise groups of channels of every sample over all places; a group is an equal slice of every part.

    As in a layer norm the mean of each component is removed, and all parts of a group are divided by one deviation.
    """
    used = [i for i, m in enumerate(layout.multiplicities) if m]
    if used == [0]:
        return F.group_norm(x[0].movedim(-1, 1), num_groups, weight[0], bias, eps).movedim(1, -1), *x[1:]
    centred, joint = [], torch.zeros((), device=x[0].device)
    for i in used:
        d = layout.irrep_dims[i]
        part = x[i].to(torch.promote_types(x[i].dtype, torch.float32))
        places = (part if d > 1 else part.unsqueeze(-2)).flatten(1, -3).unflatten(-1, (num_groups, -1))  # B N d G C
        value = places - places.mean((1, 4), keepdim=True)
        centred.append(value)
        joint = joint + value.square().mean((1, 2, 4), keepdim=True) * (layout.part_dims[i] / layout.dim)
    scale = (joint + eps).rsqrt()
    parts = list(x)
    for i, value, w in zip(used, centred, weight, strict=True):
        y = (value * scale).flatten(-2) * w
        parts[i] = (y + bias if i == 0 else y).reshape(x[i].shape).to(torch.promote_types(x[i].dtype, w.dtype))
    return tuple(parts)
