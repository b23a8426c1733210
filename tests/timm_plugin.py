"""A pytest plugin for timm's own test-suite: registers our models first, and keeps only their tests.

`FLOPPING_TIMM_MODELS` (names with wildcards) chooses fewer of them.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest

from flopping.models import ZOO

# Scripting is deprecated by torch and would forbid tuples of any length inside the networks.
LEFT_OUT = ("test_model_forward_torchscript", "test_model_forward_fx_torchscript")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pattern = os.environ.get("FLOPPING_TIMM_MODELS", "*")
    ours = {name for name in ZOO if fnmatch(name, pattern)}
    kept, others = [], []
    for item in items:
        name = (
            item.callspec.params.get("model_name")
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        wanted = name in ours and getattr(item, "originalname", "") not in LEFT_OUT
        (kept if wanted else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept
