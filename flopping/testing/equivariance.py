"""Check equivariance of any module: yours, ours, or a whole network.

The law is `module(g x) == g module(x)` for every element g of the group. How g acts follows from the layouts
that a module declares: on an image it moves pixels, on a feature it moves places and mixes components, and
logits it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from flopping.features import Feature, Layout
from flopping.functional.grid import Grid
from flopping.groups import Group, get_group
from flopping.nn import Module, PatchEmbed

Value = Tensor | Feature

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Relative error allowed by default: rounding of a few dozen operations in each precision."""


@torch.no_grad()
def randomize_(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with random values of a useful size; zero biases and tiny scales hide errors.

    So do running statistics at their start: those of batch norms become random, too.

    >>> bool((randomize_(nn.LayerNorm(4)).bias != 0).all())
    True
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / sqrt(fan_in)
        parameter.copy_(values)
    for name, statistic in module.named_buffers():
        if ".running_" in f".{name}":
            values = torch.randn(statistic.shape, generator=generator, dtype=torch.float64)
            statistic.copy_(values if "running_mean" in name else 0.5 + values.square())
    return module


def group_of(module: nn.Module) -> Group | None:
    """The group of the first layer that declares a layout, None where there is none."""
    for layer in module.modules():
        if isinstance(layer, Module) and (layout := layer.in_layout or layer.out_layout) is not None:
            return layout.group
    return None


def layouts_of(module: nn.Module) -> tuple[Layout | None, Layout | None]:
    """What a module declares to take and to give."""
    if isinstance(module, Module):
        return module.in_layout, module.out_layout
    return None, None


def grid_of(module: nn.Module, x: Value) -> Grid | None:
    """How the tokens of a module lie: from the size of the image, or as a layer of it was built."""
    for layer in module.modules():
        if isinstance(x, Tensor) and isinstance(layer, PatchEmbed):
            return layer.grid_of((x.shape[-2], x.shape[-1]))
        if not isinstance(x, Tensor) and isinstance(grid := getattr(layer, "grid_size", None), tuple):
            return grid[0], grid[1]
    return None


def act(group: Group, element: int, value: Value, layout: Layout | None, grid: Grid | None) -> Value:
    """A value moved by an element: an image without a layout, a feature with one, packed or in parts."""
    if layout is None:
        if not isinstance(value, Tensor):
            raise TypeError(f"a tuple of tensors needs a layout that says how {group} acts on it")
        return group.act(element, value)
    if isinstance(value, Tensor):
        return layout.merge(layout.act(element, layout.split(value), grid))
    return layout.act(element, value, grid)


def require_value(x: object) -> None:
    """Refuse what is neither a tensor nor a tuple of tensors of a precision that has a tolerance.

    >>> require_value(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    ...
    TypeError: a check of equivariance takes an image (B, C, H, W) or a feature, which is a tuple of tensors,
    in float64, float32, bfloat16 or float16; got a tensor of shape (1, 3, 4, 4) in uint8
    """
    parts = x if isinstance(x, (tuple, list)) else (x,)
    if parts and all(isinstance(part, Tensor) and part.dtype in TOLERANCES for part in parts):
        return
    *names, last = (_short(dtype) for dtype in TOLERANCES)
    raise TypeError(
        "a check of equivariance takes an image (B, C, H, W) or a feature, which is a tuple of tensors,"
        f" in {', '.join(names)} or {last}; got {_describe(x)}"
    )


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} in {_short(value.dtype)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(map(_describe, value)) or 'nothing'}"
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    keys = f" with the keys {', '.join(map(repr, value))}" if isinstance(value, dict) else ""
    return f"{name}{keys}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def relative_error(got: Value, expected: Value) -> float:
    """Largest difference, relative to the largest expected value; infinite where shapes or numbers break.

    >>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    0.5
    """
    pairs = list(zip(_parts(got), _parts(expected), strict=False))
    if len(_parts(got)) != len(_parts(expected)) or any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    filled = [(a.double(), b.double()) for a, b in pairs if b.numel()]
    if not filled:
        return 0.0
    worst = torch.stack([(a - b).abs().max() for a, b in filled]).max()
    scale = torch.stack([b.abs().max() for _, b in filled]).max()
    error = worst / scale if scale else worst
    return error.item() if error.isfinite() else float("inf")


