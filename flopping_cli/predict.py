"""`flopping predict`: photos of yours, and what a network says they show."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flopping_cli.common import CTRL_C, Average, ImgSize, Json, Network, OwnCode, Quiet, app, print_json, say
from flopping_cli.train import Device, TestGroup, name_element, name_network

if TYPE_CHECKING:
    from flopping.data.photos import Failed
    from flopping.deploy import Prediction

COLUMNS = ("image", "rank", "label", "class", "probability", "logit")
MOVED_COLUMNS = ("same", "label", "difference")
"""Each with the name of an element before it."""


class Format(str, Enum):
    table = "table"
    jsonl = "jsonl"
    csv = "csv"


@app.command()
def predict(
    target: Network,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Files, folders with all that is below them, patterns in quotes; - is standard input: an image, or"
            " paths, one a line, each as it stands: no patterns.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many classes of each image, the likeliest first.")] = 5,
    form: Annotated[Format | None, typer.Option("--format", help="What is printed; a table by default.")] = None,
    json: Json = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            "--check-mirror",
            help="Run images moved by each element of the group, too, and say what changes.",
        ),
    ] = False,
    group: TestGroup = None,
    average: Average = False,
    code: OwnCode = None,
    img_size: ImgSize = None,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images at a time.")] = 32,
    device: Device = "auto",
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Refuse larger images; by default those of more than 89 million pixels.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Say what photos show: the likeliest classes of each.

    What can't be read is reported on standard error and left out; then the exit code is 1, or 2 if nothing was left.
    Ctrl-C shows what is known by then, and the exit code is 130.

    Examples: flopping predict runs/e-vit-b photos/; flopping predict runs/e-vit-b "*.jpg" --top 1 --format csv;
    find . -name "*.png" | flopping predict runs/e-vit-b - --json; flopping predict "E(ViT-S)" cat.jpg --check
    """
    from flopping.data.photos import MAX_PIXELS, Failed, find_photos, silence_pillow
    from flopping.deploy import open_classifier
    from flopping.deploy import predict as classify
    from flopping.errors import UsageError, pluralize
    from flopping.functional import tune_cpu
    from flopping.groups import trivial
    from flopping.training.distributed import resolve_device

    console = Console(stderr=True)
    if json and form not in (None, Format.jsonl):
        raise UsageError(f"--json is --format jsonl, got --format {form.value} too")
    if group is not None and not check:
        raise UsageError(f"--group {group} says what --check runs: add --check")
    results = _Results(Format.jsonl if json else form or Format.table, console)
    photos = []
    for photo in find_photos(images, None if sys.stdin is None else sys.stdin.buffer):  # which may be closed
        if isinstance(photo, Failed):
            results.fail(photo)
        else:
            photos.append(photo)
    if not photos:
        raise UsageError("there are no images to classify")
    tune_cpu()
    classifier = open_classifier(target, average=average, code=code, img_size=img_size, device=resolve_device(device))
    if classifier.trained is False:
        say(f"Warning: {name_network(classifier.name)} has no trained weights here: its answers mean nothing.", console)
    # rows that appear in the same terminal are progress enough
    silent = quiet or not console.is_terminal or (results.form is not Format.table and sys.stdout.isatty())
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    options = {
        "top": top,
        "batch": batch,
        "check": classifier.group_to_test(group) if check else trivial,
        "max_pixels": max_pixels or MAX_PIXELS,
    }
    interrupted = False
    try:
        with (
            silence_pillow(),
            Progress(*columns, console=console, transient=True, disable=silent) as bar,
            closing(classify(classifier, photos, **options)) as found,  # type: ignore[arg-type]
        ):
            for result in bar.track(found, len(photos)):
                results.fail(result) if isinstance(result, Failed) else results.add(result)
    except KeyboardInterrupt:  # what is known so far is shown
        interrupted = True
    results.finish(quiet)
    if interrupted:
        say(f"Interrupted: {results.count} of {pluralize(len(photos), 'image')} classified.")
        raise typer.Exit(CTRL_C)
    if results.failed:
        done = f"{pluralize(results.count, 'image')} {'was' if results.count == 1 else 'were'} classified"
        say(f"{done}; {results.failed} could not be used, for the reasons above.", console)
        raise typer.Exit(1 if results.count else 2)


