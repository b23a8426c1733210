"""The vision transformer in the form of DeiT III: class token without position, layer scale, pre-norm blocks.

Parts of newer transformers are arguments: register tokens, rotary positions, query-key norm, gated MLPs, masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional import Pointwise
from flopping.functional.grid import Grid, as_pair
from flopping.groups import Group
from flopping.models.backbone import Context, TokenBackbone, joint_eps
from flopping.models.group_schedule import Handoffs, Schedule
from flopping.models.initialise import check_weight_init, initialise
from flopping.nn import (
    AbsToInvariant,
    ClassToken,
    Dropout,
    LayerNorm,
    PatchEmbed,
    PosEmbed,
    RegisterTokens,
    RotaryEmbed,
    TransformerBlock,
)
from flopping.nn.activation import pointwise_function

ROPE_TEMPERATURE = 100.0  # that of DINOv3


class VisionTransformer(TokenBackbone):
    """ViT for any group of the pixel grid; `group="trivial"` is timm's DeiT III, with the same weights.

    `handoffs` says what happens before a block: {6: "hybrid"} is H(X) of 12 blocks, {6: "invariant"} is I(X).
    `extra_share` is the share of channels that are even beyond the equal shares: 0 for as many odd as even, 1/3
    for half as many. `norm_eps` is one number, or one for each segment between hand-offs; `norm_by_irrep` is `by_irrep`
    of the norms. `readout` is what the head reads of the class token: "even", or "abs" for [even | |odd|].
    `weight_init="reference"` starts weights as the paper did, whatever the width of their block.

    `reg_tokens` are learned tokens after the class token. `use_rot_pos_emb` turns queries and keys by their places,
    and `use_abs_pos_emb=False` leaves the learned positions out. `qk_norm` normalises queries and keys. `gated_mlp`
    makes `act_layer` a gate: with "silu" it is SwiGLU.

    Features after the final norm (`forward_features`, pooled features, num_classes=0) are the invariant channels
    only, `num_features` of them. `forward_intermediates` gives even and odd ones.

    >>> import torch
    >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=10)
    >>> x = torch.randn(2, 3, 32, 32)
    >>> bool(torch.allclose(model(x), model(x.flip(-1)), atol=1e-5)), model.num_features
    (True, 8)
    """

    patch_embed_name = "patch_embed"
    timm_renames = ((r"^pos_embed\.weight$", "pos_embed"), (r"^(cls|reg)_token\.token$", r"\1_token"))

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
        qk_norm: bool = False,
        gated_mlp: bool = False,
        init_values: float | None = 1e-4,
        class_token: bool = True,
        reg_tokens: int = 0,
        use_abs_pos_emb: bool = True,
        use_rot_pos_emb: bool = False,
        rope_temperature: float = ROPE_TEMPERATURE,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float | Sequence[float] = 1e-6,
        norm_by_irrep: bool = False,
        act_layer: str | Pointwise = "gelu",
        group: str | Group = "flop",
        handoffs: Handoffs | None = None,
        extra_share: float = 0.0,
        weight_init: str = "scaled",
        readout: Literal["even", "abs"] = "even",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        schedule = Schedule(group, depth, handoffs, extra_share)
        self.has_class_token = class_token
        self.num_prefix_tokens = int(class_token) + reg_tokens
        super().__init__(schedule, embed_dim, num_classes, in_chans, drop_rate, global_pool, patch_size, device, dtype)
        if readout not in ("even", "abs"):
            raise ValueError(f"readout is 'even' or 'abs', got {readout!r}")
        if rope_temperature != ROPE_TEMPERATURE and not use_rot_pos_emb:
            raise ValueError(f"rope_temperature={rope_temperature} is for rotary positions: set use_rot_pos_emb=True")
        self.dynamic_img_size = dynamic_img_size
        self.use_rot_pos_emb = use_rot_pos_emb
        first, last = schedule.first.layout(embed_dim), self.layouts[-1]
        self.patch_embed = PatchEmbed(first, img_size, patch_size, in_chans, device=device, dtype=dtype)
        grid = self.patch_embed.grid_of(as_pair(img_size, "img_size"))
        if dynamic_img_size:
            self.patch_embed.img_size = None
        self.pos_embed = PosEmbed(first, grid, device=device, dtype=dtype) if use_abs_pos_emb else None
        self.reg_token = RegisterTokens(first, reg_tokens, device=device, dtype=dtype) if reg_tokens else nn.Identity()
        self.cls_token: nn.Module = ClassToken(first, device=device, dtype=dtype) if class_token else nn.Identity()
        self.pos_drop = Dropout(first, pos_drop_rate)
        function = pointwise_function(act_layer)
        eps = schedule.per_block(norm_eps, "norm_eps")
        ropes: dict[Layout, RotaryEmbed] = {}  # blocks of one layout share their tables
        self.blocks = nn.ModuleList()
        for i in range(depth):
            layout = schedule.layout_in(i, embed_dim)
            if use_rot_pos_emb and layout not in ropes:
                ropes[layout] = RotaryEmbed(
                    layout,
                    num_heads,
                    grid,
                    num_prefix_tokens=self.num_prefix_tokens,
                    temperature=rope_temperature,
                    device=device,
                    dtype=dtype,
                )
            self.blocks.append(
                TransformerBlock(
                    layout,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    qk_norm=qk_norm,
                    gated_mlp=gated_mlp,
                    rope=ropes.get(layout),
                    proj_drop=proj_drop_rate,
                    attn_drop=attn_drop_rate,
                    init_values=init_values,
                    drop_path=drop_path_rate,  # the same in every block, as DeiT III has it
                    function=function,
                    eps=joint_eps(eps[i], layout),
                    norm_by_irrep=norm_by_irrep,
                    invariant_only=self.layouts[i] != layout,
                    device=device,
                    dtype=dtype,
                )
            )
        even_only, last_eps = readout == "even", joint_eps(eps[-1], last)
        self.norm = LayerNorm(
            last, last_eps, invariant_only=even_only, by_irrep=norm_by_irrep, device=device, dtype=dtype
        )
        self.readout = AbsToInvariant(last) if readout == "abs" else nn.Identity()
        self._make_head(sum(last.multiplicities) if readout == "abs" else last.multiplicities[0], device, dtype)
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
        if self.pos_embed is not None and self.dynamic_img_size:
            x = self.pos_embed.at(x, self.grid_of((image.shape[2], image.shape[3])))
        elif self.pos_embed is not None:
            x = self.pos_embed(x)
        out: Feature = self.pos_drop(self.cls_token(self.reg_token(x)))
        return out

    def context(self, image: Tensor, attn_mask: Tensor | None = None) -> Context:
        masks = {"attn_mask": attn_mask} if is_given(attn_mask) else {}
        if not self.dynamic_img_size or not self.use_rot_pos_emb:
            return masks
        return masks | {"grid": self.grid_of((image.shape[2], image.shape[3]))}

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Tokens after the last block and the final norm; `attn_mask` is that of `Attention`, for all blocks."""
        return self.finish(self._run(self._layers, self.embed(x), context=self.context(x, attn_mask)))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if self.read is None:
            return self.forward_head(self.forward_features(x, attn_mask))
        last = self._run(self._layers, self.embed(x), self.read, self.context(x, attn_mask))
        return self.forward_head(self.finish_read(last))

    @property
    def read(self) -> Read | None:
        return first_token if self.global_pool == "token" else None

    @property
    def layers_to_compile(self) -> list[nn.Module]:
        """All blocks; without the last one if the head reads the class token: that block is as fast uncompiled."""
        blocks = super().layers_to_compile
        return blocks if self.read is None or len(blocks) == 1 else blocks[:-1]

    def finish(self, x: Feature) -> Tensor:
        even: Tensor = self.readout(self.norm(x))[0]
        return even

    def no_weight_decay(self) -> set[str]:
        return {
            name for name, _ in self.named_parameters() if name.startswith(("pos_embed.", "cls_token.", "reg_token."))
        }

    def set_input_size(self, img_size: int | Grid | None = None, patch_size: int | Grid | None = None) -> None:
        """Change the size of images; learned positions are interpolated. The patch size is fixed."""
        if patch_size is not None and as_pair(patch_size, "patch_size") != self.patch_embed.patch_size:
            raise ValueError(f"the patch size is {self.patch_embed.patch_size} and can't become {patch_size}")
        if img_size is not None:
            size = as_pair(img_size, "img_size")
            grid = self.grid_of(size)
            for layer in self.modules():
                if isinstance(layer, PosEmbed | RotaryEmbed) and grid != layer.grid_size:
                    layer.resize_(grid)
            self.patch_embed.grid_size = grid
            self.patch_embed.img_size = None if self.dynamic_img_size else size


def first_token(x: Feature) -> Feature:
    """The class token alone, as tokens `(B, 1, ...)`."""
    return tuple([part.narrow(1, 0, 1) for part in x])
