"""ConvNeXt, hierarchical and isotropic: depthwise filters, an MLP on channels, folded downsampling between stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, Read, is_given, is_symbolic
from flopping.functional import Pointwise
from flopping.functional.grid import Grid, as_pair
from flopping.groups import Group
from flopping.models.backbone import Backbone, joint_eps, linear_or_identity, run
from flopping.models.group_schedule import Handoffs, Schedule
from flopping.models.initialise import check_weight_init, initialise, linear_
from flopping.nn import DepthwiseConv2d, Downsample, DropPath, LayerNorm, Mlp, Module, PatchEmbed
from flopping.nn.activation import pointwise_function
from flopping.nn.drop import probability
from flopping.nn.norm import LayerScale, add_branch, layer_scale


class ConvNeXtBlock(Module):
    """x + gamma(mlp(norm(depthwise filter(x)))) on maps; `init_values=None` leaves the layer scale out.

    `invariant_only` as in a transformer block. Called with `read`, it gives what is read of the result, and the last
    linear map follows the reading; `functional.invariant_only` is read in evaluation alone.

    >>> layout = Layout.regular("flop", 8)
    >>> [tuple(part.shape) for part in ConvNeXtBlock(layout)(layout.random(2, 5, 7))]
    [(2, 5, 7, 4), (2, 5, 7, 4)]
    """

    in_layout: Layout
    out_layout: Layout
    leading = 3

    def __init__(
        self,
        layout: Layout,
        *,
        kernel_size: int = 7,
        mlp_ratio: float = 4.0,
        init_values: float | None = 1e-6,
        drop_path: float = 0.0,
        eps: float = 1e-6,
        function: Pointwise = nn.functional.gelu,
        invariant_only: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout.invariant_part if invariant_only else layout
        super().__init__(layout, out)
        self.conv_dw = DepthwiseConv2d(layout, kernel_size, device=device, dtype=dtype)
        self.norm = LayerNorm(layout, eps, device=device, dtype=dtype)
        self.mlp = Mlp(layout, layout * mlp_ratio, function, out=out, device=device, dtype=dtype)
        self.gamma = layer_scale(out, init_values, device=device, dtype=dtype)
        self.drop_path = DropPath(out, drop_path)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        x = self.in_layout.parts(x, "ConvNeXtBlock", self.leading)
        filtered = self.norm(self.conv_dw(x))
        if read is functional.invariant_only:
            return functional.add(read(x), self._invariant_branch(filtered))
        branch = self.drop_path(self.mlp(filtered, read))
        return add_branch(x if not is_given(read) else read(x), branch, self.out_layout, self.gamma)

    def _invariant_branch(self, filtered: Feature) -> Feature:
        name = self.in_layout.group.irreps[0].name
        even, *none = functional.invariant_only(self.mlp.act(self.mlp.fc1(filtered)))
        even = getattr(self.mlp.fc2, name)(even)
        return even * self.gamma.gamma[name] if isinstance(self.gamma, LayerScale) else even, *none


class Stage(nn.Module):
    """Blocks of one width, after a norm and a downsampling if the stage has them, with hand-offs in between."""

    def __init__(self, downsample: nn.Module, blocks: Sequence[nn.Module], handoffs: dict[int, Module]) -> None:
        super().__init__()
        self.downsample = downsample
        self.handoffs = nn.ModuleDict({str(i): handoff for i, handoff in handoffs.items()})
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    @property
    def steps(self) -> list[list[nn.Module]]:
        """The layers of each block, with what stands before it."""
        steps: list[list[nn.Module]] = [[block] for block in self.blocks]
        for i, handoff in self.handoffs.items():
            steps[int(i)].insert(0, handoff)
        if not isinstance(self.downsample, nn.Identity):
            steps[0].insert(0, self.downsample)
        return steps

    def prune(self, blocks: int) -> None:
        """Drop all layers after a number of blocks."""
        self.blocks = self.blocks[:blocks]
        for i in [key for key in self.handoffs if int(key) >= blocks]:
            del self.handoffs[i]

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        return run([layer for step in self.steps for layer in step], x, self.grad_checkpointing, read)


class MapHead(nn.Module):
    """Mean over a map of even channels `(B, H, W, C)`, a norm, and a linear layer.

    Without pooling the norm and the linear layer are applied to every place, and the result is `(B, C, H, W)`.
    """

    def __init__(self, width: int, drop_rate: float, eps: float, device: Device, dtype: Dtype) -> None:
        super().__init__()
        self.pool = True
        self.norm: nn.Module = nn.LayerNorm(width, eps, device=device, dtype=dtype)
        self.drop = nn.Dropout(drop_rate)
        self.fc: nn.Module = nn.Identity()

    def forward(self, even: Tensor, pre_logits: bool = False) -> Tensor:
        out = self.drop(self.norm(even.mean((1, 2)) if self.pool else even))
        logits: Tensor = out if pre_logits else self.fc(out)
        return logits if self.pool else logits.permute(0, 3, 1, 2)


class ConvNeXt(Backbone):
    """ConvNeXt for every group; `group="trivial"` is timm's, with the same weights.

    `depths` and `dims` of one stage make the isotropic form, whose features may be taken after every block; with
    several stages they are taken after each stage. `handoffs` counts blocks through all stages; other arguments as
    for `VisionTransformer`. `forward_features` is the last map, `(B, C, H, W)` with channels [even | odd]; the head
    reads the mean of the even ones.

    >>> model = ConvNeXt(depths=(1, 1), dims=(8, 16), patch_size=4, num_classes=10)
    >>> x = torch.randn(2, 3, 32, 48)
    >>> bool(torch.allclose(model(x), model(x.flip(-1)), atol=1e-5)), tuple(model.forward_features(x).shape)
    (True, (2, 16, 4, 6))
    """

    global_pools = ("avg", "")
    timm_renames = ((r"^(stem\.0|.*\.downsample\.1)\.proj\.", r"\1."), (r"\.gamma\.gamma$", ".gamma"))

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        depths: Sequence[int] = (3, 3, 9, 3),
        dims: Sequence[int] = (96, 192, 384, 768),
        patch_size: int | Grid = 4,
        kernel_size: int = 7,
        mlp_ratio: float = 4.0,
        init_values: float | None = 1e-6,
        stem_norm: bool | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        act_layer: str | Pointwise = "gelu",
        group: str | Group = "flop",
        handoffs: Handoffs | None = None,
        extra_share: float = 0.0,
        weight_init: str = "scaled",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, global_pool)
        if len(depths) != len(dims) or not depths or min(depths) < 1:
            raise ValueError(f"every stage has a depth and a width, got depths={depths}, dims={dims}")
        self.isotropic = len(depths) == 1
        self.patch_size = as_pair(patch_size, "patch_size")
        schedule = Schedule(group, sum(depths), handoffs, extra_share)
        rates = torch.linspace(0, probability(drop_path_rate), sum(depths), device="cpu").tolist()

        def norm(layout: Layout) -> LayerNorm:
            return LayerNorm(layout, joint_eps(norm_eps, layout), device=device, dtype=dtype)

        layout = schedule.first.layout(dims[0])
        embed = PatchEmbed(layout, None, patch_size, in_chans, flatten=False, device=device, dtype=dtype)
        self.stem = nn.Sequential(embed)
        if not self.isotropic if stem_norm is None else stem_norm:
            self.stem.append(norm(layout))
        self.stages = nn.ModuleList()
        for stage, (dim, end) in enumerate(zip(dims, accumulate(depths), strict=True)):
            start = end - depths[stage]
            downsample: nn.Module = nn.Identity()
            if stage:
                wider = schedule.layout_out(start - 1, dim)
                downsample = nn.Sequential(norm(layout), Downsample(layout, wider, device=device, dtype=dtype))
            blocks = []
            for b in range(start, end):
                layout = schedule.layout_in(b, dim)
                out = layout if b + 1 == end else schedule.layout_out(b, dim)  # a downsampling reads all parts
                blocks.append(
                    ConvNeXtBlock(
                        layout,
                        kernel_size=kernel_size,
                        mlp_ratio=mlp_ratio,
                        init_values=init_values,
                        drop_path=rates[b],
                        eps=joint_eps(norm_eps, layout),
                        function=pointwise_function(act_layer),
                        invariant_only=out != layout,
                        device=device,
                        dtype=dtype,
                    )
                )
            within = {
                b - start: schedule.handoff(b, dim, device=device, dtype=dtype)
                for b in schedule.handoffs
                if start <= b < end
            }
            self.stages.append(Stage(downsample, blocks, within))
        self._describe(schedule, dims, depths)
        self.num_features = layout.dim
        self.head_hidden_size = layout.multiplicities[0]
        self.head = MapHead(self.head_hidden_size, drop_rate, norm_eps, device, dtype)
        self._new_classifier(device, dtype)
        self.weight_init = check_weight_init(weight_init)
        self._init_weights()

    def _init_weights(self) -> None:
        embed = cast(PatchEmbed, self.stem[0])
        linear_(embed.proj, self.weight_init)
        initialise(self, self.weight_init, skip=embed, head_dim=self.num_features)

    def _describe(self, schedule: Schedule, dims: Sequence[int], depths: Sequence[int]) -> None:
        """Where features may be taken: after every block of the isotropic form, else after every stage."""
        if self.isotropic:
            self.layouts = [schedule.layout_out(b, dims[0]) for b in range(depths[0])]
            places = [(f"stages.0.blocks.{b}", 1) for b in range(depths[0])]
        else:
            ends = list(accumulate(depths))
            self.layouts = [schedule.layout_in(end - 1, dim) for end, dim in zip(ends, dims, strict=True)]
            places = [(f"stages.{stage}", 2**stage) for stage in range(len(dims))]
        self.feature_info = [
            {"module": name, "num_chs": layout.dim, "reduction": max(self.patch_size) * factor}
            for (name, factor), layout in zip(places, self.layouts, strict=True)
        ]

    @property
    def stage_layers(self) -> list[list[nn.Module]]:
        return cast(Stage, self.stages[0]).steps if self.isotropic else [[stage] for stage in self.stages]

    @property
    def read(self) -> Read | None:
        return mean_of_map if self.global_pool == "avg" else None

    @property
    def _checkpoints_layers(self) -> bool:
        return self.grad_checkpointing and self.isotropic  # else a stage does it

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        super().set_grad_checkpointing(enable)
        for stage in self.stages:
            cast(Stage, stage).grad_checkpointing = enable

    def _prune(self, stages: int) -> None:
        if self.isotropic:
            cast(Stage, self.stages[0]).prune(stages)
        else:
            self.stages = self.stages[:stages]

    def _drop_head(self) -> None:
        super()._drop_head()
        self.head.norm = nn.Identity()

    @property
    def reduction(self) -> Grid:
        """How many pixels of height and width make one place of the last map."""
        factor = 2 ** (len(self.stages) - 1)
        return self.patch_size[0] * factor, self.patch_size[1] * factor

    def grid_of(self, img_size: Grid) -> Grid:
        return img_size[0] // self.reduction[0], img_size[1] // self.reduction[1]

    def embed(self, image: Tensor) -> Feature:
        if not is_symbolic(image) and image.dim() == 4:
            size = (image.shape[2], image.shape[3])
            if size[0] % self.reduction[0] or size[1] % self.reduction[1]:
                raise ValueError(f"height and width of an image are multiples of {self.reduction}, got {size}")
        out: Feature = self.stem(image)
        return out

    def forward_all(self, x: Tensor) -> Tensor:
        wants_gradients = torch.is_grad_enabled() and next(self.parameters()).requires_grad
        if self.training or wants_gradients:  # every parameter gets one, as distributed training asks
            return super().forward_all(x)
        even, *_ = self._run(self._layers, self.embed(x), functional.invariant_only)  # no head reads odd channels
        logits: Tensor = self.head(even)
        return logits

    def finish(self, x: Feature) -> Tensor:
        return self.layouts[-1].merge(x).permute(0, 3, 1, 2)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates."""
        if coarse:
            return {"stem": r"^stem", "blocks": r"^stages\.(\d+)"}
        blocks = [
            (r"^stages\.(\d+)\.downsample", (0,)),
            (r"^stages\.(\d+)\.(?:blocks|handoffs)\.(\d+)", None),
        ]
        return {"stem": r"^stem", "blocks": blocks}

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def _new_classifier(self, device: Device, dtype: Dtype) -> None:
        self.head.pool = self.global_pool == "avg"
        self.head.fc = linear_or_identity(self.head_hidden_size, self.num_classes, device, dtype).train(self.training)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        even = x.narrow(1, 0, self.head_hidden_size).permute(0, 2, 3, 1)
        out: Tensor = self.head(even, pre_logits)
        return out


def mean_of_map(x: Feature) -> Feature:
    """The mean over height and width, as maps `(B, 1, 1, ...)`."""
    return tuple([part.mean((1, 2), keepdim=True) for part in x])
