"""The state of an optimiser by the names of parameters, the same however a network is spread over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flopping.training.processes import fill_, whole_tensor


def optimiser_state(model: nn.Module, optimizer: torch.optim.Optimizer, keep: bool) -> dict[str, Any]:
    """Whole tensors in the CPU's memory, and what belongs to whole groups; all processes call it, some keep it."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    state: dict[str, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = {
                key: whole_tensor(v) if isinstance(v, Tensor) else v for key, v in optimizer.state[parameter].items()
            }
            if keep:
                state[names[parameter]] = {
                    key: v.to("cpu", copy=True) if isinstance(v, Tensor) else v for key, v in values.items()
                }
    groups = [
        {key: _copy(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    return {"state": state, "groups": groups}


def fill_optimiser_(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimiser the state that another of the same network had."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        group.update({key: _copy(value) for key, value in values.items()})
        for parameter in group["params"]:
            for key, value in saved["state"][names[parameter]].items():
                optimizer.state[parameter][key] = _like(value, parameter)


def _like(value: Any, parameter: Tensor) -> Any:
    """A saved value on the parameter's device, spread as it is; single numbers stay where they were."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or not value.dim():
        return _copy(value)
    target = torch.zeros_like(parameter, dtype=value.dtype)
    fill_(target, value)
    return target


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
