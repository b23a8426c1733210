"""Records survive their file, and what isn't a record is refused with its line."""

import json
import re
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.measurements import MACHINE, RECORD, ordinary

from flopping.cost.records import MODES, TASKS, Memory, Record, Setting, append, read, to_line
from flopping.errors import UsageError

LINE = to_line(RECORD)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
MAYBE = st.none() | TEXT
RECORDS = st.builds(
    replace,
    st.just(RECORD),
    model=TEXT,
    paper=MAYBE,
    setting=st.builds(
        Setting, st.sampled_from(sorted(MODES)), st.sampled_from(TASKS), TEXT, TEXT, st.integers(1, 512), st.just(2)
    ),
    input_size=st.lists(st.integers(1, 1024), max_size=4).map(tuple),
    params=st.integers(0, 10**12),
    flops=st.none() | st.floats(0, 1e15),
    seconds=st.lists(st.floats(1e-9, 1e6), max_size=5).map(tuple),
    memory=st.none() | st.builds(Memory, st.integers(0, 10**12), st.none() | st.integers(0, 10**12)),
    problem=MAYBE,
    machine=st.builds(replace, st.just(MACHINE), gpu=MAYBE, versions=st.dictionaries(TEXT, TEXT)),
)


@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_records_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("records") / "a.jsonl"
    append(path, records[:1])
    append(path, records[1:])
    assert read(path) == records
    assert path.read_text().count("\n") == len(records)
    path.write_bytes(path.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n\n"))
    append(path, records[:1])
    assert read(path) == [*records, records[0]]


def changed(key: str, *value: object) -> str:
    """The line of a record with another value, or none, at `a` or `a.b`."""
    found = json.loads(LINE)
    *outer, name = key.split(".")
    inner = found[outer[0]] if outer else found
    inner.pop(name, None)
    inner |= dict(zip([name], value, strict=False))
    return json.dumps(found)


BAD = {
    "no JSON": ("once upon a time", "Invalid JSON"),
    "another version": (changed("format", "flopping-bench-9"), "got 'flopping-bench-9'"),
    **{f"no {key}": (changed(key), f"{key}: ") for key in ("format", "params", "setting.batch", "machine.gpu")},
    "an unknown key": (changed("colour", "red"), "colour: "),
    "a float that overflows": (changed("flops", 1.5).replace("1.5", "1e999"), "flops: "),
    "text for a number": (changed("params", "many"), "got 'many'"),
    "a part of a setting": (changed("setting.batch", 1.5), "setting.batch: "),
    "another mode": (changed("setting.mode", "quick"), "setting.mode: "),
    "no time": (changed("seconds", [0.0]), "seconds.0: "),
    "nested without end": ("[" * 100_000, "Invalid JSON"),
    "cut off": (LINE[:300], "Invalid JSON"),
}


@pytest.mark.parametrize(("line", "words"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{LINE}\n\n{line}")
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}, line 3: ")
    assert len(str(refused.value)) < len(str(path)) + 350


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "binary": (lambda path: path.write_bytes(b"\x89PNG\r\n\xff\xfe"), "isn't a text file"),
    "empty": (lambda path: path.touch(), "has no records"),
    "a directory": (lambda path: path.mkdir(), "Is a directory"),
}


@pytest.mark.parametrize(("make", "words"), FILES.values(), ids=FILES)
def test_a_bad_file_is_named(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "a.jsonl"
    make(path)
    with pytest.raises(UsageError, match=words) as refused:
        read(path)
    assert str(path) in str(refused.value)


def test_our_results_are_read() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    assert all(read(path) for path in folder.glob("*.jsonl"))


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A record without a line; and a limit on the size of files, which stops a write midway, as a full disk does."""
    path = tmp_path / "a.jsonl"
    append(path, [RECORD])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        append(path, [RECORD, ordinary(noise=float("nan"))])
    assert path.read_bytes() == before
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, old[1]))
    try:
        with pytest.raises(OSError, match="only 10 of"):
            append(path, [RECORD])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
