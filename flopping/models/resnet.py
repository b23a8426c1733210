"""ResNet: residual blocks of ordinary convolutions, at half of the multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional import Pointwise
from flopping.functional.grid import Grid
from flopping.functional.window import AXES, mirrored_axes
from flopping.groups import Group
from flopping.models.backbone import Backbone, linear_or_identity
from flopping.models.convnext import Stage
from flopping.models.group_schedule import Handoffs, Schedule
from flopping.models.initialise import initialise
from flopping.nn import Activation, BatchNorm, MaxPool2d
from flopping.nn.activation import pointwise_function
from flopping.nn.drop import probability
from flopping.nn.maps.residual import PooledBlock, ResidualBlock, make_conv

EXPANSION = 4
"""A bottleneck gives this many times the width of its 3 x 3 convolution."""


class ResNet(Backbone):
    """ResNet for any group of the pixel grid; `group="trivial"` is timm's, with the same weights.

    `depths`, `widths` and `strides` are those of the stages; with `bottleneck` they give four times the width. Strides
    are by default 1 for the first stage and 2 for others. Features may be taken after the stem and after every stage.
    `stem_type` is "" (one 7 x 7 convolution), "deep" (three 3 x 3), "half" (one convolution with a stride of 2, no
    pooling) or "small" (one 3 x 3 without stride and no pooling), the last two for small images. `avg_down` puts a mean
    before the convolution of a shortcut with a stride: over 2 x 2 places in an ordinary network, as in timm, and over
    3 x 3 in others, whose sizes are odd. `handoffs` counts blocks through all stages; other arguments as for
    `VisionTransformer`.

    Kernels are odd and strides are 2, so mirrored axes of an image have a multiple of 32 pixels plus one: 225 pixels,
    which become 113, 57, 29, 15 and 8 places. `stride_kernel` is the kernel of convolutions with a stride in blocks.
    With 2 or 4 in place of 3, mirrored axes are multiples of all strides, shortcuts with a stride have means over 2 x 2
    places (`avg_down` is refused), and the stem is "half", with a kernel of 4, or "small". "max" takes the same sizes:
    each block with a stride is then a `PooledBlock`, which takes maxima of 2 x 2 places; not for bottlenecks.

    >>> model = ResNet(depths=(1, 1), widths=(8, 16), stem_width=8, num_classes=10).eval()
    >>> x = torch.randn(2, 3, 33, 49)
    >>> bool(torch.allclose(model(x), model(x.flip(-1)), atol=1e-5)), tuple(model.forward_features(x).shape)
    (True, (2, 64, 5, 7))
    >>> small = ResNet(depths=(1, 1), widths=(8, 16), bottleneck=False, stem_type="half", stem_width=8, stride_kernel=4)
    >>> tuple(small.forward_features(torch.randn(2, 3, 32, 32)).shape)
    (2, 16, 8, 8)
    """

    global_pools = ("avg", "")
    timm_renames = ((r"^(layer\d+)\.blocks\.", r"\1."),)

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        depths: Sequence[int] = (3, 4, 6, 3),
        widths: Sequence[int] = (64, 128, 256, 512),
        bottleneck: bool = True,
        stem_type: Literal["", "deep", "half", "small"] = "",
        stem_width: int = 64,
        strides: Sequence[Literal[1, 2]] | None = None,
        stride_kernel: Literal[2, 3, 4, "max"] = 3,
        avg_down: bool = False,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-5,
        act_layer: str | Pointwise = "relu",
        zero_init_last: bool = True,
        group: str | Group = "flop",
        handoffs: Handoffs | None = None,
        extra_share: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, global_pool)
        if len(depths) != len(widths) or not depths or min(depths) < 1:
            raise ValueError(f"every stage has a depth and a width, got depths={depths}, widths={widths}")
        steps = [1] + [2] * (len(depths) - 1) if strides is None else list(strides)
        if len(steps) != len(depths) or not set(steps) <= {1, 2}:
            raise ValueError(f"every stage has a stride of 1 or 2, got strides={steps}, depths={depths}")
        if stem_type not in ("", "deep", "half", "small"):
            raise ValueError(f"stem_type is '', 'deep', 'half' or 'small', got {stem_type!r}")
        if stride_kernel not in (2, 3, 4, "max") or (stride_kernel != 3 and stem_type in ("", "deep")):
            raise ValueError(
                "stride_kernel is 3, or 2, 4 or 'max' with stem_type='half' or 'small',"
                f" got stride_kernel={stride_kernel!r}, stem_type={stem_type!r}"
            )
        if stride_kernel == "max" and bottleneck:
            raise ValueError("stride_kernel='max' is for blocks of two convolutions: set bottleneck=False")
        even_sizes = stride_kernel != 3
        self.has_small_stem, self.avg_down = stem_type in ("half", "small"), avg_down
        if avg_down and even_sizes:
            raise ValueError(
                f"avg_down is for stride_kernel=3: leave it out, got avg_down=True, stride_kernel={stride_kernel!r}"
            )
        schedule = Schedule(group, sum(depths), handoffs, extra_share)
        rates = torch.linspace(0, probability(drop_path_rate), sum(depths), device="cpu").tolist()
        function = pointwise_function(act_layer)
        self.zero_init_last = zero_init_last
        self.first_group = schedule.first.group
        shortcut_pool = None
        if even_sizes or (avg_down and self.first_group.order == 1):
            shortcut_pool = 2
        elif avg_down:
            shortcut_pool = 3

        layout = schedule.first.layout(stem_width)
        if stem_type == "deep":
            half = schedule.first.layout(stem_width // 2)
            self.conv1: nn.Module = self._deep_stem(layout, half, norm_eps, function, device, dtype)
        else:
            size, step = {"": (7, 2), "half": (4 if even_sizes else 3, 2), "small": (3, 1)}[stem_type]
            self.conv1 = make_conv(in_chans, layout, size, step, device, dtype)
        self.bn1 = BatchNorm(layout, norm_eps, device=device, dtype=dtype)
        self.act1 = Activation(layout, function)
        pooled = stem_type in ("", "deep")
        start = 4 if pooled else 2 if stem_type == "half" else 1
        # activation and pooling in one, which changes the basis once
        self.maxpool = MaxPool2d(layout, 3, 2, 1, function) if pooled else Activation(layout, function)
        mirrored = []  # the strides of blocks that follow the group
        self.layouts = [layout]
        self.stage_count = len(depths)
        dim = stem_width
        for stage, (width, end) in enumerate(zip(widths, accumulate(depths), strict=True)):
            blocks, within = [], {}
            for b in range(end - depths[stage], end):
                first = b == end - depths[stage]
                if b in schedule.handoffs:
                    within[b - end + depths[stage]] = schedule.handoff(b, dim, device=device, dtype=dtype)
                stride = steps[stage] if first else 1
                segment, out = schedule.segments[b], width * (EXPANSION if bottleneck else 1)
                if mirrored_axes(segment.group):
                    mirrored.append(stride)
                common: dict[str, Any] = {
                    "drop_path": rates[b],
                    "eps": norm_eps,
                    "function": function,
                    "invariant_only": schedule.layout_out(b, out) != segment.layout(out),
                    "device": device,
                    "dtype": dtype,
                }
                if stride > 1 and stride_kernel == "max":
                    block: nn.Module = PooledBlock(segment.layout(dim), segment.layout(out), **common)
                else:
                    block = ResidualBlock(
                        segment.layout(dim),
                        segment.layout(width),
                        segment.layout(out),
                        stride=stride,
                        stride_kernel=3 if stride_kernel == "max" else stride_kernel,
                        bottleneck=bottleneck,
                        shortcut_pool=shortcut_pool,
                        **common,
                    )
                blocks.append(block)
                dim = out
            self.add_module(f"layer{stage + 1}", Stage(nn.Identity(), blocks, within))
            self.layouts.append(schedule.layout_out(end - 1, dim))
        self.reduction, self.mirrored_reduction = start * prod(steps), start * prod(mirrored)
        self.even_sizes, self.pools_pairs = even_sizes, shortcut_pool == 2 and not even_sizes
        totals = [2 if pooled else start, *(start * prod(steps[: i + 1]) for i in range(len(steps)))]
        self.feature_info = [
            {"module": f"layer{i}" if i else "act1", "num_chs": layout.dim, "reduction": total}
            for i, (layout, total) in enumerate(zip(self.layouts, totals, strict=True))
        ]
        self.num_features = self.layouts[-1].dim
        self.head_hidden_size = self.layouts[-1].multiplicities[0]
        self.head_drop = nn.Dropout(drop_rate)
        self._new_classifier(device, dtype)
        self._init_weights()

    def _deep_stem(
        self, layout: Layout, half: Layout, eps: float, act: Pointwise, device: Device, dtype: Dtype
    ) -> nn.Module:
        layers: list[nn.Module] = []
        for before, stride in ((self.in_chans, 2), (half, 1)):
            norm = BatchNorm(half, eps, device=device, dtype=dtype)
            layers += [make_conv(before, half, 3, stride, device, dtype), norm, Activation(half, act)]
        return nn.Sequential(*layers, make_conv(half, layout, 3, 1, device, dtype))

    @torch.no_grad()
    def _init_weights(self) -> None:
        initialise(self, "scaled", skip=self.fc, head_dim=self.num_features)
        # After a ReLU only even channels have a mean. Their vector of means is as long as that of the ordinary
        # network's num_features channels, so the classifier starts with weights for that width.
        for parameter in self.fc.parameters():
            parameter.mul_(sqrt(self.head_hidden_size / self.num_features))
        for block in self.modules():
            if isinstance(block, ResidualBlock | PooledBlock) and self.zero_init_last:
                for weight in block.last_norm.weight.values():
                    nn.init.zeros_(weight)

    @property
    def stages(self) -> list[Stage]:
        """The stages that pruning has left."""
        return [getattr(self, f"layer{i + 1}") for i in range(self.stage_count)]

    @property
    def layers_to_compile(self) -> list[nn.Module]:
        """The stem and all blocks: the maps of the stem are the largest."""
        return [self.conv1, self.bn1, self.maxpool, *super().layers_to_compile]

    @property
    def stage_layers(self) -> list[list[nn.Module]]:
        stages: list[list[nn.Module]] = [[stage] for stage in self.stages]
        if stages:
            stages[0].insert(0, self.maxpool)
        return [[self.bn1], *stages]

    def _pack(self, x: Feature, stage: int, norm: bool) -> Tensor:
        return super()._pack(x if stage else self.act1(x), stage, norm)

    @property
    def _checkpoints_layers(self) -> bool:
        return False  # a stage does it

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        super().set_grad_checkpointing(enable)
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def _prune(self, stages: int) -> None:
        for i in range(stages - 1, self.stage_count):
            delattr(self, f"layer{i + 1}")
        self.stage_count = stages - 1

    def grid_of(self, img_size: Grid) -> Grid:
        if self.even_sizes:  # no layer has a border beyond the last window
            return img_size[0] // self.reduction, img_size[1] // self.reduction
        return -(-img_size[0] // self.reduction), -(-img_size[1] // self.reduction)

    def embed(self, image: Tensor) -> Feature:
        if not is_symbolic(image) and image.dim() == 4:
            self._check_size((image.shape[2], image.shape[3]))
        out: Feature = self.conv1(image)
        return out

    def _check_size(self, size: Grid) -> None:
        """Refuse an image size that some layer would refuse, with a message in terms of the image."""
        if self.even_sizes and min(size) < self.reduction:
            raise ValueError(f"ResNet: images have at least {self.reduction} pixels along each axis, got {size}")
        step, total, offset = self.mirrored_reduction, self.reduction, 0 if self.even_sizes else 1
        for axis in mirrored_axes(self.first_group):
            if (size[axis] - offset) % step:
                low = max((size[axis] - offset) // step, 1) * step + offset
                stem = "" if self.has_small_stem else "stem_type='half', "
                even = f"even kernels ({stem}stride_kernel=4{', avg_down=False' * self.avg_down}), or group='trivial'"
                raise ValueError(
                    f"ResNet: a {AXES[axis]} of {size[axis]} pixels: strides are equivariant to {self.first_group} for"
                    f" a multiple of {step}{' plus 1' * offset}, e.g. {low} or {low + step}; other sizes need"
                    f" {'stride_kernel=3' if self.even_sizes else even}"
                )
        if self.pools_pairs and any(n % total for n in size):
            near = tuple(max(round(n / total), 1) * total for n in size)
            raise ValueError(
                f"ResNet: shortcuts with means over 2 x 2 places take multiples of {total} pixels, e.g. {near},"
                f" got {size}"
            )

    def finish(self, x: Feature) -> Tensor:
        return self._pack(x, self.stage_count, norm=False).permute(0, 3, 1, 2)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates."""
        fine = [(r"^layer(\d+)\.(?:blocks|handoffs)\.(\d+)", None)]
        return {"stem": r"^conv1|^bn1", "blocks": r"^layer(\d+)" if coarse else fine}

    def get_classifier(self) -> nn.Module:
        return self.fc

    def _new_classifier(self, device: Device, dtype: Dtype) -> None:
        self.fc = linear_or_identity(self.head_hidden_size, self.num_classes, device, dtype).train(self.training)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from the even channels, of their mean or, without pooling, of every place."""
        even = x.narrow(1, 0, self.head_hidden_size)
        pooled = self.head_drop(even.mean((2, 3)) if self.global_pool else even.permute(0, 2, 3, 1))
        logits: Tensor = pooled if pre_logits else self.fc(pooled)
        return logits if self.global_pool else logits.permute(0, 3, 1, 2)
