"""A first look: an ordinary transformer and its equivariant twin learn the same images, then see them mirrored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from flopping import nn as fnn
from flopping.cost.count import count
from flopping.data.batches import read_evaluation_batches
from flopping.data.fashion import EMBEDDED, open_fashion_mnist
from flopping.data.images import ImageDataset
from flopping.errors import UsageError
from flopping.features import Layout
from flopping.groups import flop
from flopping.lab.curves import show_curves
from flopping.lab.drawing import BACKGROUND, COLOURS, INK, WIDTH, finished, save, style
from flopping.machine import find_compiler
from flopping.testing import randomize_
from flopping.training.job import Job, RunOptions
from flopping.training.networks import find_checkpoint, load_checkpoint
from flopping.training.preprocessing import preparation_of
from flopping.training.recipe import Recipe, load
from flopping.training.run import train
from flopping.training.run_log import read_log

RECIPE = "fashion_vit"
NETWORKS = {"ordinary": "ViT-S", "equivariant": "E(ViT-S)"}
"""In the small size that the recipe gives them."""
SHOES = ("Sandal", "Sneaker", "Ankle boot")
"""What faces left on nearly every image of the data set."""
SHOWN = 6
RIGHT, WRONG = "#1a7f37", "#cf222e"
FIRST, SECOND = list(COLOURS.values())[:2]
"""Of the ordinary network and of the equivariant one."""


@dataclass(frozen=True)
class DemoResult:
    """A trained network and its answers."""

    name: str
    parameters: int
    flops: float
    """Of a forward pass, for one image."""
    speed: float
    """Images per second in training: the median over the run."""
    seen: Tensor
    """The class that it gives to each test image."""
    mirrored: Tensor
    """The same for the mirrored images."""
    labels: Tensor

    def score(self, among: Tensor, *, mirrored: bool) -> float:
        """Per cent of the images among some that get the right class."""
        answers = self.mirrored if mirrored else self.seen
        return 100 * float((answers == self.labels)[among].double().mean())

    @property
    def changed(self) -> int:
        """How many images get another class when they are mirrored."""
        return int((self.seen != self.mirrored).sum())


def demo(
    console: Console,
    progress: Console,
    folder: Path,
    changes: tuple[str, ...] = (),
    compiled: bool | None = None,
) -> None:
    """Train both networks, show them the mirrored test images, and explain the result to the reader."""
    recipe = load(RECIPE).override(changes)
    if compiled is None:
        _, compiled = find_compiler()
    console.print("[bold]flopping[/bold]: networks that know a mirrored image shows the same thing\n")
    _show_parts(console)
    console.print(
        "\nNext, two small vision transformers learn to tell clothes and shoes apart (Fashion-MNIST, 28 x 28 pixels),"
        " the same way, one after the other."
        + (" Each is compiled first, which takes up to a minute." if compiled else " They are not compiled.")
    )
    outcomes = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network gains nothing from more, and suffers where others need them
    try:
        for name, model in NETWORKS.items():
            progress.print(f"\n[bold]{name}[/bold]")
            options = RunOptions(compile=compiled, workers=1)
            train(Job(recipe, model, EMBEDDED), options, folder / name, progress, resume=True)
            show_curves(folder / name, model, progress)
            images = open_fashion_mnist("test")
            outcomes.append(_test(name, recipe, folder / name, images))
    finally:
        torch.set_num_threads(threads)
    ordinary, equivariant = outcomes
    shoes = torch.isin(ordinary.labels, torch.tensor([images.classes.index(name) for name in SHOES]))
    _show_table(console, ordinary, equivariant, shoes)
    _explain(console, ordinary, equivariant, shoes)
    path = folder / "demo.png"
    try:
        draw(ordinary, equivariant, images, shoes, path)
    except UsageError as error:  # the demo needs no matplotlib
        console.print(f"\nNo picture: {error}", highlight=False)
    else:
        console.print(f"\nThe picture: {path}", highlight=False, soft_wrap=True)


def _show_parts(console: Console) -> None:
    layout = Layout.regular(flop, 64)
    image = torch.rand(1, 3, 224, 224)
    embed = randomize_(fnn.PatchEmbed(layout, 224, 16))
    with torch.no_grad():
        before, after = embed(image), embed(image.flip(-1))
    even, odd = (part[0, 0, 0].item() for part in before)
    mirrored = [part[0, 13, 0].item() for part in after]  # the top left of 14 x 14 patches is top right now
    console.print(
        "A network is [bold]equivariant[/bold] if a mirrored image gives mirrored features. Ours have two parts,"
        " [cyan]even[/cyan] and [magenta]odd[/magenta] channels. Mirror the image, and each part of it moves to the"
        " mirrored place; there its even channels are the same and its odd channels have changed their sign. The first"
        " channel of each, for the top left patch of an image:\n"
    )
    console.print(f"    image            even {even:+.4f}   odd {odd:+.4f}")
    console.print(f"    mirrored image   even {mirrored[0]:+.4f}   odd {mirrored[1]:+.4f}\n")
    console.print(
        "Even and odd channels never mix in a linear layer, so it has half of the weights and does half of the work."
        " What the network says in the end comes from even channels: it can't change when the image is mirrored."
    )


def _test(name: str, recipe: Recipe, run: Path, images: ImageDataset) -> DemoResult:
    """Show a trained network the test images and their mirror images."""
    model, _ = load_checkpoint(find_checkpoint(run / "last"))
    model.eval()
    preparation = preparation_of(model, torch.device("cpu"))
    with torch.no_grad():
        batches = [
            (model(batch.images).argmax(1), model(batch.images.flip(-1)).argmax(1), batch.labels)
            for batch in read_evaluation_batches(images, preparation, 100, 0)
        ]
    size = (recipe.in_chans, recipe.img_size, recipe.img_size)
    return DemoResult(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        count(model, size).flops,
        median(event["images_per_s"] for event in read_log(run) if event.get("images_per_s")),
        *(torch.cat(parts) for parts in zip(*batches, strict=True)),
    )


def _show_table(console: Console, ordinary: DemoResult, equivariant: DemoResult, shoes: Tensor) -> None:
    table = Table("", "ordinary", "equivariant", "ratio")
    for what, form, x, e in (
        ("parameters", "{:.1f} k", ordinary.parameters / 1e3, equivariant.parameters / 1e3),
        ("FLOPs per image", "{:.2f} M", ordinary.flops / 1e6, equivariant.flops / 1e6),
        ("training, images/s", "{:.0f}", ordinary.speed, equivariant.speed),
    ):
        table.add_row(what, form.format(x), form.format(e), f"{e / x:.2f}")
    table.add_section()
    for what, among in (("test images", torch.ones_like(shoes)), ("shoes only", shoes)):
        for suffix, mirrored in (("", False), (", mirrored", True)):
            scores = [f"{outcome.score(among, mirrored=mirrored):.1f} %" for outcome in (ordinary, equivariant)]
            table.add_row(f"accuracy: {what}{suffix}", *scores, "")
    table.add_row("images whose class changes in the mirror", str(ordinary.changed), str(equivariant.changed), "")
    console.print()
    console.print(table)


def _explain(console: Console, ordinary: DemoResult, equivariant: DemoResult, shoes: Tensor) -> None:
    before, after = (ordinary.score(shoes, mirrored=mirrored) for mirrored in (False, True))
    console.print(
        "\n[bold]What you see.[/bold] Nearly all shoes of this data set face left. The ordinary network has learned"
        f" that shoes do: of mirrored ones it gets {after:.1f} % right instead of {before:.1f} %, and"
        f" {ordinary.changed} of {len(shoes)} test images get another class when they are mirrored. The equivariant"
        f" one gives the same answer to every image and its mirror image ({equivariant.changed} changes), without"
        " having seen a mirrored image, because it can't do otherwise; and with about half the parameters and FLOPs."
    )
    console.print(
        "\n[bold]Speed.[/bold] Networks as small as these are mostly overhead, so half the FLOPs are not half the time."
        ' At the paper\'s sizes they come closer: flopping bench "E(ViT-S)" measures it.',
        highlight=False,
    )


def draw(ordinary: DemoResult, equivariant: DemoResult, images: ImageDataset, shoes: Tensor, path: Path) -> None:
    with style():
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(WIDTH, 6.4), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        chosen = _choose(ordinary, equivariant, shoes)
        axes = top.subplots(2, len(chosen))
        for column, index in enumerate(chosen):
            picture = np.asarray(images.read(index)[0])
            _draw_image(axes[0, column], picture, images.classes, index, ordinary, equivariant, mirrored=False)
            _draw_image(axes[1, column], picture[:, ::-1], images.classes, index, ordinary, equivariant, mirrored=True)
        top.suptitle(
            "Test images (above) and the same ones mirrored (below): what the two networks say", x=0.01, ha="left"
        )
        left, right = bottom.subplots(1, 2, width_ratios=(1, 1.4))
        _draw_costs(left, ordinary, equivariant)
        _draw_accuracies(right, (ordinary, equivariant), shoes)
        save(finished(figure), path)


def _choose(ordinary: DemoResult, equivariant: DemoResult, shoes: Tensor) -> list[int]:
    """Shoes that both networks know: mostly those that the ordinary one doesn't know in the mirror."""
    known = shoes & (ordinary.seen == ordinary.labels) & (equivariant.seen == ordinary.labels)
    lost = (known & (ordinary.mirrored != ordinary.labels)).nonzero()[:, 0].tolist()
    kept = (known & (ordinary.mirrored == ordinary.labels)).nonzero()[:, 0].tolist()
    chosen = [*lost[: SHOWN - 2], *kept, *lost[SHOWN - 2 :], *range(len(shoes))]
    return list(dict.fromkeys(chosen))[:SHOWN]


