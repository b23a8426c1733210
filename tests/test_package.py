"""What users get: the files in wheel and sdist, and a wheel that works away from the source tree."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import flopping
from flopping.training.fashion import file_names

ROOT = Path(__file__).parents[1]
DIST_INFO = f"flopping-{flopping.__version__}.dist-info"
DEPENDENCIES = {"torch", "timm", "safetensors", "numpy", "pillow", "pyyaml", "rich", "typer"}
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml")

USE_IT = """
import flopping
from flopping import Layout, flop, nn, testing
from flopping.training import fashion

assert len(fashion.embedded(train=False)) == 2000
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


def build(kind: str, source: Path, target: Path) -> Path:
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", target, source, cwd=source)
    (archive,) = target.iterdir()
    return archive


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
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_bytes(files_in(wheel)[f"{DIST_INFO}/METADATA"])


def test_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name == f"flopping-{flopping.__version__}-py3-none-any.whl"
    assert b"Root-Is-Purelib: true" in files_in(wheel)[f"{DIST_INFO}/WHEEL"]


def test_wheel_holds_the_package_and_nothing_else(source: Path, wheel: Path) -> None:
    """Data files too: an ignore pattern or a build setting that loses one shows only at the user's."""
    tree = {
        path.relative_to(source).as_posix()
        for package in ("flopping", "flopping_cli")
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    packed = set(files_in(wheel))
    assert {name for name in packed if not name.startswith(f"{DIST_INFO}/")} == tree
    assert {"flopping/__init__.py", "flopping/py.typed", "flopping/nn/linear.py"} <= tree
    assert {f"flopping/data/fashion_mnist/{name}.gz" for train in (True, False) for name in file_names(train)} <= tree


def test_wheel_holds_the_licences(wheel: Path, metadata: Message) -> None:
    """Ours, and that of the images."""
    packed = files_in(wheel)
    licences = ["LICENSE", "flopping/data/fashion_mnist/LICENSE"]
    assert metadata.get_all("License-File") == licences
    for name in licences:
        assert packed[f"{DIST_INFO}/licenses/{name}"] == (ROOT / name).read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"


def test_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("flopping", flopping.__version__)
    python = SpecifierSet(metadata["Requires-Python"])
    assert [version for version in ("3.9", "3.10", "3.11", "3.12", "3.13") if version not in python] == ["3.9"]


def test_metadata_dependencies(metadata: Message) -> None:
    """Development tools stay optional; each dependency has a lower bound and leaves the newest version open."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    required = [requirement for requirement in requirements if requirement.marker is None]
    assert {requirement.name for requirement in required} == DEPENDENCIES
    assert {tuple(clause.operator for clause in requirement.specifier) for requirement in required} == {(">=",)}


def test_citation() -> None:
    """The paper, and this project at this version."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "preferred-citation"} <= set(found)
    assert (found["title"], found["version"]) == ("flopping", flopping.__version__)
    paper = found["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Bökman", "Nordström", "Kahl"]
    assert (paper["type"], paper["year"], paper["volume"]) == ("conference-paper", 2025, 267)
    assert f"## {flopping.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_entry_point(wheel: Path) -> None:
    entry_points = ConfigParser()
    entry_points.read_string(files_in(wheel)[f"{DIST_INFO}/entry_points.txt"].decode())
    assert dict(entry_points["console_scripts"]) == {"flopping": "flopping_cli:app"}


def test_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """RECORD lists each file with its hash: `pip install` of the sdist gives what the wheel gives."""
    sdist = build("sdist", source, tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / f"flopping-{flopping.__version__}"
    for name in ("tests/test_package.py", *DOCUMENTS):
        assert (unpacked / name).is_file(), name
    rebuilt = build("wheel", unpacked, tmp_path / "wheel")
    record = f"{DIST_INFO}/RECORD"
    assert set(files_in(rebuilt)[record].splitlines()) == set(files_in(wheel)[record].splitlines())


@pytest.fixture(scope="module")
def clean_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of a new virtualenv with the wheel in it.

    The dependencies are borrowed from the running interpreter by a .pth file. Python doesn't follow .pth files
    in a directory added that way, so our editable install stays out of sight. It's written last, else pip would
    find that install and take flopping for installed.
    """
    room = tmp_path_factory.mktemp("room")
    run(sys.executable, "-m", "venv", "venv", cwd=room)
    bin_dir = room / "venv" / "bin"
    run(bin_dir / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel, cwd=room)
    (site,) = (room / "venv").glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_dir


def test_installed_wheel_works(clean_bin: Path, tmp_path: Path) -> None:
    file, version = run(clean_bin / "python", "-c", USE_IT, cwd=tmp_path).split()
    assert Path(file).is_relative_to(clean_bin.parent)
    assert version == flopping.__version__


def test_installed_script_works(clean_bin: Path, tmp_path: Path) -> None:
    assert run(clean_bin / "flopping", "--version", cwd=tmp_path).strip() == f"flopping {flopping.__version__}"
