"""What stands in the README and the docs: blocks of code, and the shell lines in them with the output they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = {"cifar10.md", "cifar10_resnet.md", "rotations.md"}
"""Pages that a command writes, with the commands that made them: these are parsed, not run again."""
CLIENTS = {"clients.md"}
"""Pages whose Python blocks need packages that .venv does not have: `make clients` runs them."""
PROGRAMS = ("flopping", "make", "torchrun", "pip", "sbatch", "python")
SHELL = ("console", "sh", "bash", "shell")
_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)


_VARIABLES = re.compile(r"^(?:[A-Z_]+=\S* +)+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language ("" where none is given), and what is in it."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that it is: a block of Python may begin with a comment that says so."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text) if self.language == "python" else None
        return None if found is None else found[1]


@dataclass(frozen=True)
class Command:
    """A shell line, with what the page shows below it."""

    place: str
    text: str
    output: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """As a shell would take it apart: without its comment, and without variables that are set for it.

        |, < and > are words of their own.
        """
        lexer = shlex.shlex(_VARIABLES.sub("", self.text), posix=True, punctuation_chars="|<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        return list(lexer)

    @property
    def code(self) -> int:
        """The exit code that its comment announces; else it has to succeed."""
        found = re.search(r"#.*\bexit code (\d+)", self.text)
        return 0 if found is None else int(found[1])


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Block(page, text[: match.start()].count("\n") + 1, match["language"], match["text"])


def commands(block: Block) -> list[Command]:
    """The shell lines of a block.

    Where lines begin with "$ ", these are commands and all others output. Else all lines are commands of a block that
    says it is shell code, or says nothing and has a line that begins with the name of a program of ours.
    """
    if block.language not in ("", "text", *SHELL):
        return []
    lines = [(block.line + 1 + at, line) for at, line in enumerate(block.text.replace("\\\n", "\\\0").split("\n"))]
    lines = [(number, line.replace("\\\0", " ")) for number, line in lines if line.strip()]
    page = name_of(block.page)
    if any(line.startswith("$ ") for _, line in lines):
        found: list[Command] = []
        for number, line in lines:
            if line.startswith("$ "):
                found.append(Command(f"{page}:{number}", line[2:].strip()))
            elif found:
                found[-1] = Command(found[-1].place, found[-1].text, (*found[-1].output, line))
        return found
    if block.language not in SHELL and not any(_VARIABLES.sub("", line).split()[0] in PROGRAMS for _, line in lines):
        return []
    return [Command(f"{page}:{number}", line.strip()) for number, line in lines if not line.startswith("#")]
