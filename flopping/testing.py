"""Check equivariance of any module: yours, ours, or a whole network.

The law is `module(g x) == g module(x)` for every element g of the group. How g acts follows from the layouts
that a module declares: on an image it moves pixels, on a feature it moves places and mixes components, and
logits it leaves alone.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from flopping.features import Feature, Layout
from flopping.grid import Grid
from flopping.groups import Group, get_group
from flopping.nn import Module, PatchEmbed, Sequential

Value = Tensor | Feature

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Relative error allowed by default: rounding of a few dozen operations in each precision."""


@torch.no_grad()
def randomize_(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with random values of a useful size; zero biases and tiny scales hide errors.

    >>> bool((randomize_(nn.LayerNorm(4)).bias != 0).all())
    True
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / sqrt(fan_in)
        parameter.copy_(values)
    return module


def group_of(module: nn.Module) -> Group | None:
    """The group of the first layer that declares a layout, None where there is none."""
    for layer in module.modules():
        if isinstance(layer, Module) and (layout := layer.in_layout or layer.out_layout) is not None:
            return layout.group
    return None


def layouts_of(module: nn.Module) -> tuple[Layout | None, Layout | None]:
    """What a module declares to take and to give."""
    if isinstance(module, (Module, Sequential)):
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


def relative_error(got: Value, expected: Value) -> float:
    """Largest difference, relative to the largest expected value; infinite where shapes or numbers break.

    >>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    0.5
    """
    pairs = list(zip(_parts(got), _parts(expected), strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    scale = max((b.abs().max().item() for _, b in pairs if b.numel()), default=0.0)
    worst = max(((a - b).abs().max().item() for a, b in pairs if b.numel()), default=0.0)
    if worst != worst or scale != scale:
        return float("inf")
    return worst / scale if scale else worst


def _parts(value: Value) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def run(module: nn.Module, x: Value, seed: int = 0) -> Value:
    """The module's result without gradients; random drops are the same in every call."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        result: Value = module(x)
        return result


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
    for that subgroup.

    >>> from flopping import flop
    >>> from flopping.nn import Linear
    >>> layout = Layout.regular(flop, 8)
    >>> equivariance_errors(Linear(layout, layout), layout.random(5))
    {'flop': 0.0}
    """
    declared_in, declared_out = layouts_of(module)
    in_layout, out_layout = in_layout or declared_in, out_layout or declared_out
    if group is not None:
        large = get_group(group)
    elif in_layout is not None:
        large = in_layout.group
    else:
        found = out_layout.group if out_layout is not None else group_of(module)
        if found is None:
            raise ValueError(f"{type(module).__name__} declares no layout: say which group, e.g. group='flop'")
        large = found
    small = large if out_layout is None else out_layout.group
    if small.order == 1:
        raise ValueError(f"nothing to check: {type(module).__name__} claims the group {small}, which moves nothing")
    grid = grid or grid_of(module, x)
    out_grid = out_grid or grid
    embedding = range(large.order) if small == large else large.embedding(small)
    y = run(module, x)
    errors = {}
    for inner, outer in list(enumerate(embedding))[1:]:
        got = run(module, act(large, outer, x, in_layout, grid))
        expected = y if out_layout is None else act(small, inner, y, out_layout, out_grid)
        errors[small.elements[inner]] = relative_error(got, expected)
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
    tol = TOLERANCES[_parts(x)[0].dtype] if tol is None else tol
    errors = equivariance_errors(
        module, x, group=group, in_layout=in_layout, out_layout=out_layout, grid=grid, out_grid=out_grid
    )
    for element, error in errors.items():
        if not error <= tol:
            raise AssertionError(
                f"{type(module).__name__} is not equivariant under {element}: relative error {error:.1e} > {tol:.1e}"
            )
