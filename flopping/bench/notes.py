"""What stands around a table of measurements: its title, how its figures came about, and on what machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flopping.bench.comparison import Row, printable
from flopping.bench.machine import Machine

NOISY = 0.05
"""A quiet machine repeats a matrix product more closely than this; above it, a note warns."""

MEANING = (
    "X is an ordinary network; E(X), H(X) and I(X) are its equivariant, hybrid and invariant twins. Speed-up is"
    " throughput over that of X, round by round in the same run, so not quite the quotient of the columns, with a 95 %"
    " confidence interval; FLOPs X/E is how many times fewer. Efficiency is speed-up divided by FLOPs X/E: 1 if the"
    " clock saves all that the count saves.",
    "Networks of a run take turns. Times are per batch, and IQR is their inter-quartile range; parameters in millions,"
    " FLOPs (paper's convention) in G per image, peak memory in MB of 10^6 bytes: on a GPU the allocator's, on a CPU"
    " what a network holds and by how much the resident set grows while it runs. Compile s is from an empty cache, with"
    " others compiling beside it. The interval covers the noise within a run.",
    "Only ratios within one run are comparable: machines, days and settings differ. The paper's columns are of one"
    " A100-40GB at batch 64, compiled, in mixed precision.",
)
"""What the columns mean, whatever was measured."""


def title(rows: Sequence[Row]) -> str:
    """The setting that all rows share, and where."""
    setting, machine = rows[0].setting, rows[0].record.machine
    hardware = machine.gpu if setting.device.startswith("cuda") and machine.gpu else machine.processor
    text = f"{setting}, {hardware}"
    return printable(text[:1].upper() + text[1:])


def how(rows: Sequence[Row]) -> str:
    """How often things ran, how long it took at most, and how quiet the machine was."""
    records = [row.record for row in rows]
    rounds = _span([len(r.seconds) for r in records if r.seconds], "{:.0f}")
    if not rounds:
        return "Nothing could be timed."
    sizes = ", ".join(dict.fromkeys(" x ".join(map(str, r.input_size)) for r in records if r.input_size))
    warmup = _span([r.warmup for r in records if r.seconds], "{:.0f}")
    text = f"Medians of {rounds} rounds after {warmup} runs to warm up; input {sizes}."
    if rows[0].setting.task == "training":
        text += " FLOPs are of a training step: forward and backward."
    if rows[0].setting.batch == 1:
        text += " ms are the latency of one image."
    noise = [r.noise for r in records if r.noise is not None]
    if noise:
        text += f" Noise: a fixed matrix product, timed in every round, had an IQR of {_span(noise, '{:.1%}')}"
        text += " of its median."
    if noise and max(noise) > NOISY:
        text += f" The machine was busy (more than {NOISY:.0%}): distrust differences that are smaller than the noise."
    return text


def machines(rows: Iterable[Row]) -> list[str]:
    """Every machine that the rows were measured on; two that differ in a version or a switch are two."""
    return list(dict.fromkeys(describe(row.record.machine) for row in rows))


def describe(machine: Machine) -> str:
    """Hardware, versions and switches in one line."""
    hardware = f"{machine.processor}, {machine.cores} core{'s' if machine.cores != 1 else ''}"
    gpu = [machine.gpu] if machine.gpu else []
    system = [f"{machine.memory_gib:g} GiB", machine.system, f"Python {machine.python}"]
    versions = [f"{name} {version}" for name, version in machine.versions.items()]
    flags = [f"{name}={value}" for name, value in machine.flags.items()]
    return printable(", ".join((hardware, *gpu, *system, *versions, *flags)) + ".")


def problems(rows: Sequence[Row]) -> list[str]:
    """What went wrong, by row; `mark` gives the number of each."""
    lines: list[str] = []
    for row in rows:
        if row.problem is not None:
            what = "fewer figures than were asked for" if row.record.seconds else "no times"
            lines.append(f"[{len(lines) + 1}] {row.name} has {what}: {row.problem.rstrip('.')}.")
    return lines


def mark(row: Row, rows: Sequence[Row]) -> str:
    """The number of a row's problem, to be written behind its name."""
    troubled = [id(other) for other in rows if other.problem is not None]
    return f" [{troubled.index(id(row)) + 1}]" if id(row) in troubled else ""


def notes(rows: Sequence[Row]) -> list[str]:
    """Under the table of one setting: what went wrong, and how it was measured."""
    return [*problems(rows), how(rows)]


def closing(rows: Sequence[Row]) -> list[str]:
    """Under the last table: the machines, and what the columns mean."""
    return [*(f"Measured on {machine}" for machine in machines(rows)), *MEANING]


def _span(values: Sequence[float], form: str) -> str:
    """One value, or the smallest and the largest.

    >>> _span([20, 20], "{:.0f}"), _span([0.012, 0.034], "{:.1%}"), _span([], "{}")
    ('20', '1.2% to 3.4%', '')
    """
    ends = [form.format(end) for end in (min(values), max(values))] if values else []
    return " to ".join(dict.fromkeys(ends))
