"""Batch norm and group norm: scales per copy on every irrep, means and shifts on the trivial one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.batch_norm import batch_norm, group_norm
from flopping.nn.norm import _PerCopy


class BatchNorm(_PerCopy):
    """Every copy divided by its deviation over the batch; means and shifts of the trivial irrep only.

    A mirrored image changes the sign of odd channels, so their mean is zero and their variance is their mean square:
    the statistics don't depend on which images of a batch are mirrored. In evaluation running statistics are used.
    Under `torchrun` the statistics are those of all processes, as `nn.SyncBatchNorm` has them; `sync=False` keeps them
    apart. With the trivial group it is `nn.BatchNorm2d`.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> even, odd = BatchNorm(layout)(layout.random(64, 3, 3))
    >>> even.mean().abs().item() < 1e-5, round(odd.square().mean().item(), 2)
    (True, 1.0)
    >>> list(BatchNorm(layout).state_dict())  # doctest: +NORMALIZE_WHITESPACE
    ['bias', 'running_mean', 'num_batches_tracked', 'weight.even', 'weight.odd', 'running_var.even', 'running_var.odd']
    """

    running_mean: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        layout: Layout,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        sync: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout)
        self.eps, self.momentum, self.sync = eps, momentum, sync
        self.weight = self._per_copy(device, dtype)
        self.bias = self._shift(device, dtype)
        self.register_buffer("running_mean", torch.empty_like(self.bias, requires_grad=False))
        self.running_var = nn.Module()
        for name, weight in self.weight.items():
            self.running_var.register_buffer(name, torch.empty_like(weight, requires_grad=False))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.weight.values():
            nn.init.ones_(weight)
        nn.init.zeros_(self.bias)
        self.reset_running_stats()

    @torch.no_grad()
    def reset_running_stats(self) -> None:
        self.running_mean.zero_()
        self.num_batches_tracked.zero_()
        for variance in self.running_var.buffers():
            variance.fill_(1)

    def extra_repr(self) -> str:
        return f"{self.in_layout}, eps={self.eps}, momentum={self.momentum}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "BatchNorm")
        if self.training and not is_symbolic(x):
            self.num_batches_tracked.add_(1)
        return batch_norm(
            x,
            self.in_layout,
            [self.weight[name] for name in self.names],
            self.bias,
            self.running_mean,
            [getattr(self.running_var, name) for name in self.names],
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
            sync=self.sync,
        )


class GroupNorm(_PerCopy):
    """Groups of channels of one sample, normalised over all places; a group is an equal slice of every part.

    Within a group the mean of every part is removed, and all parts are divided by one deviation, as in a layer norm.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> even, odd = GroupNorm(layout, num_groups=2)(layout.random(2, 5, 7))
    >>> bool(((even[..., :2].square().mean((1, 2, 3)) + odd[..., :2].square().mean((1, 2, 3))) / 2 < 1.01).all())
    True
    """

    def __init__(
        self, layout: Layout, num_groups: int, eps: float = 1e-5, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout)
        if num_groups < 1 or any(m % num_groups for m in layout.multiplicities):
            raise ValueError(f"groups divide the copies of every irrep, got num_groups={num_groups}, {layout}")
        self.num_groups, self.eps = num_groups, eps
        self.weight = self._per_copy(device, dtype)
        self.bias = self._shift(device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.weight.values():
            nn.init.ones_(weight)
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_layout}, num_groups={self.num_groups}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "GroupNorm")
        if not is_symbolic(x) and x[0].dim() < 3:
            raise ValueError(f"GroupNorm takes tokens (B, N, ...) or maps (B, H, W, ...), got {tuple(x[0].shape)}")
        weight = [self.weight[name] for name in self.names]
        return group_norm(x, self.in_layout, self.num_groups, weight, self.bias, self.eps)
