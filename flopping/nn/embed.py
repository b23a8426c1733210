"""From images to tokens: patch embedding, position embedding, class and register tokens."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.grid import Fold, Grid, as_pair, basis_of, check_square, check_tokens
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.symmetric import SymmetricModule


class PatchEmbed(Module):
    """Non-overlapping patches of an image `(B, C, H, W)` to tokens `(B, N, ...)`, row by row.

    Pixels of a patch are folded into irreps, then mapped by one `Linear`, so it costs as little as any other
    equivariant layer. With `flatten=False` the result is a map `(B, H/p, W/p, ...)`. Without `img_size` any
    multiple of the patch is taken.

    >>> from flopping import flop
    >>> embed = PatchEmbed(Layout.regular(flop, 8), img_size=(32, 48), patch_size=16)
    >>> [tuple(part.shape) for part in embed(torch.randn(2, 3, 32, 48))], embed.grid_size
    ([(2, 6, 4), (2, 6, 4)], (2, 3))
    """

    out_layout: Layout

    def __init__(
        self,
        layout: Layout,
        img_size: int | Grid | None = None,
        patch_size: int | Grid = 16,
        in_chans: int = 3,
        bias: bool = True,
        flatten: bool = True,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(None, layout)
        self.patch_size = as_pair(patch_size, "patch_size")
        check_square(layout.group, self.patch_size, "PatchEmbed")
        self.img_size = None if img_size is None else as_pair(img_size, "img_size")
        self.grid_size = None if self.img_size is None else self.grid_of(self.img_size)
        self.in_chans = in_chans
        self.flatten = flatten
        self.fold = Fold(layout.group, self.patch_size, dim=-2, device=device)
        self.proj = Linear(self.fold.layout * in_chans, layout, bias, device=device, dtype=dtype)

    def extra_repr(self) -> str:
        return f"image -> {self.out_layout}, patch_size={self.patch_size}, in_chans={self.in_chans}"

    def grid_of(self, img_size: Grid) -> Grid:
        """Height and width of the token grid of an image."""
        if any(size < 1 or size % patch for size, patch in zip(img_size, self.patch_size, strict=True)):
            raise ValueError(f"image size {img_size} is not a multiple of the patch size {self.patch_size}")
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]

    def _check(self, image: Tensor) -> None:
        if is_symbolic(image):
            return
        if image.dim() != 4 or image.shape[1] != self.in_chans:
            raise ValueError(f"PatchEmbed takes images (B, {self.in_chans}, H, W), got shape {tuple(image.shape)}")
        if not image.is_floating_point():
            raise TypeError(f"PatchEmbed takes images of floating-point numbers, got {image.dtype}")
        size = (image.shape[2], image.shape[3])
        # a group that swaps rows and columns turns one rectangle into another
        allowed = (self.img_size, self.img_size and self.img_size[::-1] if self.out_layout.group.swaps_axes else None)
        if self.img_size is not None and size not in allowed:
            raise ValueError(f"PatchEmbed was built for images of size {self.img_size}, got {size}")
        self.grid_of(size)

    def forward(self, image: Tensor) -> Feature:
        self._check(image)
        p, q = self.patch_size
        patches = image.unflatten(2, (-1, p)).unflatten(4, (-1, q)).permute(0, 2, 4, 1, 3, 5)  # B, H/p, W/q, C, p, q
        if self.flatten:
            patches = patches.flatten(1, 2)
        parts = [c[0] if len(c) == 1 else torch.stack(c, -3) for c in self.fold(patches)]  # B, N, [d,] C, places
        out: Feature = self.proj(tuple(part.flatten(-2) for part in parts))
        return out

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:
        """The ordinary convolution from images to packed channels that does the same, at full cost."""
        dense = self.proj.to_dense()
        conv = nn.Conv2d(
            self.in_chans, self.out_layout.dim, self.patch_size, self.patch_size, bias=dense.bias is not None
        ).to(dense.weight)
        blocks = dense.weight.split(self.proj.in_layout.part_dims, 1)
        weight = torch.zeros_like(conv.weight).flatten(2)
        for block, basis in zip(blocks, basis_of(self.out_layout.group, self.patch_size), strict=True):
            folded = block.unflatten(1, (len(basis), self.in_chans, -1))
            weight += torch.einsum("odcn,dnp->ocp", folded, basis.to(block))
        conv.weight.copy_(weight.view_as(conv.weight))
        if conv.bias is not None:
            conv.bias.copy_(dense.bias)
        return conv


class PosEmbed(SymmetricModule):
    """Learned positions added to tokens `(B, N, ...)` on a grid, themselves unchanged by the group.

    For flop: even channels symmetric about the vertical middle, odd ones antisymmetric, zero in the middle
    column of an odd width. Only free values are stored: `(free, copies)` per irrep. Another grid gets
    bicubically interpolated positions, which keeps the symmetry.

    >>> from flopping import flop
    >>> embed = PosEmbed(Layout.regular(flop, 4), (2, 3))
    >>> {name: tuple(p.shape) for name, p in embed.named_parameters()}
    {'weight.even': (4, 2), 'weight.odd': (2, 2)}
    """

    leading = 2

    def __init__(
        self, layout: Layout, grid_size: int | Grid, std: float = 0.02, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout, layout)
        self.std = std
        self._build(as_pair(grid_size, "grid_size"), device, dtype)

    def _build(self, grid: Grid, device: Device, dtype: Dtype) -> None:
        check_square(self.in_layout.group, grid, "PosEmbed")
        self.grid_size = grid
        self._set_grid(grid, device, dtype)
        self.weight = nn.ParameterDict()
        for (name, functions), m in zip(self.functions.items(), self.in_layout.multiplicities, strict=True):
            if m and functions.free:
                self.weight[name] = nn.Parameter(torch.empty(functions.free, m, device=device, dtype=dtype))
        if not self.weight:
            raise ValueError(f"PosEmbed: no channel of {self.in_layout} can have positions on the grid {grid}")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.weight.values():
            nn.init.trunc_normal_(weight, std=self.std)

    def extra_repr(self) -> str:
        return f"{self.in_layout}, grid_size={self.grid_size}"

    def table(self, grid_size: Grid | None = None) -> Feature:
        """Positions of all places, `(N, [d,] m)` per part; of another grid by bicubic interpolation."""
        like = next(iter(self.weight.values()))
        parts = []
        for irrep, shape in zip(self.in_layout.group.irreps, self.in_layout.part_shapes, strict=True):
            if irrep.name in self.weight:
                part = self._functions(irrep.name)
            else:
                part = like.new_zeros(prod(self.grid_size), *shape)
            parts.append(part if grid_size is None else self._interpolate(part, grid_size))
        return tuple(parts)

    def _interpolate(self, part: Tensor, grid: Grid) -> Tensor:
        check_square(self.in_layout.group, grid, "PosEmbed")
        if grid == self.grid_size:
            return part
        if not part.shape[-1]:
            return part.new_zeros(prod(grid), *part.shape[1:])
        exact = part.to(torch.promote_types(part.dtype, torch.float32)).unflatten(0, self.grid_size)
        rows, columns = (_resizing(old, new, exact) for old, new in zip(self.grid_size, grid, strict=True))
        resized = torch.einsum("Hh,Ww,hw...->HW...", rows, columns, exact)
        return resized.flatten(0, 1).to(part.dtype)

    @torch.no_grad()
    def resize_(self, grid_size: int | Grid) -> PosEmbed:
        """Store positions for another grid, interpolated from the present ones; parameters are replaced."""
        grid = as_pair(grid_size, "grid_size")
        table = self.table(grid)
        like = next(iter(self.weight.values()))
        self._build(grid, like.device, like.dtype)
        self.weight.requires_grad_(like.requires_grad)
        for (name, functions), part in zip(self.functions.items(), table, strict=True):
            if name in self.weight:
                self.weight[name].copy_(functions.fit(part))
        return self

    def forward(self, x: Feature) -> Feature:
        return self.at(x, self.grid_size)

    def at(self, x: Feature, grid_size: Grid) -> Feature:
        """Tokens that lie on any grid."""
        x = self.in_layout.parts(x, "PosEmbed", self.leading)
        check_tokens(x, grid_size, "PosEmbed")
        return functional.add(x, self.table(grid_size))


def _resizing(old: int, new: int, like: Tensor) -> Tensor:
    """The matrix `(new, old)` of bicubic interpolation along one axis.

    Torch's own interpolation of both axes has no reproducible gradient on GPUs; a product with matrices has.
    """
    identity = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
    return F.interpolate(identity, (new, old), mode="bicubic", antialias=True, align_corners=False)[0, 0]


class _LearnedTokens(Module):
    """Tokens in front of the others: values on the trivial irrep, zero on the rest."""

    in_layout: Layout
    leading = 2

    def __init__(self, layout: Layout, shape: tuple[int, ...], std: float, device: Device, dtype: Dtype) -> None:
        super().__init__(layout, layout)
        self.std = std
        self.number = prod(shape)
        self.token = nn.Parameter(torch.empty(*shape, layout.multiplicities[0], device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.token, std=self.std)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, type(self).__name__, self.leading)
        # in the token's precision, so that under autocast all parts are promoted alike
        even, *others = [torch.zeros_like(part.narrow(1, 0, 1), dtype=self.token.dtype) for part in x]
        if self.number > 1:
            shapes = self.in_layout.part_shapes[1:]
            others = [part.expand(-1, self.number, *shape) for part, shape in zip(others, shapes, strict=True)]
        return tuple(torch.cat(pair, 1) for pair in zip((even + self.token, *others), x, strict=True))


class ClassToken(_LearnedTokens):
    """A learned token in front of the others: values on the trivial irrep, zero on the rest.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> even, odd = ClassToken(layout)(layout.random(3, 5))
    >>> tuple(even.shape), odd[:, 0].abs().max().item()
    ((3, 6, 2), 0.0)
    """

    def __init__(self, layout: Layout, std: float = 0.02, *, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__(layout, (), std, device, dtype)


class RegisterTokens(_LearnedTokens):
    """Register tokens: learned tokens in front of the others that no head reads. They start and act as class tokens do.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> even, odd = RegisterTokens(layout, 4)(layout.random(3, 5))
    >>> tuple(even.shape), odd[:, :4].abs().max().item()
    ((3, 9, 2), 0.0)
    """

    def __init__(
        self, layout: Layout, number: int, std: float = 0.02, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        if number < 1:
            raise ValueError(f"there is at least 1 register token, got {number}")
        super().__init__(layout, (number,), std, device, dtype)
