"""A first look: an equivariant transformer block beside an ordinary one, checked, counted and timed."""

from __future__ import annotations

import os
import shutil

import torch
from rich.console import Console
from rich.table import Table
from timm.models.vision_transformer import Block
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flopping import nn as fnn
from flopping.bench.timing import interleave
from flopping.features import Feature, Layout
from flopping.groups import flop
from flopping.testing import equivariance_errors, randomize_

WIDTH, HEADS, BATCH, GRID = 768, 12, 8, (14, 14)


def multiply_adds(module: torch.nn.Module, x: Tensor | Feature) -> int:
    """Multiply-adds of one call, by torch's own counter (which counts each as two operations)."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return int(counter.get_total_flops()) // 2


def demo(console: Console, repeats: int = 30) -> None:
    """Check, count and time the two blocks, and say in plain words what the reader sees."""
    torch.manual_seed(0)
    layout = Layout.regular(flop, WIDTH)
    ordinary = randomize_(Block(WIDTH, HEADS, qkv_bias=True, init_values=1.0).eval())
    equivariant = randomize_(fnn.TransformerBlock(layout, HEADS, qkv_bias=True, init_values=1.0).eval())
    console.print("[bold]flopping[/bold]: networks that know a mirrored image shows the same thing\n")
    console.print(
        "A network is [bold]equivariant[/bold] if a mirrored input gives the mirrored output, so that it makes no"
        " difference whether you mirror before it or after it.\n"
    )
    _show_parts(console, layout)

    packed = torch.randn(BATCH, GRID[0] * GRID[1], WIDTH)
    feature = tuple(part.contiguous() for part in layout.split(packed))
    broken = equivariance_errors(ordinary, packed, in_layout=layout, out_layout=layout, grid=GRID)["flop"]
    kept = equivariance_errors(equivariant, feature, grid=GRID)["flop"]
    counts = multiply_adds(ordinary, packed), multiply_adds(equivariant, feature)
    attention = 2 * BATCH * packed.shape[1] ** 2 * WIDTH  # queries with keys, and weights with values
    compiled = shutil.which(os.environ.get("CXX", "g++")) is not None
    console.print(
        f"Next, two transformer blocks of width {WIDTH}, with random weights, on {BATCH} x {packed.shape[1]} tokens."
        + (" Compiling both takes half a minute ..." if compiled else " (No C++ compiler found: not compiled.)")
    )
    fast = [torch.compile(module) if compiled else module for module in (ordinary, equivariant)]
    with torch.no_grad():
        timings = interleave({"ordinary": lambda: fast[0](packed), "equivariant": lambda: fast[1](feature)}, repeats)

    table = Table("", "ordinary", "equivariant", "ratio")
    parameters = [sum(p.numel() for p in module.parameters()) for module in (ordinary, equivariant)]
    table.add_row("parameters (M)", *(f"{n / 1e6:.2f}" for n in parameters), f"{parameters[1] / parameters[0]:.3f}")
    table.add_row("multiply-adds (G)", *(f"{n / 1e9:.2f}" for n in counts), f"{counts[1] / counts[0]:.3f}")
    times = timings["ordinary"], timings["equivariant"]
    table.add_row("time (ms, median)", *(f"{t.median * 1e3:.1f}" for t in times), f"{times[1].over(times[0]):.3f}")
    table.add_row("mirror error (relative)", f"{broken:.1e}", f"{kept:.1e}", "")
    console.print(table)
    console.print(
        "\n[bold]What you see.[/bold] Mirror the input of the ordinary block, and its output is another one, not the"
        f" mirrored output: they differ by up to {broken:.0%} of its largest value. The equivariant block gives the"
        f" mirrored output, up to rounding ({kept:.0e}), whatever its weights are. It ran"
        f" [bold]{times[0].over(times[1]):.2f} times as fast[/bold] here."
    )
    console.print(
        "\n[bold]The ratios.[/bold] Even and odd channels never mix in a linear layer, so it has half of the weights"
        " and does half of the multiply-adds. The products of tokens with tokens in attention are as many as before:"
        f" {attention / counts[0]:.1%} of the ordinary block's work. Half of the rest and all of these make"
        f" {counts[1] / counts[0]:.3f}, not 0.500. Time also goes into norms, activations and moving numbers, which"
        " are not halved; its ratio is the median over rounds in which the two blocks run side by side."
    )


def _show_parts(console: Console, layout: Layout) -> None:
    image = torch.rand(1, 3, 224, 224)
    embed = randomize_(fnn.PatchEmbed(layout, 224, 16))
    with torch.no_grad():
        before, after = embed(image), embed(image.flip(-1))
    left, right = (part[0, 0, 0].item() for part in before)
    mirrored = [part[0, GRID[1] - 1, 0].item() for part in after]  # the top left patch is top right now
    console.print(
        "An image becomes tokens of two parts, [cyan]even[/cyan] and [magenta]odd[/magenta] channels. Mirror the"
        " image, and each token moves to the mirrored place; there its even channels are the same and its odd"
        " channels have changed their sign. The first channel of each, for the top left patch:\n"
    )
    console.print(f"    image            even {left:+.4f}   odd {right:+.4f}")
    console.print(f"    mirrored image   even {mirrored[0]:+.4f}   odd {mirrored[1]:+.4f}\n")
