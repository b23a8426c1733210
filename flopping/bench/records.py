"""What was measured, as JSON lines: one object per network and setting, with the machine that it was measured on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from sys import float_info
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from flopping.bench.machine import Machine
from flopping.bench.timing import Timing

FORMAT = "flopping-bench-1"
"""First key of every line: what it is, and which version of it."""
MODES = ("eager", "compiled", "compiled-frozen")
EXPORTED = "onnxruntime"
"""The mode of an exported network, which `flopping bench-export` measures."""
TASKS = ("inference", "training")


@dataclass(frozen=True)
class Setting:
    """How a network was run. Two measurements can be compared if their settings are equal."""

    mode: str = "compiled"
    """eager, compiled, compiled-frozen: compiled with its weights as constants; or onnxruntime: exported."""
    task: str = "inference"
    """inference, or training: forward, backward and a step of AdamW."""
    device: str = "cpu"
    dtype: str = "float32"
    """Others than float32 are autocast: weights stay in float32."""
    batch: int = 8
    threads: int = 1
    """Of the CPU."""

    def __str__(self) -> str:
        where = f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.task}, {self.mode}, {self.dtype}, batch {self.batch}, {where}"


@dataclass(frozen=True)
class Memory:
    """Bytes at the fullest moment of a run, in a process of its own."""

    peak: int
    """CUDA: of the allocator. CPU: weights, images and the optimiser's state, and by how much the resident set grew
    beyond them while the network ran."""
    resident: int | None
    """CPU: the largest resident set itself, with Python, torch and compiled code in it."""


@dataclass(frozen=True)
class Record:
    """A network in one setting: the seconds of every round, or the reason why there are none."""

    model: str
    """The registered name, or FILE.py:ATTRIBUTE."""
    paper: str | None
    """Its name in the paper."""
    baseline: str | None
    """The `model` that it is compared with."""
    setting: Setting
    input_size: tuple[int, ...]
    params: int
    flops: float | None
    """Per image, the paper's convention; of a training step if that is the task. None if an operation has no rule."""
    macs: float | None
    seconds: tuple[float, ...]
    """Per batch. The n-th value of all records of one run were measured side by side."""
    run: str
    """The same for all that ran interleaved in one process."""
    warmup: int
    compile_seconds: float | None
    """From the first call until the code was there, with an empty cache or what was in it."""
    memory: Memory | None
    noise: float | None
    """Inter-quartile range over median of a fixed matrix product that was timed in every round."""
    problem: str | None
    """Why there are no figures, or fewer than were asked for."""
    machine: Machine
    command: str
    time: str
    """When it began, UTC."""

    @property
    def name(self) -> str:
        """What to call it: as the paper does, where it does."""
        return self.paper or self.model

    @property
    def timing(self) -> Timing | None:
        return Timing(self.seconds) if self.seconds else None

    @property
    def throughput(self) -> float | None:
        """Images per second, at the median of the rounds."""
        return self.setting.batch / Timing(self.seconds).median if self.seconds else None


def to_line(record: Record) -> str:
    """One line of JSON, without the end of the line."""
    return json.dumps({"format": FORMAT, **asdict(record)}, allow_nan=False)


