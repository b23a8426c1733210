"""What users get: the files in wheel and sdist, and a wheel that works away from the source tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import flopping
from flopping.training.schema import parse_yaml

ROOT = Path(__file__).parents[2]
DIST_INFO = f"flopping-{flopping.__version__}.dist-info"
DEPENDENCIES = {
    *("torch", "timm", "safetensors", "numpy", "pillow", "rich", "typer"),
    *("annotated-types", "jinja2", "pydantic", "ruamel-yaml"),
}
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml")

USE_IT = """
import flopping
from flopping import Layout, flop, nn, testing
from flopping.data import fashion

assert len(fashion.read_subset(train=False)[0]) == 2000
layout = Layout.regular(flop, 8)
testing.assert_equivariant(testing.randomize_(nn.Linear(layout, layout)), layout.random(5))
print(flopping.__file__)
print(flopping.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed; no variable of ours may lead it to the source tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files_in(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, so that a file that appears there during the tests can't make them fail."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "LICENSE", "Makefile", "constraints.txt", ".gitignore", *DOCUMENTS):
        shutil.copy(ROOT / name, copy)
    for name in ("flopping", "flopping_cli", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it, by their suffixes."""
    target = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source, cwd=source)
    return {path.suffix: path for path in target.iterdir()}


@pytest.fixture(scope="module")
def wheel(built: dict[str, Path]) -> Path:
    return built[".whl"]


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_bytes(files_in(wheel)[f"{DIST_INFO}/METADATA"])


def test_wheel_holds_the_package_and_nothing_else(source: Path, wheel: Path) -> None:
    """Data files too: an ignore pattern or a build setting that loses one shows only at the user's."""
    tree = {
        path.relative_to(source).as_posix()
        for package in ("flopping", "flopping_cli")
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    packed = set(files_in(wheel))
    assert wheel.name == f"flopping-{flopping.__version__}-py3-none-any.whl"
    assert {name for name in packed if not name.startswith(f"{DIST_INFO}/")} == tree
    assert {"flopping/__init__.py", "flopping/py.typed", "flopping/data/fashion_mnist/subset.npz"} <= tree


def test_wheel_holds_the_licences(wheel: Path, metadata: Message) -> None:
    """Ours, and that of the images."""
    packed = files_in(wheel)
    licences = ["LICENSE", "flopping/data/fashion_mnist/LICENSE"]
    assert metadata.get_all("License-File") == licences
    for name in licences:
        assert packed[f"{DIST_INFO}/licenses/{name}"] == (ROOT / name).read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"


def test_metadata(wheel: Path, metadata: Message) -> None:
    """Development tools stay optional; each dependency has a lower bound and leaves the newest version open."""
    assert (metadata["Name"], metadata["Version"]) == ("flopping", flopping.__version__)
    python = SpecifierSet(metadata["Requires-Python"])
    assert [version for version in ("3.9", "3.10", "3.11", "3.12", "3.13") if version not in python] == ["3.9"]
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    required = [requirement for requirement in requirements if requirement.marker is None]
    assert {requirement.name for requirement in required} == DEPENDENCIES
    assert {tuple(clause.operator for clause in requirement.specifier) for requirement in required} == {(">=",)}
    entry_points = ConfigParser()
    entry_points.read_string(files_in(wheel)[f"{DIST_INFO}/entry_points.txt"].decode())
    assert dict(entry_points["console_scripts"]) == {"flopping": "flopping_cli:app"}


def test_citation() -> None:
    """The paper, and this project at this version."""
    found = parse_yaml((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "preferred-citation"} <= set(found)
    assert (found["title"], found["version"]) == ("flopping", flopping.__version__)
    paper = found["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Bökman", "Nordström", "Kahl"]
    assert (paper["type"], paper["year"], paper["volume"]) == ("conference-paper", 2025, 267)
    assert f"## {flopping.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_sdist_holds_tests_and_documents(built: dict[str, Path], tmp_path: Path) -> None:
    shutil.unpack_archive(built[".gz"], tmp_path, filter="data")
    for name in ("tests/docs/test_package.py", *DOCUMENTS):
        assert (tmp_path / f"flopping-{flopping.__version__}" / name).is_file(), name


def test_the_wheel_works_away_from_the_source(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, with the dependencies of this interpreter; `make wheel-check` installs both in a new virtualenv."""
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {USE_IT}"
    file, version = run(sys.executable, "-c", script, cwd=tmp_path).split()
    assert Path(file).is_relative_to(tmp_path / "site")
    assert version == flopping.__version__
