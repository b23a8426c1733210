"""A pytest plugin for timm's own test-suite: registers our models first, and keeps only their tests.

`FLOPPING_TIMM_MODELS` (a name with wildcards) chooses fewer of them. `FLOPPING_TIMM_PASSED` names a file that remembers
what has passed: the suite takes an hour, and goes on where it was stopped.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict, defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest
from torch import fx
from torchvision.models.feature_extraction import NodePathTracer

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
PASSED = os.environ.get("FLOPPING_TIMM_PASSED")


def find_name(tracer: NodePathTracer, module: str, node: fx.Node, search=NodePathTracer._get_node_qualname) -> str:
    """torchvision's name for a node, looked for among those that begin alike.

    torchvision looks through all names for each node, which takes most of the time of a deep network.
    """
    alike = tracer.__dict__.setdefault("names_by_beginning", defaultdict(OrderedDict))
    name = module if node.op == "call_module" else f"{module}.{node}".lstrip(".")
    every, tracer.node_to_qualname = tracer.node_to_qualname, alike[_without_number(name)]
    try:
        name = search(tracer, module, node)
    finally:
        tracer.node_to_qualname = every
    for beginning in {name, _without_number(name)}:
        alike[beginning][node] = name
    return name


def _without_number(name: str) -> str:
    return re.sub(r"(?<=.)_[0-9]+$", "", name)


NodePathTracer._get_node_qualname = find_name


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Workers of xdist report to the process that started them, which is the one that writes."""
    if PASSED and report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(PASSED, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pattern = os.environ.get("FLOPPING_TIMM_MODELS", "*")
    ours = {name for name in ZOO if fnmatch(name, pattern)}
    passed = set(Path(PASSED).read_text(encoding="utf-8").splitlines()) if PASSED and Path(PASSED).exists() else set()
    kept, others, run = [], [], defaultdict(set)
    for item in items:
        test = getattr(item, "originalname", "")
        model = getattr(getattr(item, "callspec", None), "params", {}).get("model_name")
        wanted = model in ours and test not in LEFT_OUT and item.nodeid not in passed
        (kept if wanted else others).append(item)
        run[test].add(model)
    for test in FOR_ALL:
        if missing := ours - run[test]:
            raise pytest.UsageError(f"{test} of timm's suite leaves out {', '.join(sorted(missing))}")
    config.hook.pytest_deselected(items=others)
    items[:] = kept
