"""`flopping report`: what it prints, the folder it writes, and what it refuses."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import Result
from matplotlib.figure import Figure
from measurements import equivariant, ordinary
from test_figures import COSTS
from typer.testing import CliRunner

from flopping.bench import figures, report, tables
from flopping.bench.comparison import compare, figures_of
from flopping.bench.records import append
from flopping.bench.report import FILES, PAGE, build, write
from flopping_cli import app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    append(path, [ordinary(), equivariant()])
    return path


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting all networks takes seconds, and is tested elsewhere."""
    monkeypatch.setattr(figures, "paper_costs", lambda progress: COSTS)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures, where only their names matter."""
    monkeypatch.setattr(report, "accuracy_against_flops", Figure)
    monkeypatch.setattr(report, "flops_against_parameters", lambda costs: Figure())
    monkeypatch.setattr(report, "render", lambda figure, form: f"<svg>{form}</svg>".encode())


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def refusal(*arguments: str | Path) -> str:
    """The message in one line, without its frame."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_a_table_is_printed(file: Path) -> None:
    result = run(file)
    assert result.exit_code == 0, result.output
    assert "1.60 [1.50, 2.10]" in result.output
    assert "Only ratios within one run are comparable" in result.output
    assert run(file, "--format", "table").output == result.output


def test_other_formats_are_printed(file: Path) -> None:
    rows = compare([ordinary(), equivariant()])
    assert run(file, "--format", "markdown").output == tables.markdown(rows)
    assert run(file, "--format", "latex").output == tables.latex(rows)
    lines = run(file, "--format", "jsonl").output.splitlines()
    assert [json.loads(line) for line in lines] == [figures_of(row) for row in rows]


def test_several_files_are_one_report_and_a_file_counts_once(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.jsonl"
    append(other, [ordinary(model="resmlp_24_224", paper="ResMLP-S24")])
    printed = run(file, other, file, "--format", "jsonl").output
    assert [json.loads(line)["paper"] for line in printed.splitlines()] == ["ResMLP-S24", "ViT-B", "E(ViT-B)"]


def test_a_page_is_built_and_built_again(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    result = run(file, "-o", out)
    assert result.exit_code == 0, result.output
    assert str(out / PAGE) in result.output.replace("\n", "")
    assert sorted(os.listdir(out)) == sorted(FILES)
    first = {name: (out / name).read_bytes() for name in FILES}
    assert b"E(ViT-B)" in first[PAGE]
    assert first["table.md"].decode() == tables.markdown(compare([ordinary(), equivariant()]))
    assert b"\\toprule" in first["table.tex"]
    assert run(file, "-o", out).exit_code == 0
    assert {name: (out / name).read_bytes() for name in FILES} == first


@pytest.mark.usefixtures("undrawn")
def test_what_a_report_no_longer_has_is_removed(tmp_path: Path) -> None:
    write(tmp_path, build([ordinary(), equivariant()], COSTS))
    (tmp_path / "mine.txt").write_text("mine")
    write(tmp_path, build([ordinary()], COSTS))
    left = set(os.listdir(tmp_path))
    assert left == {*FILES, "mine.txt"} - {"gain.svg", "gain.png"}
    assert "No speed-up was measured" in (tmp_path / PAGE).read_text()


@pytest.mark.parametrize("name", [PAGE, "table.md", "gain.png"])
@pytest.mark.usefixtures("undrawn")
def test_files_of_others_are_kept_unless_forced(file: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (out / name).write_text("<html>my own</html>")
    message = refusal(file, "-o", out)
    assert name in message
    assert "--force" in message
    assert os.listdir(out) == [name]
    assert (out / name).read_text() == "<html>my own</html>"
    assert run(file, "-o", out, "--force").exit_code == 0
    assert sorted(os.listdir(out)) == sorted(FILES)


@pytest.mark.usefixtures("undrawn")
def test_a_failed_write_leaves_the_old_page(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report"
    assert run(file, "-o", out).exit_code == 0
    before = (out / PAGE).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    result = run(file, "-o", out)
    assert result.exit_code == 1, result.output
    assert "was not written: No space left on device. Free some space" in result.stderr
    assert (out / PAGE).read_bytes() == before
    assert sorted(os.listdir(out)) == sorted(FILES)


BAD = {
    "not JSON": (b"hello\n", "line 1: no JSON"),
    "foreign": (b'{"a": 1}\n', "line 1: JSON, but no measurement of flopping"),
    "cut off": (b'{"format": "flopping-bench-1", "mod', "line 1: no JSON"),
    "binary": (b"\x00\xff\xfe", "isn't a text file"),
    "empty": (b"", "has no records"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_bad_files_are_refused_and_nothing_is_written(file: Path, tmp_path: Path, content: bytes, words: str) -> None:
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(content)
    for more in ((), ("-o", tmp_path / "out")):
        message = refusal(file, bad, *more)
        assert words in message
        assert "b.jsonl" in message.replace(" ", "")
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not exist" in refusal(tmp_path / "none.jsonl")
    assert "is a directory" in refusal(tmp_path)
    assert "FILES" in refusal()
    assert "'html'" in refusal(file, "--format", "html")
    assert "choose one" in refusal(file, "--format", "latex", "-o", tmp_path / "out")
    assert "--force is for the folder" in refusal(file, "--force")
    assert "is a file: a report is a folder" in refusal(file, "-o", file)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(figures, "paper_costs", lambda progress: pytest.fail("counted for figures that can't be drawn"))
    assert "pip install 'flopping[plot]'" in refusal(file, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert run(file).exit_code == 0  # tables need no matplotlib
