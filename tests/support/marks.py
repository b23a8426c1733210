"""Conditions under which tests run."""

import pytest
from torch.fx.experimental import symbolic_shapes

from flopping.machine import find_compiler, has_onednn

needs_compiler = pytest.mark.skipif(not find_compiler()[1], reason="torch.compile needs a C++ compiler, none found")
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")
needs_static_sizes = pytest.mark.skipif(
    not hasattr(symbolic_shapes, "has_static_value"), reason="this torch does not tell which sizes are static"
)
