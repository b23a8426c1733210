"""The report of an experiment: a page of Markdown and a figure beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flopping.bench.notes import describe
from flopping.bench.pace import minutes
from flopping.bench.tables import digits
from flopping.experiments.figure import png
from flopping.experiments.folder import Finished, Folder
from flopping.experiments.pace import STEPS
from flopping.experiments.plan import Arm
from flopping.experiments.summary import Row, rows
from flopping.whole import whole

LENGTH = {Arm.ORDINARY: "", Arm.EQUIVARIANT: ", as many as X", Arm.LONGER: ", in the time of X"}


def write(folder: Folder, path: Path, command: str) -> None:
    """Write the report of what has finished, and its figure; nothing where nothing has."""
    found = rows(folder)
    if not found:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix(".png")
    for target, content in ((picture, png(found)), (path, page(folder, found, picture.name, command).encode())):
        with whole(target) as place:
            place.write_bytes(content)


def page(folder: Folder, found: Sequence[Row], picture: str, command: str) -> str:
    """The page, with figures of finished runs only."""
    plan, done = folder.plan, folder.all_finished()
    finished = f"All {len(done)} runs have finished."
    if len(done) < len(plan.runs):
        finished = f"**{len(done)} of {len(plan.runs)} runs have finished**; the figures below are of these."
    images, epoch = done[0].test_images, done[0].images // done[0].epochs
    sections = [
        f"# {plan.heading.title}: E(X) against X",
        f"{plan.heading.about} {_scale(folder)}{finished}",
        _accuracy(found),
        f"± is the standard deviation over seeds. An epoch has {epoch:,} training images. Accuracy is that of the last"
        f" epoch, on {images:,} test images."
        " *Mirrored* is the accuracy on the same images mirrored, *changed* how many of them then get another class.",
        _timing(found),
        "\n".join(_findings(found)),
        f"![Accuracy over training time]({picture})",
        "Thin lines are the runs, epoch by epoch; marks are the means at the end, with the standard deviation over"
        " seeds. Time is counted as in the table.",
        "## Networks",
        _networks(found),
        "FLOPs follow the paper (multiply-adds and elementwise work): *forward* in millions for one image, *run* in"
        " units of 10^12 for the forward and backward passes of a whole run.",
        "## Every run",
        _every_run(done),
        "Seconds are those that passed during the run, beside whatever else the machine did; *in all* with compiling,"
        " tests and checkpoints, from the last resumption on.",
        "## Machine",
        "\n\n".join(dict.fromkeys(describe(run.machine) for run in done)),
        "## Commands",
        f"```\n{command}\n```",
        "runs these:",
        "```\n" + "\n".join(run.command for run in done) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _scale(folder: Folder) -> str:
    scale = folder.settings.scale
    return "" if scale == 1 else f"Epochs are {scale:g} times those of the recipes. "


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first columns are aligned to the left, the others to the right."""
    marks = ["---" if column < left else "--:" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, marks, *lines))


def _accuracy(found: Sequence[Row]) -> str:
    lines = [
        [
            row.model,
            f"{row.epochs}{LENGTH[row.arm]}",
            str(len(row.runs)),
            row.top1.write(),
            row.spread(lambda run: run.mirrored_top1).write(),
            row.spread(lambda run: run.changed).write(".0f"),
            minutes(row.seconds),
            f"{row.speed:.0f}",
        ]
        for row in found
    ]
    heads = ("network", "epochs", "seeds", "top-1 %", "mirrored %", "changed", "training time", "images/s")
    return _table(heads, lines, left=2)


def _timing(found: Sequence[Row]) -> str:
    """How the times came about."""
    paces = {row.pair.name: row.pace for row in found}
    gains = "; ".join(f"{name} {p.speedup:.2f} [{p.low:.2f}, {p.high:.2f}]" for name, p in paces.items())
    rounds, threads = ({getattr(pace, name) for pace in paces.values()} for name in ("rounds", "threads"))
    return (
        "Images/s were measured before the runs: X and E(X) trained in turn in one process with"
        f" {_one_of(threads)} threads, {STEPS} steps each in each of {_one_of(rounds)} rounds; reading and augmenting"
        " images is included, compiling, tests and checkpoints are not. They are medians, and training time is a run's"
        " images over them, so that neither depends on what else the machine did during a run. E(X) over X, with 95 %"
        f" intervals: {gains}."
    )


def _one_of(values: set[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))


def _findings(found: Sequence[Row]) -> Iterator[str]:
    """E(X) against X in one line per pair and arm, without a verdict."""
    for row in found:
        other = next((x for x in found if x.pair == row.pair and x.arm is Arm.ORDINARY), None)
        gain = row.gain(other) if other is not None else None
        if row.arm is Arm.ORDINARY or other is None or gain is None:
            continue
        more = "" if gain.deviation is None else f" (± {gain.deviation:.2f} over seeds)"
        yield (
            f"- {row.model}, {row.epochs} epochs{LENGTH[row.arm]}: top-1 {gain.mean:+.2f} points{more};"
            f" {row.speed / other.speed:.2f} times the images/s of {other.model},"
            f" {row.seconds / other.seconds:.2f} of its training time,"
            f" {row.training_flops / other.training_flops:.2f} of its FLOPs."
        )


def _networks(found: Sequence[Row]) -> str:
    shown = [row for row in found if row.arm is not Arm.LONGER]
    totals = {(row.pair, row.arm): row.training_flops for row in found}
    lines = []
    for row in shown:
        cost, recipe = row.cost, row.pair.content
        args = ", ".join(f"{name}={value}" for name, value in recipe.model_args.items())
        lines.append(
            [
                row.model,
                row.pair.name,
                args,
                digits(cost.parameters / 1e6),
                digits(cost.flops / 1e6),
                digits(totals[row.pair, row.arm] / 1e12),
            ]
        )
    heads = ("network", "recipe", "with", "parameters (M)", "FLOPs, forward (M)", "FLOPs, run (T)")
    return _table(heads, lines, left=3)


def _every_run(done: Sequence[Finished]) -> str:
    lines = [
        [
            found.run.name,
            str(found.epochs),
            f"{found.top1:.2f}",
            f"{found.mirrored_top1:.2f}",
            str(found.changed),
            f"{found.seconds:.1f}",
            f"{found.wall:.1f}",
        ]
        for found in done
    ]
    heads = ("run", "epochs", "top-1 %", "mirrored %", "changed", "seconds of training", "seconds in all")
    return _table(heads, lines)