def append(path: Path, records: Iterable[Record]) -> None:
    """Add records to the end of a file; they are written whole, or the file stays as it was."""
    text = "".join(f"{to_line(record)}\n" for record in records)
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if size and path.read_bytes()[-1:] != b"\n":
            text = f"\n{text}"
        try:
            written = file.write(text.encode())
            if written != len(text.encode()):
                raise OSError(
                    f"{path}: only {written} of {len(text.encode())} bytes could be written, is the disk full?"
                )
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> list[Record]:
    """All records of a file. What isn't one is an error that names the file and the line."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} isn't a text file (byte {error.start} is no UTF-8): {_WANTED}") from error
    records = []
    lines = text.split("\n")  # splitlines() would also split at characters that may stand inside of JSON
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(from_line(line))
            except ValueError as error:
                cut = number == len(lines) and line.startswith('{"format"') and "no JSON" in str(error)
                hint = " (the file ends within this line; without the line, the others can be read)" if cut else ""
                raise ValueError(f"{path}, line {number}: {error}{hint}") from error
    if not records:
        raise ValueError(f"{path} has no records: {_WANTED}")
    return records


_LARGEST = float_info.max  # an integer of JSON may be larger than any float
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character: JSON can hold one, no file of text can
_WANTED = "a file that `flopping bench -o FILE` wrote is needed"


def from_line(line: str) -> Record:
    """A record from its line; what is missing, unknown or of another type is named."""
    try:
        found = json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as error:  # its own text counts lines too, from the start of this one
        raise ValueError(f"no JSON ({error.msg}, at character {error.colno}): {_WANTED}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error}): {_WANTED}") from error
    if not isinstance(found, dict) or "format" not in found:
        raise ValueError(f"JSON, but no measurement of flopping: {_WANTED}, got {_short(found)}")
    if found.pop("format") != FORMAT:
        raise ValueError(f"another version of the format: this is {FORMAT}, got {_short(json.loads(line)['format'])}")
    record: Record = _parse(Record, found, "the record")
    modes = (*MODES, EXPORTED)
    _require(record.setting.mode in modes, "setting.mode", modes, record.setting.mode)
    _require(record.setting.task in TASKS, "setting.task", TASKS, record.setting.task)
    _require(record.setting.batch > 0, "setting.batch", "a positive number", record.setting.batch)
    _require(all(s > 0 for s in record.seconds), "seconds", "positive numbers", record.seconds)
    counts = {key: getattr(record, key) for key in ("params", "flops", "macs", "warmup", "compile_seconds", "noise")}
    counts["memory.peak"] = None if record.memory is None else record.memory.peak
    for key, value in counts.items():
        _require(value is None or value >= 0, key, "zero or a positive number", value)
    return record


def _require(holds: bool, key: str, wanted: object, value: object) -> None:
    if not holds:
        raise ValueError(
            f"{key} is {_short(value)}, which isn't {wanted if isinstance(wanted, str) else 'one of'}"
            f"{'' if isinstance(wanted, str) else f' {wanted}'}"
        )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _parse(wanted: Any, value: Any, key: str) -> Any:
    """A value of the type that a field declares, built of plain JSON."""
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        inner = [option for option in get_args(wanted) if option is not type(None)]
        return None if value is None else _parse(inner[0], value, key)
    if isinstance(wanted, type) and issubclass(wanted, (Record, Setting, Memory, Machine)):
        if not isinstance(value, dict):
            raise ValueError(f"{key} is {_short(value)}, which isn't an object")
        names = [f.name for f in fields(wanted)]
        missing, unknown = [n for n in names if n not in value], [n for n in value if n not in names]
        if missing or unknown:
            raise ValueError(f"{key} lacks {missing or 'nothing'} and has {unknown or 'nothing'} that isn't known")
        hints = get_type_hints(wanted)
        return wanted(**{name: _parse(hints[name], value[name], name) for name in names})
    if origin is tuple and isinstance(value, list):
        return tuple(_parse(get_args(wanted)[0], item, key) for item in value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        names_are, values_are = get_args(wanted)
        return {_parse(names_are, n, key): _parse(values_are, item, f"{key}.{n}") for n, item in value.items()}
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    if wanted in (int, str) and type(value) is wanted and not (wanted is str and _SURROGATE.search(value)):
        return value
    raise ValueError(f"{key} is {_short(value)}, which isn't of type {getattr(wanted, '__name__', wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def latest(records: Sequence[Record]) -> list[Record]:
    """Of several records of one network in one setting on one machine, the one to show.

    That is the last that is whole, else the last that has some figures, else the last. Which record its ratio comes
    from is another question: always one of its own run.
    """
    found: dict[object, Record] = {}
    for record in records:
        machine = record.machine
        key = record.model, record.setting, record.input_size, machine.processor, machine.cores, machine.gpu
        if key not in found or _wholeness(record) >= _wholeness(found[key]):
            found[key] = record
    return list(found.values())


def _wholeness(record: Record) -> int:
    return 0 if not record.seconds else 1 if record.problem else 2
