"""`flopping predict`: photos of yours, and what a network says they show."""

from __future__ import annotations

import csv
import io
import json as json_module
import sys
from contextlib import closing
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flopping_cli.common import CTRL_C, Quiet, app, refusals, say
from flopping_cli.train import Device

if TYPE_CHECKING:
    from flopping.classifier import Classifier
    from flopping.photos import Failed, Photo
    from flopping.predict import Prediction

COLUMNS = ("image", "rank", "label", "class", "probability", "logit")
MIRROR_COLUMNS = ("mirror_same", "mirror_label", "mirror_difference")


class Format(str, Enum):
    table = "table"
    jsonl = "jsonl"
    csv = "csv"


@app.command()
def predict(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_CHECKPOINT",
            help="A run, one of its checkpoints, a folder that timm's models save, a model by its registered name or"
            " the paper's, or FILE.py:ATTRIBUTE.",
        ),
    ],
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
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
    check_mirror: Annotated[
        bool, typer.Option("--check-mirror", help="Run the mirrored images, too, and say what they change.")
    ] = False,
    average: Annotated[bool, typer.Option("--average", help="The averaged weights (EMA) of a checkpoint.")] = False,
    img_size: Annotated[
        int | None, typer.Option(min=1, help="Another size of images, for networks that are no checkpoint.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 32,
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
    find . -name "*.png" | flopping predict runs/e-vit-b - --json; flopping predict "E(ViT-S)" cat.jpg --check-mirror
    """
    from flopping.photos import pillow_is_quiet
    from flopping.wording import counted

    console = Console(stderr=True)
    with refusals():
        if json and form not in (None, Format.jsonl):
            raise ValueError(f"--json is --format jsonl, got --format {form.value} too")
        form = Format.jsonl if json else form or Format.table
        photos, failures = _meant(images)
        for failure in failures:
            _complain(console, failure)
        if not photos:
            raise ValueError("there are no images to classify")
        classifier = _opened(target, average, img_size, device, console)
        results = _Results(form, check_mirror, console)
        failed, interrupted = len(failures), False
        try:
            with pillow_is_quiet():
                failed += _run(classifier, photos, results, console, top, batch, check_mirror, max_pixels, quiet)
        except KeyboardInterrupt:  # what is known so far is shown
            interrupted = True
        results.finish(quiet)
    if interrupted:
        say(f"Interrupted: {results.count} of {counted(len(photos), 'image')} classified.")
        raise typer.Exit(CTRL_C)
    if failed:
        done = f"{counted(results.count, 'image')} {'was' if results.count == 1 else 'were'} classified"
        say(f"{done}; {failed} could not be used, for the reasons above.", console)
        raise typer.Exit(1 if results.count else 2)


def _meant(images: list[str]) -> tuple[list[Photo], list[Failed]]:
    """The photos that are meant, and what of it can't be used."""
    from flopping.photos import Failed, Photo, find_photos

    found = list(find_photos(images, sys.stdin.buffer))
    return [one for one in found if isinstance(one, Photo)], [one for one in found if isinstance(one, Failed)]


def _opened(target: str, average: bool, img_size: int | None, device: str, console: Console) -> Classifier:
    from flopping.classifier import open_classifier
    from flopping.training.processes import chosen_device

    classifier = open_classifier(target, average=average, img_size=img_size, device=chosen_device(device))
    if classifier.trained is False:
        say(f"Warning: {classifier.name} has no trained weights here: its answers mean nothing.", console)
    return classifier


def _run(
    classifier: Classifier,
    photos: list[Photo],
    results: _Results,
    console: Console,
    top: int,
    batch: int,
    check_mirror: bool,
    max_pixels: int | None,
    quiet: bool,
) -> int:
    """Show what the network says about each photo, and count those that it can't say anything about."""
    from flopping.photos import MAX_PIXELS, Failed
    from flopping.predict import predict as run

    failed = 0
    limit = MAX_PIXELS if max_pixels is None else max_pixels
    # rows that appear in the same terminal are progress enough
    silent = quiet or not console.is_terminal or (results.form is not Format.table and sys.stdout.isatty())
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        task = bar.add_task("", total=len(photos))
        found = run(classifier, photos, top=top, batch=batch, check_mirror=check_mirror, max_pixels=limit)
        with closing(found):  # if nobody wants the rest, nothing more is read
            for result in found:
                if isinstance(result, Failed):
                    failed += 1
                    _complain(console, result)
                else:
                    results.add(result)
                bar.advance(task)
    return failed


class _Results:
    """Predictions on standard output: rows as they come, or a table at the end."""

    def __init__(self, form: Format, check_mirror: bool, console: Console) -> None:
        self.form, self.check_mirror, self.console = form, check_mirror, console
        self.kept: list[Prediction] = []
        self.count = self.same = 0
        self.difference, self.where = 0.0, ""

    def add(self, prediction: Prediction) -> None:
        mirrored = prediction.mirrored
        if mirrored is not None:
            self.same += mirrored.same
            if mirrored.difference >= self.difference:
                self.difference, self.where = mirrored.difference, prediction.name
        if self.form is Format.table:
            self.kept.append(prediction)
        elif self.form is Format.jsonl:
            _write(json_module.dumps(_object(prediction)) + "\n")
        else:
            columns = (*COLUMNS, *(MIRROR_COLUMNS if self.check_mirror else ()))
            _write(_csv([*([] if self.count else [columns]), *_rows(prediction)]))
        self.count += 1

    def finish(self, quiet: bool) -> None:
        """The table, and a sum of what mirroring changes: for people a result, beside rows for machines a note."""
        if self.form is Format.table and self.kept:
            _print_table(self.kept, self.check_mirror)
        if self.check_mirror and self.count and not (quiet and self.form is not Format.table):
            text = (
                f"Mirrored, {self.same} of {self.count} images keep their class; the logits differ by"
                f" {self.difference:.1e} at most ({shown(self.where)})."
            )
            if self.form is Format.table:
                typer.echo(text)
            else:
                say(text, self.console)


def _object(prediction: Prediction) -> dict[str, object]:
    """What a line of JSON says."""
    top = [
        {"label": one.label, "class": one.number, "probability": one.probability, "logit": one.logit}
        for one in prediction.top
    ]
    mirrored = {} if prediction.mirrored is None else {"mirrored": asdict(prediction.mirrored)}
    return {"image": prediction.name, "top": top, **mirrored}


def _rows(prediction: Prediction) -> list[tuple[object, ...]]:
    """What lines of CSV say: one for each class."""
    m = prediction.mirrored
    mirrored = () if m is None else (str(m.same).lower(), m.label, m.difference)
    return [
        (prediction.name, rank, one.label, one.number, one.probability, one.logit, *mirrored)
        for rank, one in enumerate(prediction.top, 1)
    ]


def _csv(rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _write(text: str) -> None:
    """To standard output, at once. File names need not be text in any encoding: their bytes stay what they are."""
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def _print_table(predictions: list[Prediction], check_mirror: bool) -> None:
    console = Console()
    table = Table("image", "class")
    table.add_column("probability", justify="right")
    if check_mirror:
        table.add_column("mirrored")
    widest = 0
    for prediction in predictions:
        for rank, one in enumerate(prediction.top):
            name = "" if rank else shown(prediction.name)
            row = [Text(name), Text(shown(one.label)), Text(f"{one.probability:.1%}")]
            if check_mirror:
                row.append(Text("" if rank else _change(prediction)))
            table.add_row(*row, end_section=rank == len(prediction.top) - 1 > 0)
            widest = max(widest, sum(text.cell_len for text in row))
    if not console.is_terminal:  # nothing is cut or wrapped
        console.width = max(console.width, widest + 40)
    for column in table.columns:
        column.overflow = "fold"
    console.print(table)


def _change(prediction: Prediction) -> str:
    mirrored = prediction.mirrored
    if mirrored is None:
        return ""
    return f"{'same' if mirrored.same else shown(mirrored.label)}, {mirrored.difference:.1e}"


def shown(name: str) -> str:
    r"""A name for people: what can't be printed is written as Python would.

    >>> print(shown("a b.jpg"), shown("a\nb.jpg"), shown("a\udcff.jpg"))
    a b.jpg 'a\nb.jpg' 'a\udcff.jpg'
    """
    return name if name.isprintable() and name else repr(name)


def _complain(console: Console, failure: Failed) -> None:
    say(f"{shown(failure.name)}: {failure.reason}", console)
