"""A pytest plugin for timm's own test-suite: registers our models first, and keeps only their tests.

`FLOPPING_TIMM_MODELS` (a name with wildcards) chooses fewer of them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from fnmatch import fnmatch

import pytest

from flopping.models import ZOO

# torch has deprecated scripting, which doesn't know tuples of any length.
LEFT_OUT = {"test_model_forward_torchscript", "test_model_forward_fx_torchscript"}
# timm chooses what these run on by the name of a model's module; they must not pass for want of models.
FOR_ALL = {
    "test_model_forward",
    "test_model_backward",
    "test_model_forward_intermediates",
    "test_model_forward_intermediates_features",
    "test_model_forward_fx",
    "test_model_backward_fx",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pattern = os.environ.get("FLOPPING_TIMM_MODELS", "*")
    ours = {name for name in ZOO if fnmatch(name, pattern)}
    kept, others, run = [], [], defaultdict(set)
    for item in items:
        test = getattr(item, "originalname", "")
        model = getattr(getattr(item, "callspec", None), "params", {}).get("model_name")
        wanted = model in ours and test not in LEFT_OUT
        (kept if wanted else others).append(item)
        run[test].add(model)
    for test in FOR_ALL:
        if missing := ours - run[test]:
            raise pytest.UsageError(f"{test} of timm's suite leaves out {', '.join(sorted(missing))}")
    config.hook.pytest_deselected(items=others)
    items[:] = kept
