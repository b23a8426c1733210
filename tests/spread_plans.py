"""What two processes do for the tests, in one start of torchrun: every day, and in the longer suite."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from spread_runs import WAYS, Fields, Room, forget_last
from training_runs import image_folder
from two_processes import CHECKS

from flopping.training.order import Chunks, Order

PROCESSES = 2

# Hierarchical ConvNeXt: two stages, with a downsampling between them, and outputs that evaluation leaves out.
STAGES: Fields = {"model": "convnext_flop_test", "model_args": {"depths": [1, 1], "dims": [8, 16]}}
SLOWER: Fields = {"lr": 0.003, "warmup_lr": 0.001}
CASES: dict[str, tuple[str, Fields]] = {"vit": ("ViT", {}), "convnext": ("ConvNeXt", STAGES | SLOWER)}
RESUMED = [("vit", "copied"), ("vit", "sharded"), ("convnext", "sharded")]
UNEVEN: dict[str, tuple[str, Fields, str, str]] = {
    "three chunks": ("ViT", {"batch_size": 9, "mixup": 0.0, "cutmix": 0.0}, "3", "sharded"),
    "one chunk": ("ViT", {}, "8", "copied"),
}
"""Batches that two processes can't share evenly: what the recipe has of its own, the chunk, and the way."""

MORE: dict[str, tuple[str, Fields]] = {
    "invariant": ("ViT", {"model": "deit3_flop_invariant_test_patch16_64", "model_args": {"embed_dim": 32}}),
    "hybrid": ("ViT", {"model": "deit3_flop_hybrid_test_patch16_64", "model_args": {"embed_dim": 32}}),
    "resmlp": ("ResMLP", {}),
    "isotropic": ("ConvNeXt", SLOWER),
    "ordinary vit": (
        "ViT",
        {"model": "deit3_small_patch16_224", "model_args": {"embed_dim": 32, "depth": 2, "num_heads": 2}},
    ),
    "ordinary resmlp": ("ResMLP", {"model": "resmlp_test_64"}),
    "ordinary convnext": (
        "ConvNeXt",
        {"model": "convnext_tiny", "model_args": {"depths": [1] * 4, "dims": [8, 16, 16, 16]}} | SLOWER,
    ),
}
"""The longer suite: all kinds of networks, timm's own among them, also compiled."""


def everyday(room: Room) -> None:
    """Alone, copied, sharded; resumed otherwise than they began; and all ways to end."""
    for case, (family, fields) in CASES.items():
        room.recipe(case, family, **fields)
        room.alone(case, f"{case}/alone")
        for way, options in WAYS.items():
            room.both(f"{case} {way}", case, "data", f"{case}/{way}", *options)
    for case, way in RESUMED:
        run = room.path / case / f"alone-then-{way}"
        shutil.copytree(room.path / case / "alone", run, symlinks=True)
        forget_last(run)
        room.both(f"{case} resumed {way}", case, "data", run, "--resume", *WAYS[way])
    for case, (family, fields, chunk, way) in UNEVEN.items():
        room.recipe(case, family, **fields)
        room.alone(case, f"{case}/alone", "--chunk", chunk)
        run = room.path / case / "then-both"
        shutil.copytree(room.path / case / "alone", run, symlinks=True)
        forget_last(run)
        room.both(case, case, "data", run, "--resume", *WAYS[way], "--chunk", chunk)
    for check in CHECKS:
        room.plan[check] = [check]
    _ends(room)


def longer(room: Room) -> None:
    """Every kind of network, also compiled."""
    for case, (family, fields) in MORE.items():
        room.recipe(case, family, **fields)
        room.alone(case, f"{case}/alone")
        for way, options in WAYS.items():
            room.both(f"{case} {way}", case, "data", f"{case}/{way}", *options)
            room.both(f"{case} {way} compiled", case, "data", f"{case}/{way} compiled", "--compile", *options)


def break_images(data: Path, images: int) -> None:
    """Damage images that the second process reads in the first step, and the first process doesn't."""
    order = Order(18, 8, 2, 1, 0)
    second = [index for chunk in list(Chunks(order, 1, PROCESSES))[: order.chunks // PROCESSES] for index, _ in chunk]
    files = sorted((data / "train").glob("*/*.png"))
    for index in second[:images]:
        files[index].write_bytes(b"no image")


def _ends(room: Room) -> None:
    """Runs that can't begin, or can't go on, for one of two processes or for both."""
    room.recipe("plain", "ViT", repeats=1)

    def images(name: str, train: int = 6) -> Path:
        return image_folder(room.path / name, train=train, test=3)

    break_images(images("few"), 2)
    room.both("unreadable", "plain", "few", "unreadable")
    break_images(images("one"), 1)
    room.both("no images", "plain", "one", "no-images", "--shard", tries=1)
    (images("tests") / "val" / "class-0" / "001.png").write_bytes(b"no image")
    room.both("no test images", "plain", "tests", "no-test-images", "--shard", tries=1)

    image_folder(room.path / "many", train=6, test=70)  # 105 test images for each, in batches of 100
    asked = ("open", "/val/class-", 101, int(signal.SIGTERM))
    room.both("asked in a test", "plain", "many", "asked", strike=asked)
    room.both("asked and resumed", "plain", "many", "asked", "--resume")
    room.alone("plain", "not-asked", data="many")

    images("view0")
    room.both("one is blind", "plain", "view{rank}", "blind")
    images("other0")
    images("other1", train=7)
    room.both("views differ", "plain", "other{rank}", "views")
    room.alone("plain", "output0")
    room.both("runs differ", "plain", "data", "output{rank}", "--resume")
    room.both("odd chunk", "plain", "data", "odd", "--chunk", "1")
