"""Shared settings: hypothesis without deadlines (the machine is shared) and the same examples every time; fixtures.

Nothing here imports torch before a fixture needs it: the process of pytest that only hands out tests never does.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from support.forked_python import ForkedPython

if TYPE_CHECKING:
    from support.training_runs import Launcher

# processes that tests start find `support` too
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
# code is generated in the process that needs it: torch's own pool of compilers imports torch once more for each
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# a shell starts what runs in the background with SIGINT ignored, and processes inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("flopping", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("flopping")

SHARED = pytest.StashKey[ForkedPython]()


def pytest_configure(config: pytest.Config) -> None:
    """One server of forks for all processes of pytest. In those that run tests, no garbage comes of imports."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.stash[SHARED] = ForkedPython(Path(mkdtemp(prefix="forks-")))
    else:
        gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["forks"] = str(node.config.stash[SHARED].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # else modules written in C++ complain at the end of what nobody freed
    if SHARED in config.stash:
        config.stash[SHARED].close()
        shutil.rmtree(config.stash[SHARED].folder)


def pytest_collection_finish() -> None:
    """What is here now stays: the garbage collector need not look at it again, nor at the rest all the time."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def products_by_torch() -> Iterator[None]:
    """After each test torch multiplies again: a command that the test called may have turned oneDNN on."""
    yield
    product = sys.modules.get("flopping.functional.product")
    if product is not None:
        product.use_onednn(False)


@pytest.fixture(scope="session")
def forks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedPython]:
    """Starts what is to be put for `sys.executable`."""
    shared = getattr(request.config, "workerinput", {}).get("forks")
    made = ForkedPython(Path(shared or tmp_path_factory.mktemp("forks")), started=shared is not None)
    yield made
    made.close()


@pytest.fixture(scope="session")
def launcher(forks: ForkedPython) -> Launcher:
    """Starts commands in processes of their own."""
    from support.training_runs import Launcher

    return Launcher(forks)


@pytest.fixture
def forked_python(forks: ForkedPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this test starts need not import torch."""
    monkeypatch.setattr(sys, "executable", str(forks.executable))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images for training and 12 for testing, in 3 classes."""
    from support.training_runs import image_folder

    return image_folder(tmp_path_factory.mktemp("images"), train=16, test=4)


@pytest.fixture(scope="session")
def small_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An equivariant network that was trained on them for a moment; its weights were averaged, too."""
    from support.training_runs import call, command, recipe_file

    root = tmp_path_factory.mktemp("small")
    args = {"embed_dim": 16, "depth": 1, "init_values": 1.0}
    fields = {"epochs": 4, "batch_size": 12, "lr": 1e-2, "optimizer": "adamw", "ema": 0.5, "model_args": args}
    recipe = recipe_file(root / "small.yaml", "ViT", **fields, test_crop=0.8, interpolation="bilinear")
    run = command(recipe, images, root / "run", "deit3_flop_test_patch16_64", "--workers", "0", "--test-epochs", "4")
    ended = call(*run)
    assert ended.code == 0, ended.err
    return root / "run"