def _draw_image(
    axes: Any, pixels: Any, classes: Sequence[str], index: int, *outcomes: DemoResult, mirrored: bool
) -> None:
    """An image with the answers of the networks below it."""
    axes.imshow(pixels, cmap="gray_r", interpolation="nearest")
    axes.set_axis_off()
    for line, outcome in enumerate(outcomes):
        answer = int((outcome.mirrored if mirrored else outcome.seen)[index])
        axes.text(
            0.5,
            -0.06 - 0.14 * line,
            f"{outcome.name}: {classes[answer]}",
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=7,
            color=RIGHT if answer == outcome.labels[index] else WRONG,
        )


def _draw_costs(axes: Any, ordinary: DemoResult, equivariant: DemoResult) -> None:
    """Each figure as a share of the ordinary network's."""
    x, e = ordinary, equivariant
    rows = {
        f"parameters\n{e.parameters / 1e3:.0f} k of {x.parameters / 1e3:.0f} k": e.parameters / x.parameters,
        f"FLOPs per image\n{e.flops / 1e6:.1f} M of {x.flops / 1e6:.1f} M": e.flops / x.flops,
        f"time to train\n{e.speed:.0f} against {x.speed:.0f} images/s": x.speed / e.speed,
    }
    axes.barh(list(rows), list(rows.values()), color=SECOND, height=0.5)
    axes.axvline(1.0, color=FIRST, lw=1.5)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    for row, share in enumerate(rows.values()):
        place, ha, colour = (share - 0.02, "right", BACKGROUND) if share < 0.98 else (max(1, share) + 0.02, "left", INK)
        axes.text(place, row, f"{share:.2f}", ha=ha, va="center", color=colour, fontsize=8)
    axes.set(title="Equivariant, as a share of ordinary", xlim=(0, max(1.25, *rows.values()) + 0.1))


def _draw_accuracies(axes: Any, outcomes: Sequence[DemoResult], shoes: Tensor) -> None:
    everything = torch.ones_like(shoes)
    groups = {
        "all images": (everything, False),
        "mirrored": (everything, True),
        "shoes": (shoes, False),
        "mirrored\nshoes": (shoes, True),
    }
    for side, (outcome, colour) in enumerate(zip(outcomes, (FIRST, SECOND), strict=True)):
        places = [place + 0.4 * (side - 0.5) for place in range(len(groups))]
        heights = [outcome.score(among, mirrored=mirrored) for among, mirrored in groups.values()]
        bars = axes.bar(places, heights, width=0.36, color=colour, label=outcome.name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7.5, color=INK, padding=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(title="Test accuracy (%)", ylim=(0, 118))
    axes.grid(False, axis="x")
    axes.legend(loc="upper right", ncols=2)
