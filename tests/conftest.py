"""Shared settings: hypothesis without deadlines (the machine is shared) and the same examples every time; fixtures."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.finite_groups import NAMES, Case, case_of
from support.forked_python import ForkedPython
from support.training_runs import Launcher, call, command, image_folder, recipe_file

# processes that tests start find `support` too
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# shells start what runs in the background with SIGINT ignored, and tests send it
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("flopping", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("flopping")


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    """Every finite group of the tests."""
    return case_of(request.param)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedPython]:
    """Starts what is to be put for `sys.executable`."""
    made = ForkedPython(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def launcher(forks: ForkedPython) -> Launcher:
    """Starts commands in processes of their own."""
    return Launcher(forks)


@pytest.fixture
def forked_python(forks: ForkedPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this test starts need not import torch."""
    monkeypatch.setattr(sys, "executable", str(forks.executable))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images for training and 12 for testing, in 3 classes."""
    return image_folder(tmp_path_factory.mktemp("images"), train=16, test=4)


@pytest.fixture(scope="session")
def small_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An equivariant network that was trained on them for a moment; its weights were averaged, too."""
    root = tmp_path_factory.mktemp("small")
    args = {"embed_dim": 16, "depth": 1, "init_values": 1.0}
    fields = {"epochs": 4, "batch_size": 12, "lr": 1e-2, "optimizer": "adamw", "ema": 0.5, "model_args": args}
    recipe = recipe_file(root / "small.yaml", "ViT", **fields, test_crop=0.8, interpolation="bilinear")
    run = command(recipe, images, root / "run", "deit3_flop_test_patch16_64", "--workers", "0", "--test-epochs", "4")
    ended = call(*run)
    assert ended.code == 0, ended.err
    return root / "run"
