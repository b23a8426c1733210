"""The table of rooms in docs/architecture.md is true: every module stands there, and imports go up only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms() -> list[str]:
    """Paths of the table, from top to bottom; a folder ends with a slash."""
    table = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
    found = []
    for cell in table:
        folder = ""
        for name in re.findall(r"`([^`]+)`", cell):
            folder = name.rpartition("/")[0] if "/" in name else folder
            found.append(name if "/" in name or not folder else f"{folder}/{name}")
    return found


def room_of(path: str) -> int:
    """The row of a module: its own, or that of its folder."""
    names = rooms()
    fitting = [name for name in names if path == name or (name.endswith("/") and path.startswith(name))]
    assert fitting, f"{path} has no room in docs/architecture.md"
    return names.index(max(fitting, key=len))


def modules() -> dict[str, Path]:
    """By their names in the table: those of the library without its name."""
    paths = [*(ROOT / "flopping").rglob("*.py"), *(ROOT / "flopping_cli").rglob("*.py")]
    files = {path.relative_to(ROOT).as_posix().removeprefix("flopping/"): path for path in paths}
    return {name: path for name, path in files.items() if not name.endswith(("__init__.py", "__main__.py"))}


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports when it is loaded."""
    known = set(modules())
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flopping"):
            base = (node.module or "").removeprefix("flopping.").replace(".", "/")
            candidates = [f"{base}.py", *(f"{base}/{alias.name}.py".lstrip("/") for alias in node.names)]
            found |= {name for name in candidates if name in known}
    return found


def test_imports_go_up_the_table() -> None:
    wrong = []
    for name, path in modules().items():
        for other in imported(path):
            if room_of(other) > room_of(name):
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_every_room_exists() -> None:
    for name in rooms():
        assert (ROOT / "flopping" / name).exists() or (ROOT / name).exists(), name
