"""`flopping count`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Json, Quiet, app, print_json, show_status

if TYPE_CHECKING:
    from torch import nn

    from flopping.cost.count import Count


@dataclass(frozen=True)
class Row:
    """A layer with all that is inside it; the last row is the whole network, without a name."""

    name: str
    layer: str
    depth: int
    macs: float
    flops: float
    share: float


@app.command()
def count(
    target: Annotated[
        str,
        typer.Argument(
            help='A model by the paper\'s name, e.g. "E(ViT-S)", or its registered one; MODULE:ATTRIBUTE or'
            " FILE.py:ATTRIBUTE for your own module or a function that makes it."
        ),
    ],
    depth: Annotated[
        int | None, typer.Option(min=0, help="Show layers nested this deep, by default 2; all with --json.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="A training step: forward and backward pass.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images that share the work on weights.")] = 1,
    img_size: Annotated[
        int | None, typer.Option(min=1, max=8192, help="Size of the image, by default the network's.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the multiply-adds and FLOPs of every layer, for one image; beside E(X), those of X.

    Examples: flopping count "E(ViT-S)"; flopping count "E(ViT-S)" --train --batch 64; flopping count my_net.py:build
    """
    with show_status("Counting", quiet):
        model, counted, shape = _count(target, img_size, batch, train)
        ordinary = _ordinary_name(target)
        beside = None if ordinary is None else _count(ordinary, img_size, batch, train)[1]
    rows = _rows(model, counted)
    deepest = depth if depth is not None or json else 2
    shown = [row for row in rows if deepest is None or row.depth <= deepest]
    whole = Row("", type(model).__name__, 0, counted.macs, counted.flops, 1.0)
    if json:
        x: dict[str, object] = {}
        if beside is not None:
            x = {"ordinary": ordinary, "ordinary_macs": beside.macs, "ordinary_flops": beside.flops}
            x["ratio"] = counted.flops / beside.flops
        print_json([*map(asdict, shown), {**asdict(whole), **x}])
        return
    step = "A training step" if train else "A forward pass"
    caption = (
        f"{step}, for one image{f' of {batch}' if batch > 1 else ''}, of {shape}, in millions. FLOPs follow the paper:"
        " multiply-adds (MACs) and elementwise work. A layer includes those inside it;"
        f" {len(shown)} of {len(rows)} are shown{', more by --depth' if len(shown) < len(rows) else ''}."
    )
    table = Table("layer", "type", caption=caption, caption_justify="left")
    for name in ("MACs M", "FLOPs M", "share"):
        table.add_column(name, justify="right")
    for row in (*shown, whole):
        if row is whole:
            table.add_section()
        figures = f"{row.macs / 1e6:,.2f}", f"{row.flops / 1e6:,.2f}", f"{row.share:.1%}"
        table.add_row(row.name or "total", row.layer, *figures)
    console = Console()
    longest = max((len(row.name) + len(row.layer) for row in shown), default=0)
    console.width = max(console.width, longest + 50)  # names are never cut
    console.print(table)
    if beside is not None:
        console.print(
            f"{ordinary} has {beside.macs / 1e6:,.2f} M MACs and {beside.flops / 1e6:,.2f} M FLOPs:"
            f" this is {counted.macs / beside.macs:.3f} and {counted.flops / beside.flops:.3f} of it."
        )


def _count(target: str, img_size: int | None, batch: int, train: bool) -> tuple[nn.Module, Count, str]:
    """Load a network without memory for its weights, where that is possible, and count it, for an input of a shape."""
    import torch

    from flopping.cost.count import count as run
    from flopping.errors import as_usage_error, own_code
    from flopping.models.targets import example_input, load_on_meta

    model = load_on_meta(target, img_size)
    x = example_input(model, img_size, torch.float32)
    sizes = tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else tuple(tuple(part.shape[1:]) for part in x)
    context = f"{type(model).__name__} can't be counted for an input of {sizes}"
    kinds = AssertionError, RuntimeError, TypeError, ValueError
    with own_code(context) if ":" in target else as_usage_error(*kinds, context=context):
        return model, run(model, sizes, batch, training=train), " x ".join(map(str, sizes))


def _ordinary_name(target: str) -> str | None:
    """The paper's X of E(X), H(X) and I(X).

    >>> _ordinary_name("e(vit-s)"), _ordinary_name("ViT-S"), _ordinary_name("resnet18")
    ('ViT-S', None, None)
    """
    from flopping.models import names_in_paper, ordinary_twin, registered_name

    twin = None if ":" in target else ordinary_twin(registered_name(target))
    return None if twin is None else names_in_paper()[twin]


def _rows(model: nn.Module, counted: Count) -> list[Row]:
    """Layers that did something, in the order of the network."""
    found = ((name, module, counted.layers.get(name)) for name, module in model.named_modules())
    return [
        Row(name, type(module).__name__, name.count(".") + 1, layer.macs, layer.flops, layer.flops / counted.flops)
        for name, module, layer in found
        if layer is not None
    ]
