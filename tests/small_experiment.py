"""What tests of experiments are made of: images that are hard to tell apart, and a cut in the midst of a run."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np
from PIL import Image

from flopping.training.journal import read_log


def noisy_images(root: Path, train: int, test: int) -> Path:
    """Two classes that are brighter at the top or at the bottom, under so much noise that networks err."""
    numbers = np.random.default_rng(0)
    slope = np.linspace(80, -80, 16)[:, None, None]
    for split, each in (("train", train), ("val", test)):
        for name, sign in (("top", 1), ("bottom", -1)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(each):
                pixels = 128 + sign * slope + numbers.normal(0, 250, (16, 16, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
    return root


class Cut:
    """Does something once a run is in its midst, and keeps what its log held then."""

    def __init__(self, runs: Path, run: str, act: Callable[[], None]) -> None:
        self.path, self.act = runs / run, act
        self.over = Event()
        self.log = ""
        self.thread = Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        while not self.over.is_set():
            if any(event["kind"] == "step" for event in read_log(self.path)):
                self.log = (self.path / "log.jsonl").read_text().rpartition("\n")[0]
                self.act()
                return
            self.over.wait(0.01)

    def __enter__(self) -> "Cut":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