@dataclass
class _Results:
    """Predictions on standard output: rows as they come, or a table at the end."""

    form: Format
    console: Console
    kept: list[Prediction] = field(default_factory=list)
    """For the table."""
    count: int = 0
    failed: int = 0
    same: Counter[str] = field(default_factory=Counter)
    """How many images keep their class when an element moves them."""
    largest: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The largest difference that an element makes, and the image."""

    def fail(self, failure: Failed) -> None:
        self.failed += 1
        say(f"{shown(failure.name)}: {failure.reason}", self.console)

    def add(self, prediction: Prediction) -> None:
        for element, answer in prediction.moved.items():
            self.same[element] += answer.same
            difference = (answer.difference, prediction.name)
            self.largest[element] = max(self.largest.get(element, difference), difference)
        classes = [(one.label, one.number, one.probability, one.logit) for one in prediction.top]
        if self.form is Format.table:
            self.kept.append(prediction)
        elif self.form is Format.jsonl:
            top = [dict(zip(COLUMNS[2:], one, strict=True)) for one in classes]
            moved = {element: asdict(each) for element, each in prediction.moved.items()}
            line = {"image": prediction.name, "top": top, **({"moved": moved} if moved else {})}
            print_json([line])
        else:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            if not self.count:
                more = (f"{element}_{column}" for element in prediction.moved for column in MOVED_COLUMNS)
                writer.writerow((*COLUMNS, *more))
            changes = ((str(each.same).lower(), each.label, each.difference) for each in prediction.moved.values())
            change = tuple(chain.from_iterable(changes))
            writer.writerows((prediction.name, rank, *one, *change) for rank, one in enumerate(classes, 1))
            # at once; names of files that are no UTF-8 keep their bytes
            sys.stdout.buffer.write(text.getvalue().encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.flush()
        self.count += 1

    def finish(self, quiet: bool) -> None:
        """Print the table, and what each element changes: beside a table it is a result, beside rows a note."""
        from flopping.errors import pluralize

        if self.kept:
            _print_table(self.kept)
        for element, (difference, name) in self.largest.items():
            keep = "keeps its" if self.count == 1 else "keep their"
            text = (
                f"{name_element(element).capitalize()}, {self.same[element]} of {pluralize(self.count, 'image')} {keep}"
                f" class; the logits differ by {difference:.1e} at most ({shown(name)})."
            )
            if self.form is Format.table:
                typer.echo(text)
            elif not quiet:
                say(text, self.console)


def _print_table(predictions: list[Prediction]) -> None:
    console = Console()
    table = Table("image", "class")
    table.add_column("probability", justify="right")
    elements = list(predictions[0].moved)
    if elements:
        table.add_column("moved" if len(elements) > 1 else name_element(elements[0]))
    widest = 0
    for prediction in predictions:
        for rank, one in enumerate(prediction.top):
            first = [shown(prediction.name), _describe_changes(prediction)] if rank == 0 else ["", ""]
            cells = [first[0], shown(one.label), f"{one.probability:.1%}", *(first[1:] if elements else [])]
            row = [Text(cell) for cell in cells]
            table.add_row(*row, end_section=rank == len(prediction.top) - 1 > 0)
            widest = max(widest, sum(text.cell_len for text in row))
    if not console.is_terminal:  # nothing is cut or wrapped
        console.width = max(console.width, widest + 40)
    for column in table.columns:
        column.overflow = "fold"
    console.print(table)


def _describe_changes(prediction: Prediction) -> str:
    """The other classes of the moved images, by the elements that lead to them, and the largest difference."""
    moved = prediction.moved
    others = [(name, shown(each.label)) for name, each in moved.items() if not each.same]
    said = (f"{label} ({name})" if len(moved) > 1 else label for name, label in others)
    return f"{', '.join(said) or 'same'}, {max((each.difference for each in moved.values()), default=0):.1e}"


def shown(name: str) -> str:
    r"""A name for people: what can't be printed is written as Python would.

    >>> print(shown("a b.jpg"), shown("a\nb.jpg"), shown("a\udcff.jpg"))
    a b.jpg 'a\nb.jpg' 'a\udcff.jpg'
    """
    return name if name.isprintable() and name else repr(name)
