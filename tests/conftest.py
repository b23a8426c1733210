"""Shared settings: hypothesis without deadlines (the machine is shared) and the same examples every time; fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from finite_groups import NAMES, Case, case_of
from hypothesis import settings
from training_runs import Launcher, image_folder

settings.register_profile("flopping", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("flopping")


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    """Every finite group of the tests."""
    return case_of(request.param)


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts commands in processes of their own."""
    made = Launcher()
    yield made
    made.close()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images for training and 12 for testing, in 3 classes."""
    return image_folder(tmp_path_factory.mktemp("images"), train=16, test=4)