def _parts(value: Value) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def run(module: nn.Module, x: Value, forward: Callable[[Value], Value] | None = None) -> Value:
    """The module's result, or that of one of its methods, in eval mode, without gradients; it is left as it was.

    In training, dropped tokens don't move with the image: there the law holds for distributions only.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        with torch.no_grad():
            module.eval()
            return (forward or module)(x)
    finally:
        for layer, training in modes:
            layer.training = training


def equivariance_errors(
    module: nn.Module,
    x: Value,
    *,
    group: str | Group | None = None,
    in_layout: Layout | None = None,
    out_layout: Layout | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
) -> dict[str, float]:
    """Relative error of `module(g x) == g module(x)` for each element g but the identity.

    `x` is an image `(B, C, H, W)`, a feature, or a packed feature if a layout is given. Layouts, group and
    grid are taken from the module where it declares them. A module that steps down to a subgroup is checked
    for that subgroup, one of the trivial group for nothing. It runs in eval mode. Tokens `(B, N)` are
    moved only if `grid` is given or known from a layer: without it, nothing is said about positions.

    >>> from flopping import flop
    >>> from flopping.nn import Linear
    >>> layout = Layout.regular(flop, 8)
    >>> equivariance_errors(Linear(layout, layout), layout.random(5))
    {'flop': 0.0}
    """
    require_value(x)
    declared_in, declared_out = layouts_of(module)
    in_layout, out_layout = in_layout or declared_in, out_layout or declared_out
    layout = in_layout or out_layout
    if group is None:
        group = group_of(module) if layout is None else layout.group
    if group is None:
        raise ValueError(f"{type(module).__name__} declares no layout: say which group, e.g. group='flop'")
    checked = get_group(group)
    source = checked if in_layout is None else in_layout.group
    target = checked if out_layout is None else out_layout.group
    grid = grid or grid_of(module, x)
    out_grid = out_grid or grid
    errors = {}
    y = run(module, x)
    if out_layout is None and not isinstance(y, Tensor) and (in_layout is not None or isinstance(x, Tensor)):
        raise TypeError(f"{type(module).__name__} gives a tuple and declares no layout: say out_layout=...")
    for element, name in list(enumerate(checked.elements))[1:]:
        before, after = source.locate(checked, element), target.locate(checked, element)
        if before is None:
            raise ValueError(f"{name} of {checked} has no action on {in_layout}")
        if after is None:  # the module steps down to a group without it
            continue
        got = run(module, act(source, before, x, in_layout, grid))
        expected = y if out_layout is None else act(target, after, y, out_layout, out_grid)
        errors[name] = relative_error(got, expected)
    if not errors and checked.order > 1:
        raise ValueError(f"nothing to check: {type(module).__name__} claims the group {target}, which moves nothing")
    return errors


def assert_equivariant(
    module: nn.Module,
    x: Value,
    *,
    tol: float | None = None,
    group: str | Group | None = None,
    in_layout: Layout | None = None,
    out_layout: Layout | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
) -> None:
    """Raise an AssertionError with element and error unless `module(g x) == g module(x)` for every g.

    Arguments as for `equivariance_errors`; the default tolerance is that of x's dtype.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> ordinary = randomize_(nn.Linear(8, 8))
    >>> assert_equivariant(ordinary, torch.ones(5, 8), in_layout=layout, out_layout=layout)
    Traceback (most recent call last):
    ...
    AssertionError: Linear is not equivariant under flop: relative error 2.3e+00 > 1.0e-05
    """
    errors = equivariance_errors(
        module, x, group=group, in_layout=in_layout, out_layout=out_layout, grid=grid, out_grid=out_grid
    )
    tol = TOLERANCES[_parts(x)[0].dtype] if tol is None else tol
    for element, error in errors.items():
        if not error <= tol:
            raise AssertionError(
                f"{type(module).__name__} is not equivariant under {element}: relative error {error:.1e} > {tol:.1e}"
            )
