"""Small things to train on."""

from pathlib import Path

import numpy as np
from PIL import Image


def image_folder(root: Path, *, train: int, test: int, size: int = 16, noise: float = 60) -> Path:
    """Two classes of noise, one brighter at the top and one at the bottom, so many images of each."""
    numbers = np.random.default_rng(0)
    slope = np.linspace(80, -80, size)[:, None, None]
    for split, each in (("train", train), ("val", test)):
        for name, sign in (("top", 1), ("bottom", -1)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(each):
                pixels = 128 + sign * slope + numbers.normal(0, noise, (size, size, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
    return root
