"""Every block of the README and the docs does what it says: code and shell lines run, data parses, links lead on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_commands import mask, parse, run_line
from support.doc_pages import CLIENTS, PAGES, RECORDS, ROOT, SHELL, Block, Command, blocks, commands, name_of
from support.training_runs import few_training_images

from flopping.training.schema import parse_yaml

READ = {"yaml": parse_yaml, "json": json.loads, "python": lambda text: compile(text, "block", "exec")}
"""Languages of blocks that are parsed here."""
SHOWN = ("text", "cpp", "c++", "javascript", "html", "bibtex")
"""Languages of blocks that are only shown: nothing here can read them."""
REPEATING = {"README.md", "docs/doctor.md", "docs/measuring.md", "docs/paper.md", "docs/results/README.md"}
"""Pages whose commands are run for other pages, or by the tests of the command."""
SHELL_PAGES = [page for page in PAGES if any(commands(block) for block in blocks(page))]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in CLIENTS], ids=name_of)
def test_python_blocks_run(page: Path) -> None:
    """The blocks of a page follow one another, as a reader would type them."""
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.language == "python":
            with few_training_images(1000):
                exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page", [page for page in SHELL_PAGES if page.name in RECORDS or name_of(page) in REPEATING], ids=name_of
)
def test_shell_lines_that_do_not_run_are_parsed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (command for block in blocks(page) for command in commands(block)):
        for word in command.words:
            if word.endswith(".jsonl") and "*" not in word:
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).touch()
        if command.words[0] == "flopping" and "*" not in command.text:
            parse(command.words)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if name_of(page) in REPEATING else [])
        for page in SHELL_PAGES
        if page.name not in RECORDS
    ],
    ids=name_of,
)
def test_shell_lines_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, in a folder that has what the page names; doc_commands.py says what is made small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for block in blocks(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        for command in commands(block):
            ran = run_line(command, tmp_path)
            assert ran.code == command.code, f"{command.place}: exit code {ran.code} of: {command.text}\n{ran.out}"
            missing = [line for line in command.output if ran.whole and mask(line) not in mask(ran.out)]
            assert not missing, f"{command.place}: {missing} is not in the output:\n{ran.out}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    for block in blocks(page):
        if block.language in READ:
            READ[block.language](block.text)
        elif block.language not in (*SHELL, *SHOWN):
            assert commands(block), f"{block.place} is in no language that the tests know: {block.language!r}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("flopping trian deit3_small", "'trian'"),
        ("flopping demo", "no rule for 'flopping demo'"),
        ("make tset", "no target is called tset"),
        ("pip install 'flopping[figures]'", "no extra {'figures'}"),
        ("python examples/detection.py", "no file 'examples/detection.py'"),
    ],
)
def test_a_line_without_a_rule_fails(line: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=re.escape(problem)):
        run_line(Command("here", line), tmp_path)


@pytest.mark.parametrize("line", ["flopping recipes deit3_small epohcs=3", "flopping count 'E(ViT-Q)'"])
def test_a_line_that_is_refused_has_another_exit_code(line: str, tmp_path: Path) -> None:
    assert run_line(Command("here", line), tmp_path).code == 2


def test_shell_lines_are_found() -> None:
    def found(text: str, language: str = "") -> list[tuple[str, tuple[str, ...]]]:
        return [(c.text, c.output) for c in commands(Block(ROOT / "README.md", 1, language, text))]

    assert found("$ a b \\\n    c\nshown\n$ d\n", "console") == [("a b      c", ("shown",)), ("d", ())]
    assert found("flopping x  # why\nanother y\n") == [("flopping x  # why", ()), ("another y", ())]
    assert found("a drawing\n") == []
    assert found("# why\nany thing\n", "sh") == [("any thing", ())]
    assert found("flopping = 1\n", "python") == []
    refused = Command("", 'a "b c"  # exit code 1: refused')
    assert (refused.words, refused.code) == (["a", "b c"], 1)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_core_is_read_in_fifteen_minutes() -> None:
    """At some 230 words a minute."""
    core = ["docs/idea.md", "docs/building.md", "docs/training.md"]  # in README's order
    assert 2500 < sum(len((ROOT / page).read_text(encoding="utf-8").split()) for page in core) < 3600


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Strict: a page that the navigation leaves out, a link or an anchor that leads nowhere, an odd docstring."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {path.relative_to(tmp_path / "site").as_posix(): path for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "idea.html", "api/nn.html", "results/index.html", "results/table.html"} <= set(pages)
    assert (tmp_path / "site" / "files" / "examples" / "segmentation.py").is_file()
    assert "TransformerBlock" in pages["api/nn.html"].read_text(encoding="utf-8")
    fetched = r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\" >]+)"
    for name, path in pages.items():
        assert not re.findall(fetched, path.read_text(encoding="utf-8")), f"{name} fetches something from elsewhere"
