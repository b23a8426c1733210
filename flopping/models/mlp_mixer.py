"""ResMLP: tokens are mixed by one matrix, channels by an MLP, with affine layers in place of norms."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional import Pointwise
from flopping.functional.grid import Grid, as_pair
from flopping.groups import Group
from flopping.models.backbone import TokenBackbone
from flopping.models.group_schedule import Handoffs, Schedule
from flopping.models.initialise import check_weight_init, initialise, linear_
from flopping.nn import Affine, DropPath, Mlp, Module, Orient, OrientedBias, PatchEmbed, TokenMix
from flopping.nn.activation import pointwise_function
from flopping.nn.norm import add_branch, layer_scale


class OrientedMlp(Mlp):
    """An MLP on tokens of a grid that also has biases on odd channels: their sign depends on the side of the token.

    >>> layer = OrientedMlp(Layout.regular("flop", 4), grid_size=(1, 2))
    >>> [name for name, _ in layer.named_parameters() if "shift" in name]
    ['shift1.bias.odd', 'shift2.bias.odd']
    """

    def __init__(
        self,
        layout: Layout,
        grid_size: Grid,
        mlp_ratio: float = 4.0,
        function: Pointwise = nn.functional.gelu,
        *,
        out: Layout | None = None,
        drop: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout if out is None else out
        super().__init__(layout, layout * mlp_ratio, function, out=out, drop=drop, device=device, dtype=dtype)
        self.shift1 = OrientedBias(self.hidden, grid_size, device=device, dtype=dtype)
        self.shift2 = OrientedBias(out, grid_size, device=device, dtype=dtype)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        hidden = self.drop1(self.act(self.shift1(self.fc1(x))))
        out: Feature = self.drop2(self.shift2(self.fc2(hidden if not is_given(read) else read(hidden)), read))
        return out


class ResMlpBlock(Module):
    """x + ls1(mix of tokens(norm1(x))), then x + ls2(mlp of channels(norm2(x))).

    `invariant_only` as in a transformer block. Called with `read`, it gives what is read of the result, and the last
    linear map follows the reading.

    >>> layout = Layout.regular("flop", 8)
    >>> [tuple(part.shape) for part in ResMlpBlock(layout, grid_size=(2, 2))(layout.random(3, 4))]
    [(3, 4, 4), (3, 4, 4)]
    """

    in_layout: Layout
    out_layout: Layout
    leading = 2

    def __init__(
        self,
        layout: Layout,
        grid_size: Grid,
        *,
        mlp_ratio: float = 4.0,
        init_values: float | None = 1e-4,
        drop: float = 0.0,
        drop_path: float = 0.0,
        function: Pointwise = nn.functional.gelu,
        invariant_only: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout.invariant_part if invariant_only else layout
        super().__init__(layout, out)
        self.norm1 = Affine(layout, device=device, dtype=dtype)
        self.linear_tokens = TokenMix(layout, grid_size, device=device, dtype=dtype)
        self.ls1 = layer_scale(layout, init_values, device=device, dtype=dtype)
        self.norm2 = Affine(layout, device=device, dtype=dtype)
        self.mlp_channels = OrientedMlp(
            layout, grid_size, mlp_ratio, function, out=out, drop=drop, device=device, dtype=dtype
        )
        self.ls2 = layer_scale(out, init_values, device=device, dtype=dtype)
        self.drop_path1 = DropPath(layout, drop_path)
        self.drop_path2 = DropPath(out, drop_path)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        x = self.in_layout.parts(x, "ResMlpBlock", self.leading)
        x = add_branch(x, self.drop_path1(self.linear_tokens(self.norm1(x))), self.in_layout, self.ls1)
        branch = self.drop_path2(self.mlp_channels(self.norm2(x), read))
        return add_branch(x if not is_given(read) else read(x), branch, self.out_layout, self.ls2)


class ResMlp(TokenBackbone):
    """ResMLP for every group; `group="trivial"` is timm's, with the same weights. The image size is fixed.

    Arguments as for `VisionTransformer`. `rot90` and `octic` need square images. The head reads every token from its
    own side of the image (`Orient`), so `forward_features` has invariant channels only, in the order of the patches.

    >>> import torch
    >>> model = ResMlp(img_size=32, patch_size=8, embed_dim=16, depth=2, num_classes=10)
    >>> x = torch.randn(2, 3, 32, 32)
    >>> bool(torch.allclose(model(x), model(x.flip(-1)), atol=1e-5)), model.num_features
    (True, 8)
    """

    global_pools = ("avg", "")
    patch_embed_name = "stem"
    timm_renames = ((r"\.(ls[12])\.gamma$", r".\1"),)

    def __init__(
        self,
        img_size: int | Grid = 224,
        patch_size: int | Grid = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dim: int = 384,
        depth: int = 12,
        mlp_ratio: float = 4.0,
        init_values: float | None = 1e-4,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_layer: str | Pointwise = "gelu",
        group: str | Group = "flop",
        handoffs: Handoffs | None = None,
        extra_share: float = 0.0,
        weight_init: str = "scaled",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        schedule = Schedule(group, depth, handoffs, extra_share)
        super().__init__(schedule, embed_dim, num_classes, in_chans, drop_rate, global_pool, patch_size, device, dtype)
        first, last = schedule.first.layout(embed_dim), self.layouts[-1]
        self.stem = PatchEmbed(first, img_size, patch_size, in_chans, device=device, dtype=dtype)
        grid = self.grid_of(as_pair(img_size, "img_size"))
        self.blocks = nn.ModuleList()
        for i in range(depth):
            layout = schedule.layout_in(i, embed_dim)
            self.blocks.append(
                ResMlpBlock(
                    layout,
                    grid,
                    mlp_ratio=mlp_ratio,
                    init_values=init_values,
                    drop=proj_drop_rate,
                    drop_path=drop_path_rate,
                    function=pointwise_function(act_layer),
                    invariant_only=self.layouts[i] != layout,
                    device=device,
                    dtype=dtype,
                )
            )
        self.orient = Orient(last, grid, device=device, dtype=dtype)
        self.norm = Affine(last.invariant_part, device=device, dtype=dtype)
        self._make_head(last.multiplicities[0], device, dtype)
        self.weight_init = check_weight_init(weight_init)
        self._init_weights()

    def _init_weights(self) -> None:
        linear_(self.stem.proj, self.weight_init, std=self.stem.proj.in_layout.dim**-0.5)
        initialise(self, self.weight_init, skip=self.stem, head_dim=self.embed_dim)

    def grid_of(self, img_size: Grid) -> Grid:
        return self.stem.grid_of(img_size)

    def embed(self, image: Tensor) -> Feature:
        out: Feature = self.stem(image)
        return out

    @property
    def read(self) -> Read | None:
        dropping = self.training and cast(ResMlpBlock, self.blocks[-1]).mlp_channels.drop2.p > 0
        return self.orient.mean if self.global_pool == "avg" and not dropping else None

    def finish(self, x: Feature) -> Tensor:
        even: Tensor = self.norm(self.orient(x))[0]
        return even

    def finish_read(self, x: Feature) -> Tensor:
        even: Tensor = self.norm(self.orient.sum(x))[0]
        return even
