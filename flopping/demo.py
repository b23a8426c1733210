"""A first look: an ordinary transformer and its equivariant twin learn the same images, then see them mirrored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.bench.count import count
from flopping.features import Layout
from flopping.groups import flop
from flopping.testing import randomize_
from flopping.training.feeds import eval_batches
from flopping.training.images import Source
from flopping.training.job import Job, Machine
from flopping.training.journal import read_log
from flopping.training.loader import Preparation, eval_transform
from flopping.training.networks import normalisation
from flopping.training.processes import World
from flopping.training.recipe import Recipe, load
from flopping.training.run import has_compiler, train
from flopping.training.sources import EMBEDDED, fashion_mnist
from flopping.training.trained import checkpoint_folder, load_checkpoint

RECIPE = "fashion_vit"
NETWORKS = {"ordinary": "ViT-S", "equivariant": "E(ViT-S)"}
"""In the small size that the recipe gives them."""
SHOES = ("Sandal", "Sneaker", "Ankle boot")
"""What faces left on nearly every image of the data set."""


@dataclass(frozen=True)
class Outcome:
    """What became of a network."""

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

    def right(self, labels: Tensor, among: Tensor, *, mirrored: bool) -> float:
        """Per cent of the images among some that get the right class."""
        given = self.mirrored if mirrored else self.seen
        return 100 * float((given == labels)[among].double().mean())

    @property
    def changed(self) -> int:
        """How many images get another class when they are mirrored."""
        return int((self.seen != self.mirrored).sum())


def demo(
    console: Console,
    folder: Path,
    changes: tuple[str, ...] = (),
    compiled: bool | None = None,
    progress: Console | None = None,
) -> Path | None:
    """Train both networks, show them the mirrored test images, and say in plain words what the reader sees.

    What the training says meanwhile goes to `progress`, if it is another console.
    """
    progress = progress or console
    recipe = load(RECIPE).override(changes)
    if compiled is None:
        compiled = has_compiler()
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
            machine = Machine(compile=compiled, workers=1)
            train(Job(recipe, model, EMBEDDED), machine, folder / name, progress, resume=True)
            outcomes.append(_outcome(name, recipe, folder / name))
    finally:
        torch.set_num_threads(threads)
    images = fashion_mnist("test")
    labels = torch.tensor([images.open(index)[1] for index in range(len(images))])
    shoes = torch.isin(labels, torch.tensor([images.classes.index(name) for name in SHOES]))
    _show_table(console, outcomes, labels, shoes)
    _explain(console, outcomes, labels, shoes)
    return _picture(console, outcomes, images, labels, shoes, folder)


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


def _outcome(name: str, recipe: Recipe, run: Path) -> Outcome:
    model, _ = load_checkpoint(checkpoint_folder(run / "last"))
    model.eval()
    size = (recipe.in_chans, recipe.img_size, recipe.img_size)
    speeds = [event["images_per_s"] for event in read_log(run) if event.get("images_per_s")]
    seen, mirrored = _answers(model, recipe)
    return Outcome(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        count(model, size).flops,
        median(speeds),
        seen,
        mirrored,
    )


def _answers(model: nn.Module, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The classes that a network gives to the test images and to the mirrored ones."""
    transform = eval_transform(recipe.img_size, recipe.test_crop, recipe.interpolation)
    here = World(torch.device("cpu"))
    normal = normalisation(recipe, model)
    preparation = Preparation(transform, recipe.in_chans, normal, here.device, torch.float32)
    loader = eval_batches(fashion_mnist("test"), preparation, 100, 0, here)
    with torch.no_grad():
        both = [(model(batch.images).argmax(1), model(batch.images.flip(-1)).argmax(1)) for batch in loader]
    seen, mirrored = (torch.cat(parts) for parts in zip(*both, strict=True))
    return seen, mirrored


def _show_table(console: Console, outcomes: list[Outcome], labels: Tensor, shoes: Tensor) -> None:
    ordinary, equivariant = outcomes
    everything = torch.ones_like(shoes)
    table = Table("", "ordinary", "equivariant", "ratio")
    for what, values, form in (
        ("parameters", [o.parameters / 1e3 for o in outcomes], "{:.1f} k"),
        ("FLOPs per image", [o.flops / 1e6 for o in outcomes], "{:.2f} M"),
        ("training, images/s", [o.speed for o in outcomes], "{:.0f}"),
    ):
        table.add_row(what, *(form.format(value) for value in values), f"{values[1] / values[0]:.2f}")
    table.add_section()
    for what, among in (("test images", everything), ("shoes only", shoes)):
        for suffix, mirrored in (("", False), (", mirrored", True)):
            scores = [f"{o.right(labels, among, mirrored=mirrored):.1f} %" for o in outcomes]
            table.add_row(f"right: {what}{suffix}", *scores, "")
    table.add_row("images whose class changes in the mirror", str(ordinary.changed), str(equivariant.changed), "")
    console.print()
    console.print(table)


def _explain(console: Console, outcomes: list[Outcome], labels: Tensor, shoes: Tensor) -> None:
    ordinary, equivariant = outcomes
    before, after = (ordinary.right(labels, shoes, mirrored=mirrored) for mirrored in (False, True))
    console.print(
        "\n[bold]What you see.[/bold] Nearly all shoes of this data set face left. The ordinary network has learned"
        f" that shoes do: of mirrored ones it gets {after:.1f} % right instead of {before:.1f} %, and"
        f" {ordinary.changed} of {len(labels)} test images get another class when they are mirrored. The equivariant"
        f" one gives the same answer to every image and its mirror image ({equivariant.changed} changes), without"
        " having seen a mirrored image, because it can't do otherwise; and with about half the parameters and FLOPs."
    )
    console.print(
        "\n[bold]Speed.[/bold] Networks as small as these are mostly overhead, so half the FLOPs are not half the time."
        ' At the paper\'s sizes they nearly are: flopping bench "E(ViT-S)" measures it.',
        highlight=False,
    )


def _picture(
    console: Console, outcomes: list[Outcome], images: Source, labels: Tensor, shoes: Tensor, folder: Path
) -> Path | None:
    from flopping.demo_figure import draw

    path = folder / "demo.png"
    try:
        draw(outcomes, images, labels, shoes, path)
    except ValueError as error:  # the demo is as good without a picture
        console.print(f"\nNo picture: {error}", highlight=False)
        return None
    console.print(f"\nThe picture: {path}", highlight=False, soft_wrap=True)
    return path
