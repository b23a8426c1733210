"""Records survive their file, and what isn't a record is refused with its line."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurements import MACHINE, RECORD, equivariant, ordinary

from flopping.bench.records import (
    FORMAT,
    MODES,
    TASKS,
    Memory,
    Record,
    Setting,
    append,
    latest,
    read,
    to_line,
)

LINE = to_line(RECORD)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
POSITIVE = st.floats(1e-9, 1e6)
AMOUNT = st.floats(0, 1e15)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


RECORDS = st.builds(
    Record,
    model=TEXT,
    paper=maybe(TEXT),
    baseline=maybe(TEXT),
    setting=st.builds(
        Setting, st.sampled_from(MODES), st.sampled_from(TASKS), TEXT, TEXT, st.integers(1, 512), st.integers(1, 64)
    ),
    input_size=st.lists(st.integers(1, 1024), max_size=4).map(tuple),
    params=st.integers(0, 10**12),
    flops=maybe(AMOUNT),
    macs=maybe(AMOUNT),
    seconds=st.lists(POSITIVE, max_size=5).map(tuple),
    run=TEXT,
    warmup=st.integers(0, 100),
    compile_seconds=maybe(AMOUNT),
    memory=maybe(st.builds(Memory, st.integers(0, 10**12), maybe(st.integers(0, 10**12)))),
    noise=maybe(AMOUNT),
    problem=maybe(TEXT),
    machine=st.builds(
        replace,
        st.just(MACHINE),
        processor=TEXT,
        gpu=maybe(TEXT),
        versions=st.dictionaries(TEXT, TEXT),
        load=maybe(AMOUNT),
    ),
    command=TEXT,
    time=TEXT,
)


@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_records_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("records") / "a.jsonl"
    append(path, records[:1])
    append(path, records[1:])
    assert read(path) == records
    assert path.read_text().count("\n") == len(records)


def test_a_line_may_end_as_on_other_systems_and_be_followed_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(f"{LINE}\r\n\n  \n{LINE}".encode())
    assert read(path) == [RECORD, RECORD]


def changed(key: str, value: object) -> str:
    """The line of a record with another value at `a` or `a.b`."""
    found = json.loads(LINE)
    *outer, name = key.split(".")
    (found[outer[0]] if outer else found)[name] = value
    return json.dumps(found)


def without(key: str) -> str:
    found = json.loads(LINE)
    del found[key]
    return json.dumps(found)


BAD = {
    "no JSON": ("once upon a time", "no JSON (Expecting value, at character 1)"),
    "a number": ("17", "JSON, but no measurement of flopping"),
    "a list": ("[1, 2]", "no measurement of flopping"),
    "foreign JSON": ('{"model": "resnet50", "top1": 76.1}', "no measurement of flopping"),
    "another version": (changed("format", "flopping-bench-9"), f"this is {FORMAT}, got 'flopping-bench-9'"),
    "no format": (changed("format", None), f"this is {FORMAT}, got None"),
    "a missing key": (without("seconds"), "lacks ['seconds']"),
    "an unknown key": (changed("colour", "red"), "has ['colour']"),
    "NaN": (LINE.replace("0.4,", "NaN,"), "NaN is no number in JSON"),
    "infinity": (changed("flops", 1e300).replace("1e+300", "-Infinity"), "-Infinity is no number"),
    "too large for a float": (changed("flops", 10**400), "flops is 1000"),
    "a float that overflows": (
        changed("flops", 1.5).replace("1.5", "1e999"),
        "flops is inf, which isn't of type float",
    ),
    "text for a number": (changed("params", "many"), "params is 'many', which isn't of type int"),
    "a number for text": (changed("model", 3), "model is 3, which isn't of type str"),
    "a truth for a number": (changed("params", True), "params is True, which isn't of type int"),
    "a truth for a float": (changed("noise", False), "noise is False, which isn't of type float"),
    "none where none may be": (changed("params", None), "params is None"),
    "a part of a list": (changed("seconds", [0.1, "0.2"]), "seconds is '0.2'"),
    "no object": (changed("setting", "fast"), "setting is 'fast', which isn't an object"),
    "a part of a setting": (changed("setting.batch", 1.5), "batch is 1.5"),
    "a part of a mapping": (changed("machine.versions", {"torch": 2}), "versions.torch is 2"),
    "another mode": (changed("setting.mode", "quick"), "setting.mode is 'quick', which isn't one of ('eager',"),
    "another task": (changed("setting.task", "sleep"), "setting.task is 'sleep', which isn't one of"),
    "no images": (changed("setting.batch", 0), "setting.batch is 0, which isn't a positive number"),
    "no time": (changed("seconds", [0.0]), "seconds is (0.0,), which isn't positive numbers"),
    "less than nothing": (changed("params", -1), "params is -1, which isn't zero or a positive number"),
    "fewer FLOPs than none": (changed("flops", -1.0), "flops is -1.0, which isn't zero"),
    "memory below zero": (changed("memory.peak", -5), "memory.peak is -5, which isn't zero"),
    "half a character": (changed("model", "\ud800"), r"model is '\ud800', which isn't of type str"),
    "half a character in a key": (changed("machine.flags", {"\ud800": "1"}), r"flags is '\ud800'"),
    "nested without end": ("[" * 100_000, "no JSON"),
    "too many digits": (LINE.replace("86600000", "9" * 5000), "no JSON"),
    "cut off": (LINE[:300], "(the file ends within this line; without the line, the others can be read)"),
}


@pytest.mark.parametrize(("line", "words"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{LINE}\n\n{line}")
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}, line 3: ")
    assert len(str(refused.value)) < len(str(path)) + 350


def test_only_a_record_of_ours_that_ends_the_file_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, words in ((f"{LINE[:300]}\n", "no JSON"), ('{"model"', "no JSON"), (without("run"), "lacks")):
        path.write_text(text)
        with pytest.raises(ValueError, match=words) as refused:
            read(path)
        assert "ends within" not in str(refused.value)


FILES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "binary": (
        lambda path: path.write_bytes(b"\x89PNG\r\n\xff\xfe"),
        ValueError,
        "isn't a text file (byte 0 is no UTF-8)",
    ),
    "empty": (lambda path: path.touch(), ValueError, "has no records"),
    "blank lines": (lambda path: path.write_text("\n \n\n"), ValueError, "has no records"),
    "missing": (lambda path: None, FileNotFoundError, "No such file"),
    "a directory": (lambda path: path.mkdir(), IsADirectoryError, "Is a directory"),
}


@pytest.mark.parametrize(("make", "error", "words"), FILES.values(), ids=FILES)
def test_a_bad_file_is_named(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], words: str
) -> None:
    path = tmp_path / "a.jsonl"
    make(path)
    with pytest.raises(error, match=re.escape(words)) as refused:
        read(path)
    assert str(path) in str(refused.value)


def test_nothing_is_written_if_a_record_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, [RECORD])
    with pytest.raises(ValueError, match="JSON"):
        append(path, [RECORD, ordinary(noise=float("nan"))])
    assert read(path) == [RECORD]


def test_the_latest_is_the_last_that_is_whole() -> None:
    first, second = ordinary(run="1"), ordinary(run="2")
    cut_short = ordinary(run="3", seconds=(0.4,), problem="interrupted")
    failed = ordinary(run="4", seconds=(), problem="out of memory")
    assert latest([first, second]) == [second]
    assert latest([first, cut_short, failed]) == [first]
    assert latest([failed, cut_short]) == [cut_short]
    assert latest([cut_short, failed]) == [cut_short]
    assert latest([failed, replace(failed, run="5")]) == [replace(failed, run="5")]


@pytest.mark.parametrize(
    "other",
    [
        equivariant(),
        ordinary(setting=replace(RECORD.setting, dtype="bfloat16")),
        ordinary(input_size=(3, 384, 384)),
        ordinary(machine=replace(MACHINE, processor="Testor 9001")),
        ordinary(machine=replace(MACHINE, gpu="A100")),
        ordinary(machine=replace(MACHINE, cores=4)),
    ],
)
def test_what_differs_is_kept(other: Record) -> None:
    assert latest([RECORD, other]) == [RECORD, other]


def test_another_load_or_version_is_a_repetition() -> None:
    again = ordinary(machine=replace(MACHINE, load=3.0, versions={"torch": "3.0"}))
    assert latest([RECORD, again]) == [again]
