"""Measurements as JSON lines: one record per network and setting, with the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from flopping.cost.timing import Timing
from flopping.errors import UsageError, as_usage_error, pluralize
from flopping.files import STRICT, require_regular
from flopping.machine import Machine

FORMAT = "flopping-bench-1"
MODES = {
    "eager": "torch's operators, one by one",
    "operations": "eager, with flopping.compile_operations()",
    "compiled": "torch.compile of the whole network",
    "blocks": "flopping.compile_blocks",
    "compiled-frozen": "compiled with the weights as constants",
    "reduce-overhead": "compiled; a forward pass is one CUDA graph, launched at once",
    "max-autotune": "compiled; kernels of matrix products are chosen by timing; on CUDA also one graph",
}
EXPORTED = "onnxruntime"
"""The mode of an exported network, `flopping bench --mode onnxruntime`."""
TASKS = ("inference", "training")
LARGEST = 2**28
"""Bytes of a file of records."""

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Setting:
    """How a network was run. Two measurements can be compared if their settings are equal."""

    __pydantic_config__ = STRICT

    mode: Annotated[str, Field(pattern=f"^({'|'.join((*MODES, EXPORTED))})$")]
    """One of `MODES`, or onnxruntime for an exported network."""
    task: Annotated[str, Field(pattern=f"^({'|'.join(TASKS)})$")]
    """inference; training: forward, backward and a step of AdamW."""
    device: str
    dtype: str
    """Others than float32 are autocast: weights stay in float32."""
    batch: Annotated[int, Field(ge=1)]
    threads: int

    def __str__(self) -> str:
        where = f"{self.device}, {pluralize(self.threads, 'thread')}"
        return f"{self.task}, {self.mode}, {self.dtype}, batch {self.batch}, {where}"


@dataclass(frozen=True)
class Memory:
    """Peak memory of a run in bytes, measured in a process of its own."""

    __pydantic_config__ = STRICT

    peak: Count
    """CUDA: the allocator's peak. CPU: weights, images and optimiser state, plus the growth of the resident set during
    the run."""
    resident: int | None
    """CPU: the largest resident set, with Python, torch and compiled code."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A network in one setting: the seconds of every round, or the reason why there are none."""

    __pydantic_config__ = STRICT

    format: Literal["flopping-bench-1"]
    model: str
    """The registered name, or FILE.py:ATTRIBUTE."""
    paper: str | None
    baseline: str | None
    setting: Setting
    input_size: tuple[int, ...]
    params: Count
    flops: Amount | None
    """Per image, in the paper's convention; of a training step if that is the task. None if unknown."""
    macs: Amount | None
    seconds: tuple[Annotated[float, Field(gt=0)], ...]
    """Per batch. The n-th values of all records of one run were measured side by side."""
    run: str
    """The same for all networks that ran interleaved in one process."""
    warmup: Count
    compile_seconds: Amount | None
    """How much longer the first call took than the second."""
    memory: Memory | None
    noise: Amount | None
    """Inter-quartile range over median of a fixed matrix product that was timed in every round."""
    problem: str | None
    """Why there are no figures, or fewer than were asked for."""
    machine: Machine
    command: str
    time: str
    """When the measurement began, in UTC."""

    @property
    def name(self) -> str:
        """The name in the paper if there is one, else the registered name."""
        return self.paper or self.model

    @property
    def timing(self) -> Timing | None:
        return Timing(self.seconds) if self.seconds else None

    @property
    def throughput(self) -> float | None:
        """Images per second, at the median of the rounds."""
        return self.setting.batch / Timing(self.seconds).median if self.seconds else None


def new_record(**known: Any) -> Record:
    """A record with these values, and no figures beside them."""
    values: dict[str, Any] = {field.name: None for field in fields(Record)}
    values |= {"format": FORMAT, "input_size": (), "params": 0, "seconds": (), "run": "", "warmup": 0}
    return Record(**values | known)


def to_line(record: Record) -> str:
    """One line of JSON, without the end of the line."""
    return json.dumps(asdict(record), allow_nan=False)


def append(path: Path, records: Iterable[Record]) -> None:
    """Add records to the end of a file; if not all of them can be written, the file stays as it was."""
    content = "".join(f"{to_line(record)}\n" for record in records).encode()
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if size and path.read_bytes()[-1:] != b"\n":
            content = b"\n" + content
        try:
            written = file.write(content)
            if written != len(content):
                raise OSError(f"{path}: only {written} of {len(content)} bytes could be written, is the disk full?")
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> list[Record]:
    """All records of a file. A `UsageError` names the file and the line that is not a record."""
    with as_usage_error(OSError), path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UsageError(f"{path} is longer than the {LARGEST:,} bytes that are read")
    with as_usage_error(UnicodeDecodeError, context=f"{path} isn't a text file"):
        lines = content.decode("utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            with as_usage_error(UsageError, context=f"{path}, line {number}"):
                records.append(from_line(line))
    if not records:
        raise UsageError(f"{path} has no records: a file that `flopping bench -o FILE` wrote is needed")
    return records


class RecordFile:
    """A file to which records are added one by one, or none. If one cannot be written, `report` says so: work goes on.

    A file that has other content than records, or cannot be written, is refused before the work begins.
    """

    def __init__(self, path: Path | None, report: Callable[[str], object] = print) -> None:
        self.path, self.report = path, report
        self.written, self.unwritten = 0, 0
        self.known: list[Record] = []
        if path is not None:
            require_regular(path)
            new = not path.exists()
            if not new and path.stat().st_size:
                self.known = read(path)
            with as_usage_error(OSError), path.open("a", encoding="utf-8"):
                pass
            if new:  # it comes with the first record; a link to it stays
                path.resolve().unlink()

    def add(self, record: Record) -> None:
        if self.path is not None:
            try:
                append(self.path, [record])
                self.written += 1
            except OSError as error:
                self.unwritten += 1
                self.report(f"A record could not be written to {self.path}: {error.strerror or error}")


def is_measured(record: Record, known: Iterable[Record]) -> bool:
    """Whether others have all figures of the same network and setting, on the same machine and versions."""

    def key(r: Record) -> tuple[object, ...]:
        machine = r.machine
        products = machine.flags.get("linear layers")
        return r.model, r.setting, machine.processor, machine.cores, machine.gpu, machine.versions, products

    return any(r.seconds and r.problem is None and key(r) == key(record) for r in known)


@cache
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def from_line(line: str) -> Record:
    """A record from its line; the error names a key that is missing, unknown or of another type."""
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "not a record of `flopping bench`"
        raise UsageError(f"{key}: {first['msg']}, got {repr(first['input'])[:60]}") from error
