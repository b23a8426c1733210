"""The vision transformer in the form of DeiT III: class token without position, layer scale, pre-norm blocks."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Read
from flopping.functional import Pointwise
from flopping.functional.grid import Grid, as_pair
from flopping.groups import Group
from flopping.models.backbone import TokenBackbone, joint_eps
from flopping.models.initialise import check_weight_init, initialise
from flopping.models.schedule import Handoffs, Schedule
from flopping.nn import AbsToInvariant, ClassToken, Dropout, LayerNorm, PatchEmbed, PosEmbed, TransformerBlock
from flopping.nn.activation import pointwise_function


class VisionTransformer(TokenBackbone):
    """ViT for any group of the pixel grid; `group="trivial"` is timm's DeiT III, with the same weights.

    `handoffs` says what happens before a block: {6: "hybrid"} is H(X) of 12 blocks, {6: "invariant"} is I(X).
    `invariant_share` is the share of channels that are even beyond the equal shares: 0 for as many odd as even, 1/3
    for half as many. `readout` is what the class token hands to the head: "even", or "abs" for [even | |odd|].
    `weight_init="reference"` starts weights as the paper did, whatever the width of their block.

    Features after the final norm (`forward_features`, pooled features, num_classes=0) are the invariant channels
    only, `num_features` of them. `forward_intermediates` gives even and odd ones.

    >>> import torch
    >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=10)
    >>> x = torch.randn(2, 3, 32, 32)
    >>> bool(torch.allclose(model(x), model(x.flip(-1)), atol=1e-5)), model.num_features
    (True, 8)
    """

    patch_embed_name = "patch_embed"
    timm_renames = ((r"^pos_embed\.weight$", "pos_embed"), (r"^cls_token\.token$", "cls_token"))

    def __init__(
        self,
        img_size: int | Grid = 224,
        patch_size: int | Grid = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        init_values: float | None = 1e-4,
        class_token: bool = True,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        act_layer: str | Pointwise = "gelu",
        group: str | Group = "flop",
        handoffs: Handoffs | None = None,
        invariant_share: float = 0.0,
        weight_init: str = "scaled",
        readout: Literal["even", "abs"] = "even",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        schedule = Schedule(group, depth, handoffs, invariant_share)
        self.num_prefix_tokens = int(class_token)
        super().__init__(schedule, embed_dim, num_classes, in_chans, drop_rate, global_pool, patch_size, device, dtype)
        if readout not in ("even", "abs"):
            raise ValueError(f"readout is 'even' or 'abs', got {readout!r}")
        self.dynamic_img_size = dynamic_img_size
        first, last = schedule.first.layout(embed_dim), self.layouts[-1]
        self.patch_embed = PatchEmbed(first, img_size, patch_size, in_chans, device=device, dtype=dtype)
        grid = self.patch_embed.grid_of(as_pair(img_size, "img_size"))
        if dynamic_img_size:
            self.patch_embed.img_size = None
        self.pos_embed = PosEmbed(first, grid, device=device, dtype=dtype)
        self.cls_token: nn.Module = ClassToken(first, device=device, dtype=dtype) if class_token else nn.Identity()
        self.pos_drop = Dropout(first, pos_drop_rate)
        function = pointwise_function(act_layer)
        self.blocks = nn.ModuleList()
        for i in range(depth):
            layout = schedule.layout_in(i, embed_dim)
            self.blocks.append(
                TransformerBlock(
                    layout,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    proj_drop=proj_drop_rate,
                    attn_drop=attn_drop_rate,
                    init_values=init_values,
                    drop_path=drop_path_rate,  # the same in every block, as DeiT III has it
                    function=function,
                    eps=joint_eps(norm_eps, layout),
                    invariant_only=self.layouts[i] != layout,
                    device=device,
                    dtype=dtype,
                )
            )
        eps, even_only = joint_eps(norm_eps, last), readout == "even"
        self.norm = LayerNorm(last, eps, invariant_only=even_only, device=device, dtype=dtype)
        self.readout = AbsToInvariant(last) if readout == "abs" else nn.Identity()
        self._make_head(last.dim if readout == "abs" else last.multiplicities[0], device, dtype)
        self.weight_init = check_weight_init(weight_init)
        self._init_weights()

    def _init_weights(self) -> None:
        # A class token starts without an odd part, so the norm doubles the variance of its even one (for flop),
        # and the head's weights need not be wider to make up for reading half of the channels.
        width = self.num_features if self.global_pool == "token" else self.embed_dim
        initialise(self, self.weight_init, skip=self.patch_embed, head_dim=width)

    def grid_of(self, img_size: Grid) -> Grid:
        return self.patch_embed.grid_of(img_size)

    def embed(self, image: Tensor) -> Feature:
        x = self.patch_embed(image)
        if self.dynamic_img_size:
            x = self.pos_embed.at(x, self.grid_of((image.shape[2], image.shape[3])))
        else:
            x = self.pos_embed(x)
        out: Feature = self.pos_drop(self.cls_token(x))
        return out

    @property
    def read(self) -> Read | None:
        return first_token if self.global_pool == "token" else None

    def finish(self, x: Feature) -> Tensor:
        even: Tensor = self.readout(self.norm(x))[0]
        return even

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.startswith(("pos_embed.", "cls_token."))}

    def set_input_size(self, img_size: int | Grid | None = None, patch_size: int | Grid | None = None) -> None:
        """Change the size of images; positions are interpolated. The patch size is fixed."""
        if patch_size is not None and as_pair(patch_size, "patch_size") != self.patch_embed.patch_size:
            raise ValueError(f"the patch size is {self.patch_embed.patch_size} and can't become {patch_size}")
        if img_size is not None:
            size = as_pair(img_size, "img_size")
            grid = self.grid_of(size)
            if grid != self.pos_embed.grid_size:
                self.pos_embed.resize_(grid)
            self.patch_embed.grid_size = grid
            self.patch_embed.img_size = None if self.dynamic_img_size else size


def first_token(x: Feature) -> Feature:
    """The class token alone, as tokens `(B, 1, ...)`."""
    return tuple([part.narrow(1, 0, 1) for part in x])
