import pytest
from support.finite_groups import NAMES, Case, case_of


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    """Every finite group of the tests."""
    return case_of(request.param)
