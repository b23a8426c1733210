"""Conditions under which tests run."""

import pytest

from flopping.machine import find_compiler

needs_compiler = pytest.mark.skipif(not find_compiler()[1], reason="torch.compile needs a C++ compiler, none found")
