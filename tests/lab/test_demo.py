"""What `make demo` shows, at a smaller size."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from support.training_runs import Launcher, few_training_images

from flopping.errors import UsageError
from flopping.lab.demo import demo

SIZE = ("model_args.embed_dim=16", "model_args.depth=1", "model_args.patch_size=7")
SMALL = ("epochs=1", "warmup_epochs=0", "batch_size=100", *SIZE)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The real demo, with small networks that are not compiled, and few images to learn from."""
    folder = tmp_path_factory.mktemp("demo")
    out, progress = io.StringIO(), io.StringIO()
    with few_training_images(2000):
        demo(Console(file=out, width=150), Console(file=progress, width=150), folder, SMALL, compiled=False)
    for console, has in ((out, False), (progress, True)):
        assert ("epoch   1 of 1" in console.getvalue()) == has
        assert ("What you see." in console.getvalue()) != has
    return out.getvalue(), folder


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"│ {name}"))
    return [cell.strip() for cell in re.split("[│┃]", line)][2:]


def test_even_channels_stay_and_odd_ones_change_their_sign(shown: tuple[str, Path]) -> None:
    before = re.search(r"  image +even ([+-][\d.]+) +odd ([+-])([\d.]+)", shown[0])
    after = re.search(r"mirrored image +even ([+-][\d.]+) +odd ([+-])([\d.]+)", shown[0])
    assert before is not None
    assert after is not None
    assert (before[1], before[3]) == (after[1], after[3])
    assert before[2] != after[2]


def test_the_equivariant_network_loses_no_image_in_the_mirror(shown: tuple[str, Path]) -> None:
    ordinary, equivariant = row(shown[0], "images whose class changes")[:2]
    assert equivariant == "0"
    assert int(ordinary) > 0
    for what in ("test images", "shoes only"):
        assert row(shown[0], f"accuracy: {what} ")[1] == row(shown[0], f"accuracy: {what}, mirrored")[1]


def test_costs_are_about_half(shown: tuple[str, Path]) -> None:
    assert 0.45 < float(row(shown[0], "parameters")[2]) < 0.65
    assert 0.45 < float(row(shown[0], "FLOPs per image")[2]) < 0.95  # elementwise work weighs more in small networks
    assert float(row(shown[0], "training, images/s")[2]) > 0


def test_it_leaves_a_picture_and_the_runs(shown: tuple[str, Path]) -> None:
    with Image.open(shown[1] / "demo.png") as picture:
        assert picture.size[0] > 1000
    assert {path.name for path in shown[1].iterdir()} == {"ordinary", "equivariant", "demo.png"}


def test_stopped_it_names_itself_as_what_goes_on(tmp_path: Path, launcher: Launcher) -> None:
    asked = ("open", "subset.npz", 1, signal.SIGTERM)
    ended = launcher.run(tmp_path, "demo", "-o", str(tmp_path / "demo"), strikes=[asked])
    assert ended.code == 3, ended.err
    assert "stopped before the first step: there is nothing to save. The same command goes on" in ended.err


def test_what_it_is_refused_leaves_the_number_of_threads(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("mine")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(UsageError, match="is a file"):
            demo(Console(file=io.StringIO()), Console(file=io.StringIO()), tmp_path, SMALL, compiled=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
