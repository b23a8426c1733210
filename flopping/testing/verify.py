"""Check a whole network layer by layer: which layer follows the group, and which is the first that doesn't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from flopping.errors import UsageError
from flopping.features import Layout
from flopping.functional.grid import Grid
from flopping.groups import Group, flop
from flopping.nn import Module
from flopping.testing import (
    TOLERANCES,
    Value,
    act,
    equivariance_errors,
    grid_of,
    group_of,
    layouts_of,
    relative_error,
    require_value,
    run,
)
from flopping.testing.cases import cases


@dataclass(frozen=True)
class Row:
    """What was found for one layer. No error means that the layer claims nothing: it gave up the group."""

    name: str
    layer: str
    error: float | None
    tolerance: float
    depth: int = 0

    @property
    def passed(self) -> bool | None:
        return None if self.error is None else self.error <= self.tolerance


@dataclass(frozen=True)
class _Output:
    """One call of one layer."""

    name: str
    module: nn.Module
    value: Value
    layout: Layout | None
    claimed: Group | None  # the group of the newest feature: what an invariant tensor doesn't change under


def verify(model: nn.Module, x: Value, *, group: Group | None = None, tol: float | None = None) -> list[Row]:
    """Run x and every moved x through the model and compare the outputs of all layers, in order of execution.

    Layers that declare a layout are compared under it; other layers that hand on a feature are taken to keep
    its layout; the model's own result is an invariant tensor unless it declares otherwise. Where a hand-off has
    given up the group nothing is claimed any more, except of the whole if a group is asked for. An error that
    appears in one layer is carried on by those after it, so the first row that fails names the culprit.

    >>> from flopping import flop
    >>> from flopping.nn import LayerNorm, Linear, Sequential
    >>> layout = Layout.regular(flop, 8)
    >>> class Wrong(nn.Module):
    ...     def forward(self, x):
    ...         return x[0], x[1].relu()
    >>> model = Sequential(Linear(layout, layout), Wrong(), LayerNorm(layout))
    >>> rows = verify(model, layout.random(5))
    >>> [(row.name, row.layer, row.passed) for row in rows]  # doctest: +NORMALIZE_WHITESPACE
    [('0', 'Linear', True), ('1', 'Wrong', False), ('2', 'LayerNorm', False), ('(whole)', 'Sequential', False)]
    >>> first_break(rows).name
    '1'
    """
    require_value(x)
    asked = group is not None  # then the whole must follow it, whatever its layers claim
    group = group or group_of(model) or flop
    first = x if isinstance(x, Tensor) else x[0]
    tol = TOLERANCES[first.dtype] if tol is None else tol
    grid = grid_of(model, x)
    in_layout, _ = layouts_of(model)
    before = _outputs(model, x)
    worst: list[float | None] = [None] * len(before)
    for element in range(1, group.order):
        inner = element if in_layout is None else in_layout.group.locate(group, element)
        if inner is None:
            raise UsageError(f"{group.elements[element]} of {group} has no action on {in_layout}")
        acting = group if in_layout is None else in_layout.group
        after = _outputs(model, act(acting, inner, x, in_layout, grid))
        if [output.name for output in after] != [output.name for output in before]:
            moved = group.elements[element]
            raise UsageError(f"{type(model).__name__} runs other layers for an input moved by {moved}")
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            claimed = group if asked and not old.name else old.claimed
            error = _error(group, element, replace(old, claimed=claimed), new, grid)
            if error is not None:
                worst[i] = max(error, worst[i] or 0.0)
    return [
        Row(o.name or "(whole)", type(o.module).__name__, error, tol, o.name.count(".") + 1 if o.name else 0)
        for o, error in zip(before, worst, strict=True)
    ]


def first_break(rows: Sequence[Row]) -> Row | None:
    """The first layer, in order of execution, that doesn't follow the group."""
    return next((row for row in rows if row.passed is False), None)


def verify_layers(
    *,
    layer: str | None = None,
    group: Group | None = None,
    dtype: torch.dtype = torch.float32,
    tol: float | None = None,
) -> list[Row]:
    """Every layer of the library, or one, for every group of the pixel grid, or one, with random parameters."""
    tol = TOLERANCES[dtype] if tol is None else tol
    rows = []
    for case in cases(group, layer):
        module, x = case.make(dtype)
        errors = equivariance_errors(module, x, grid=case.grid)
        rows.append(Row(str(case), case.layer, max(errors.values()), tol))
    return rows


def _outputs(model: nn.Module, x: Value) -> list[_Output]:
    """What each layer gave, in the order in which the layers finished."""
    outputs: list[_Output] = []
    latest: list[Layout] = []  # the layout of the newest feature

    def record(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, _args: object, value: object) -> None:
            layout = layouts_of(module)[1]
            if layout is not None and layout.multiplicities[0] and isinstance(value, tuple):
                called_for_less = not _fits(value, layout) and _fits(value, layout.invariant_part)
                layout = layout.invariant_part if called_for_less else layout
            if not isinstance(value, (Tensor, tuple)) or isinstance(module, nn.Identity):
                return
            claimed = latest[-1].group if latest else None
            if isinstance(module, Module) and (layout is not None or isinstance(value, Tensor)):
                outputs.append(_Output(name, module, value, layout, claimed))
            elif isinstance(value, tuple) and latest and _fits(value, latest[-1]):
                outputs.append(_Output(name, module, value, latest[-1], claimed))
            elif not name and isinstance(value, Tensor):
                outputs.append(_Output(name, module, value, None, claimed))
            if layout is not None:
                latest.append(layout)

        return hook

    handles = [m.register_forward_hook(record(name)) for name, m in model.named_modules() if name]
    try:
        record("")(model, (), run(model, x, getattr(model, "forward_all", model.forward)))
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def _fits(value: tuple[Tensor, ...], layout: Layout) -> bool:
    try:
        layout.parts(value)
    except (TypeError, ValueError):
        return False
    return True


def _error(group: Group, element: int, before: _Output, after: _Output, grid: Grid | None) -> float | None:
    """How far the output of the moved image is from the moved output; None where nothing is claimed."""
    claimed = before.layout.group if before.layout is not None else before.claimed or group
    inner = claimed.locate(group, element)
    if inner is None:
        return None
    if before.layout is None:
        return relative_error(after.value, before.value)
    return relative_error(after.value, act(claimed, inner, before.value, before.layout, grid))
