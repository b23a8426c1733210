"""Files of weights: what is refused, that nothing in them runs, and that they are written whole or not at all."""

import argparse
import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.at_once import at_once

from flopping.checkpoints import read_weights, weight_files, write_weights
from flopping.errors import UsageError
from flopping.files import WriteError
from flopping.training.networks import load_checkpoint

WEIGHTS = {"a.weight": torch.arange(600.0).view(20, 30), "a.bias": torch.ones(3)}


class Malicious:
    """Unpickled as Python would, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return os.mkdir, (str(self.marker),)


def saved(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def half(path: Path) -> Path:
    return written(path, path.read_bytes()[: path.stat().st_size // 2])


def safe(path: Path) -> Path:
    save_file(WEIGHTS, path)
    return path


LEGACY = {"_use_new_zipfile_serialization": False}
REFUSED = {
    "missing": (lambda d: d / "a.pth", r"no file '.*a\.pth'"),
    "folder": (lambda d: d, r"no file"),
    "truncated safetensors": (lambda d: half(safe(d / "a.safetensors")), r"a\.safetensors' is no whole .safetensors"),
    "truncated": (lambda d: half(saved(d / "a.pth", WEIGHTS)), r"a\.pth' is no whole file of weights"),
    "truncated legacy": (lambda d: half(saved(d / "a.pth", WEIGHTS, **LEGACY)), r"no whole file of weights"),
    "empty safetensors": (lambda d: written(d / "a.safetensors", b""), r"is no whole .safetensors file"),
    "empty": (lambda d: written(d / "a.pth", b""), r"is no whole file of weights"),
    "text": (lambda d: written(d / "a.pth", b"version https://git-lfs"), r"is no whole file of weights"),
    "tensor": (lambda d: saved(d / "a.pth", torch.ones(3)), r"is no table of weights but a Tensor"),
    "other state": (lambda d: saved(d / "a.pth", {**WEIGHTS, "epoch": 3}), r"it holds 'epoch' \(int\)"),
    "no names": (lambda d: saved(d / "a.pth", {0: torch.ones(3)}), r"it holds 0 \(Tensor\)"),
    "nothing": (lambda d: saved(d / "a.pth", {}), r"a\.pth' holds no weights"),
    "nothing inside": (lambda d: saved(d / "a.pth", {"model": {}, "epoch": 3}), r"holds no weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        read_weights(make(tmp_path))


@pytest.mark.parametrize("name", [weight_files.CONFIG, weight_files.WEIGHTS])
def test_pipes_in_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    """Reading one waits for a writer."""
    (tmp_path / weight_files.CONFIG).write_text('{"architecture": "test_vit"}')
    safe(tmp_path / weight_files.WEIGHTS)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with at_once(), pytest.raises(UsageError, match=name):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
def test_code_in_a_file_is_not_run(options: dict[str, Any], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved(tmp_path / "a.pth", {**WEIGHTS, "b": Malicious(marker)}, **options)
    what = r"is no whole file of weights and plain data" if options else r"holds \w+\.mkdir, which is no data"
    with pytest.raises(UsageError, match=rf"a\.pth' {what}"):
        read_weights(path)
    assert not marker.exists()
    torch.load(path, weights_only=False)  # the file is as malicious as it claims
    assert marker.exists()


def test_damage_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    """Whatever byte is lost: a message, or another table of weights where the byte was a weight's."""
    whole = saved(tmp_path / "a.pth", WEIGHTS).read_bytes()
    refused = 0
    for place in range(0, 1200, 7):
        try:
            read_weights(written(tmp_path / "b.pth", whole[:place] + b"\xff" + whole[place + 1 :]))
        except UsageError:
            refused += 1
    assert refused > 20


FORMS = {
    "bare": WEIGHTS,
    "model": {"model": WEIGHTS, "epoch": 3, "optimizer": {"state": {0: torch.ones(2)}}},
    "state_dict": {"state_dict": WEIGHTS, "best": 0.5},
    "with the options of the run": {"model": WEIGHTS, "args": argparse.Namespace(lr=0.1, model="vit")},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
def test_weights_beside_other_state(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.testing.assert_close(read_weights(saved(tmp_path / "a.pth", FORMS[name], **options)), WEIGHTS)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_weights({**WEIGHTS, "turned": WEIGHTS["a.weight"].T}, path, {"architecture": "x"})
    assert torch.equal(read_weights(path)["turned"], WEIGHTS["a.weight"].T)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "architecture": "x"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.pth", "none/a.safetensors", "old.safetensors"])
def test_refused_outputs(name: str, tmp_path: Path) -> None:
    old = safe(tmp_path / "old.safetensors")
    before = old.read_bytes()
    with pytest.raises(UsageError, match=Path(name).name):
        write_weights({"b": torch.zeros(2)}, tmp_path / name)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_bytes() == before


def test_a_failing_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The system allows files of 4096 bytes only, as a full disk would."""
    path = safe(tmp_path / "a.safetensors")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(WriteError) as error:
            write_weights({"b": torch.zeros(5000)}, path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    write_weights({"b": torch.zeros(2)}, path, overwrite=True)
    assert list(read_weights(path)) == ["b"]
