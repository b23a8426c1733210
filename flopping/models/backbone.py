"""What the networks share: the protocol of timm's models around a stem, blocks and a head.

Inside, features are tuples. What leaves is one plain tensor, channels ordered [even | odd].
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from timm.layers import global_pool_nlc
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional.grid import Grid
from flopping.models.blocks import find_blocks
from flopping.models.group_schedule import Schedule
from flopping.nn import Module, TransformerBlock
from flopping.nn.drop import probability

Intermediate = Tensor | tuple[Tensor, Tensor]
Context = dict[str, Any]
"""Arguments of `TransformerBlock` beside the feature and what is read of it."""
NO_CONTEXT: Context = {}


class Backbone(Module):
    """A network from images to logits, or to features, that behaves like every model of timm.

    A subclass says how an image is embedded (`embed`), which layers follow, in stages after which features may be
    taken (`stage_layers`), and how the last feature becomes the tensor that the head reads (`finish`).
    """

    num_prefix_tokens: int = 0
    has_class_token: bool = False
    global_pools: tuple[str, ...]
    timm_renames: tuple[tuple[str, str], ...]
    """Patterns that turn our parameter names into timm's, beyond leaving out the trivial irrep's name."""
    norm: nn.Module

    def __init__(self, num_classes: int, in_chans: int, drop_rate: float, global_pool: str) -> None:
        super().__init__()
        self.num_classes = _check_classes(num_classes)
        self.in_chans = in_chans
        self.drop_rate = probability(drop_rate)
        self.global_pool = self._check_pool(global_pool)
        self.grad_checkpointing = False
        self.is_pruned = False  # whether layers in front of the head are gone
        self.num_features: int
        self.head_hidden_size: int
        self.feature_info: list[dict[str, Any]] = []
        self.layouts: list[Layout] = []  # of the feature after each stage

    def extra_repr(self) -> str:
        return ""

    def _check_pool(self, global_pool: str) -> str:
        if global_pool not in self.global_pools:
            raise ValueError(f"global_pool is one of {self.global_pools}, got {global_pool!r}")
        if global_pool == "token" and not self.has_class_token:
            raise ValueError("global_pool='token' needs a class token, and this network has none")
        return global_pool

    @abstractmethod
    def embed(self, image: Tensor) -> Feature:
        """An image `(B, C, H, W)` to the first feature."""

    @property
    @abstractmethod
    def stage_layers(self) -> list[list[nn.Module]]:
        """The layers after the embedding, grouped by where features may be taken."""

    @abstractmethod
    def finish(self, x: Feature) -> Tensor:
        """The last feature to what `forward_features` gives."""

    @abstractmethod
    def grid_of(self, img_size: Grid) -> Grid:
        """Height and width of the last feature map."""

    @abstractmethod
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """From the features of `forward_features` to logits, or to what the classifier reads."""

    @abstractmethod
    def get_classifier(self) -> nn.Module:
        """The last linear layer."""

    @abstractmethod
    def _new_classifier(self, device: Device, dtype: Dtype) -> None:
        """Replace the classifier by one for `num_classes` and `global_pool`."""

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new classifier, for another number of classes; 0 for none."""
        if self.is_pruned and num_classes:
            raise ValueError(f"the layers before the head were pruned, so there can't be {num_classes} classes")
        if global_pool is not None:
            self.global_pool = self._check_pool(global_pool)
        self.num_classes = _check_classes(num_classes)
        like = next(self.parameters())
        self._new_classifier(like.device, like.dtype)

    @abstractmethod
    def _init_weights(self) -> None:
        """The last step of the constructor: weights whose initialisation differs from that of their layers."""

    def init_weights(self) -> None:
        """Give all parameters and constants the values that the constructor gives them.

        For a network that was built on the meta device and got its memory by `to_empty`. It draws the same random
        numbers as the constructor, in the same order: after the same seed both networks are equal to the last bit.
        """
        self._call_layers("reset_parameters")
        self._init_weights()
        self.init_non_persistent_buffers()

    def init_non_persistent_buffers(self) -> None:
        """Give all constants their values: what a state dict, loaded after `to_empty`, does not hold."""
        self._call_layers("init_non_persistent_buffers")

    def _call_layers(self, method: str) -> None:
        for layer in self.modules():
            call = getattr(layer, method, None)
            if layer is not self and call is not None:
                call()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Don't store activations inside blocks; recompute them in the backward pass."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters with more than one axis that are no weights of a linear map."""
        return set()

    def _run(
        self, layers: Sequence[nn.Module], x: Feature, read: Read | None = None, context: Context = NO_CONTEXT
    ) -> Feature:
        return run(layers, x, self._checkpoints_layers, read, context)

    @property
    def _checkpoints_layers(self) -> bool:
        """Whether each layer is checkpointed here; not where layers checkpoint their own blocks."""
        return self.grad_checkpointing

    def context(self, image: Tensor, attn_mask: Tensor | None = None) -> Context:
        """What every transformer block gets beside its feature."""
        if is_given(attn_mask):
            raise ValueError(f"{type(self).__name__} has no attention, got attn_mask of shape {tuple(attn_mask.shape)}")
        return NO_CONTEXT

    @property
    def _layers(self) -> list[nn.Module]:
        return [layer for stage in self.stage_layers for layer in stage]

    @property
    def layers_to_compile(self) -> list[nn.Module]:
        """What `compile_blocks` compiles."""
        return find_blocks(self)

    @property
    def read(self) -> Read | None:
        """What the head reads of the last feature, if not all of it: the last block computes nothing else."""
        return None

    def finish_read(self, x: Feature) -> Tensor:
        """As `finish`, for what was read of the last feature."""
        return self.finish(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Features after the last block and the final norm, before pooling."""
        return self.finish(self._run(self._layers, self.embed(x), context=self.context(x)))

    def forward_all(self, x: Tensor) -> Tensor:
        """The same logits as `forward` gives, computing the whole last block."""
        return self.forward_head(self.forward_features(x))

    def forward(self, x: Tensor) -> Tensor:
        read = self.read
        if read is None:
            return self.forward_all(x)
        return self.forward_head(self.finish_read(self._run(self._layers, self.embed(x), read, self.context(x))))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        return_prefix_tokens: bool = False,
        attn_mask: Tensor | None = None,
    ) -> list[Intermediate] | tuple[Tensor, list[Intermediate]]:
        """Feature maps from within the network, `(B, C, H, W)` or `(B, N, C)` with channels ordered [even | odd].

        The law: the map of a flopped image is the flopped map with its odd channels negated. `indices` are those of
        `feature_info`, or how many of the last ones. `norm` applies the final norm, if there is one before the
        head; it keeps the invariant channels that `forward_features` has. `attn_mask` is for transformers.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is 'NCHW' or 'NLC', got {output_fmt!r}")
        if return_prefix_tokens and not self.num_prefix_tokens:
            raise ValueError(f"{type(self).__name__} has no prefix tokens to return")
        stages = self.stage_layers
        take, last = feature_take_indices(len(stages), indices)
        if stop_early and not intermediates_only and last + 1 < len(stages):
            raise ValueError(f"stop_early=True leaves out layers after index {last}: set intermediates_only=True")
        feature, context = self.embed(x), self.context(x, attn_mask)
        found: list[Intermediate] = []
        for i, layers in enumerate(stages[: last + 1] if stop_early else stages):
            feature = self._run(layers, feature, context=context)
            if i in take:
                dense = self._pack(feature, i, norm)
                found.append(self._format_output(dense, x, output_fmt, return_prefix_tokens))
        if intermediates_only:
            return found
        return self.finish(feature), found

    def _pack(self, x: Feature, stage: int, norm: bool) -> Tensor:
        """The feature after a stage as one tensor, channels last.

        `norm` applies the final norm in token networks; others have none before the head and ignore it.
        """
        return self.layouts[stage].merge(x)

    def _format_output(self, x: Tensor, image: Tensor, output_fmt: str, prefix: bool) -> Intermediate:
        """Packed tokens `(B, N, C)` or maps `(B, H, W, C)` in the format that was asked for."""
        places = x.flatten(1, -2)[:, self.num_prefix_tokens :]
        if output_fmt == "NCHW":
            maps = x if x.dim() == 4 else places.unflatten(1, self.grid_of((image.shape[2], image.shape[3])))
            places = maps.permute(0, 3, 1, 2)
        return (places, x[:, : self.num_prefix_tokens]) if prefix else places

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop layers that features at the given indices don't need; return these indices as non-negative numbers."""
        count = len(self.stage_layers)
        take, last = feature_take_indices(count, indices)
        if last + 1 < count and not prune_head:
            raise ValueError(f"after index {last} there is nothing that the head can read: set prune_head=True")
        self._prune(last + 1)
        self.layouts, self.feature_info = self.layouts[: last + 1], self.feature_info[: last + 1]
        self.is_pruned = self.is_pruned or last + 1 < count
        if prune_norm:
            self._drop_norm()
        if prune_head:
            self._drop_head()
        return list(take)

    def _drop_norm(self) -> None:
        """Drop the final norm, if there is one before the head."""

    def _drop_head(self) -> None:
        self.reset_classifier(0, "")

    @abstractmethod
    def _prune(self, stages: int) -> None:
        """Drop all layers after a number of stages."""


def whole_forward(model: nn.Module) -> Callable[..., Tensor]:
    """The forward pass that computes all of the last block: `forward_all` where the model has it, else the model."""
    forward: Callable[..., Tensor] = getattr(model, "forward_all", model)
    return forward


def run(
    layers: Sequence[nn.Module],
    x: Feature,
    checkpointing: bool,
    read: Read | None = None,
    context: Context = NO_CONTEXT,
) -> Feature:
    """Run layers one after another; gradient checkpointing recomputes each layer in the backward pass.

    With `read`, the last layer computes only what is read of its result. Transformer blocks get the context.
    """
    for number, layer in enumerate(layers, 1):
        args = (x, read) if is_given(read) and number == len(layers) else (x,)
        more = context if isinstance(layer, TransformerBlock) else NO_CONTEXT
        x = checkpoint(layer, *args, use_reentrant=False, **more) if checkpointing else layer(*args, **more)
    return x


def _check_classes(num_classes: int) -> int:
    if num_classes < 0:
        raise ValueError(f"num_classes is at least 0, got {num_classes}")
    return num_classes


class TokenBackbone(Backbone):
    """A network whose features are tokens `(B, N, ...)` from first to last: `blocks`, a final norm, a linear head."""

    global_pools: tuple[str, ...] = ("token", "avg", "avgmax", "max", "")
    blocks: nn.ModuleList
    patch_embed_name: str
    """The attribute that holds the patch embedding: it differs between timm's models."""

    def __init__(
        self,
        schedule: Schedule,
        embed_dim: int,
        num_classes: int,
        in_chans: int,
        drop_rate: float,
        global_pool: str,
        patch_size: int | Grid,
        device: Device,
        dtype: Dtype,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, global_pool)
        self.embed_dim = embed_dim
        self.layouts = [schedule.layout_out(i, embed_dim) for i in range(len(schedule.segments))]
        self.last_layout = self.layouts[-1]
        self.handoffs = nn.ModuleDict()
        for block in schedule.handoffs:
            self.handoffs[str(block)] = schedule.handoff(block, embed_dim, device=device, dtype=dtype)
        reduction = patch_size if isinstance(patch_size, int) else max(patch_size)
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": layout.dim, "reduction": reduction}
            for i, layout in enumerate(self.layouts)
        ]

    def _make_head(self, width: int, device: Device, dtype: Dtype) -> None:
        self.num_features = self.head_hidden_size = width
        self.head_drop = nn.Dropout(self.drop_rate)
        self._new_classifier(device, dtype)

    def _new_classifier(self, device: Device, dtype: Dtype) -> None:
        self.head = linear_or_identity(self.num_features, self.num_classes, device, dtype).train(self.training)

    @property
    def stage_layers(self) -> list[list[nn.Module]]:
        return [
            [self.handoffs[str(i)], block] if str(i) in self.handoffs else [block]
            for i, block in enumerate(self.blocks)
        ]

    def _pack(self, x: Feature, stage: int, norm: bool) -> Tensor:
        if norm and isinstance(self.norm, nn.Identity):
            raise ValueError("norm=True: the final norm was pruned away")
        if norm and self.layouts[stage] != self.last_layout:
            raise ValueError(
                f"norm=True: after block {stage} there is {self.layouts[stage]}, but the final norm takes"
                f" {self.last_layout}; choose blocks after the last hand-off"
            )
        return self.finish(x) if norm else super()._pack(x, stage, norm)

    def _drop_norm(self) -> None:
        self.norm = nn.Identity()

    def _prune(self, stages: int) -> None:
        self.blocks = self.blocks[:stages]
        for block in [key for key in self.handoffs if int(key) >= stages]:
            del self.handoffs[block]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates; blocks are the coarsest groups here."""
        blocks = [(r"^blocks\.(\d+)", None), (r"^handoffs\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": rf"^cls_token|^reg_token|^pos_embed|^{self.patch_embed_name}", "blocks": blocks}

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = global_pool_nlc(x, self.global_pool, num_prefix_tokens=self.num_prefix_tokens)
        pooled = self.head_drop(pooled)
        logits: Tensor = pooled if pre_logits else self.head(pooled)
        return logits


def linear_or_identity(width: int, num_classes: int, device: Device, dtype: Dtype) -> nn.Module:
    """A classifier; nothing for no classes."""
    return nn.Linear(width, num_classes, device=device, dtype=dtype) if num_classes else nn.Identity()


def joint_eps(eps: float, layout: Layout) -> float:
    """The paper's networks add eps to the sum of the parts' variances; our norm adds it to their mean.

    >>> joint_eps(1e-6, Layout.regular("flop", 384))
    5e-07
    """
    return eps / sum(m > 0 for m in layout.multiplicities)
