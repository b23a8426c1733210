"""Shared settings: hypothesis without deadlines (the machine is shared) and the same examples every time; a fixture."""

import pytest
from finite_groups import NAMES, Case, case_of
from hypothesis import settings

settings.register_profile("flopping", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("flopping")


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    """Every finite group of the tests."""
    return case_of(request.param)
