"""`flopping convert reference`: the file it writes, the line of Python that it shows, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.golden import HINTS, golden_file
from support.reference_format import to_reference
from typer.testing import CliRunner, Result

from flopping import load_reference
from flopping.models import ConvNeXt, VisionTransformer
from flopping.testing import randomize_
from flopping_cli import app


def convert(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["convert", "reference", *map(str, arguments)], env={"COLUMNS": "1000"})


def options(hints: dict[str, Any]) -> list[str]:
    return [part for key, value in hints.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def saved(path: Path) -> tuple[Path, torch.nn.Module]:
    """A checkpoint of a small network, of a wide grid of tokens, and the network."""
    small = {"img_size": (16, 48), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = randomize_(VisionTransformer(**small)).eval()
    torch.save(to_reference(model), path)
    return path, model


def load_by(line: str) -> torch.nn.Module:
    model: torch.nn.Module = eval(line, {"timm": timm}).eval()
    return model


@pytest.mark.parametrize("name", sorted(HINTS))
@torch.no_grad()
def test_the_line_of_python_loads_the_same_network(name: str, tmp_path: Path) -> None:
    source, out = golden_file(name), tmp_path / 'it\'s "here".safetensors'
    result = convert(source, "-o", out, *options(HINTS[name]))
    assert result.exit_code == 0, result.output
    x = torch.randn(2, 3, 64, 64)
    expected = load_reference(source, **HINTS[name]).eval()(x)
    assert torch.equal(load_by(result.stdout.splitlines()[-1])(x), expected)
    with safe_open(out, "pt") as file:
        stored = file.metadata()
    again = timm.create_model(stored["architecture"], **json.loads(stored["args"]), checkpoint_path=out).eval()
    assert torch.equal(again(x), expected)


@torch.no_grad()
def test_sizes_that_shapes_do_not_tell(tmp_path: Path) -> None:
    source, model = saved(tmp_path / "a.pth")
    result = convert(source, "-o", tmp_path / "a.safetensors", "--num-heads", "2", "--img-size", "16,48")
    assert result.exit_code == 0, result.output
    x = torch.randn(2, 3, 16, 48)
    torch.testing.assert_close(load_by(result.stdout.splitlines()[-1])(x), model(x))


def test_a_network_of_the_paper_is_named(tmp_path: Path) -> None:
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file(to_reference(timm.create_model("convnext_flop_iso_small", num_classes=5)), source)
    result = convert(source, "-o", out)
    assert result.stdout.splitlines() == [
        "E(ConvNeXt-S (iso.)), registered as convnext_flop_iso_small with num_classes=5.",
        "It is loaded, after `import flopping, timm`, by:",
        f'timm.create_model("convnext_flop_iso_small", checkpoint_path="{out}", num_classes=5)',
    ]


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file(to_reference(ConvNeXt(depths=(1,), dims=(8,))), source)
    out.write_bytes(b"precious")
    refused = convert(source, "-o", out)
    assert refused.exit_code == 2
    assert "exists; overwrite=True (--force) replaces it" in refused.output
    assert out.read_bytes() == b"precious"
    assert convert(tmp_path / "none.pth", "-o", out, "--force").exit_code == 2
    assert out.read_bytes() == b"precious"
    assert convert(source, "-o", out, "--force").exit_code == 0
    assert "stem.0.proj.even.weight" in safe_open(out, "pt").keys()  # noqa: SIM118
    assert sorted(tmp_path.iterdir()) == [source, out]


REFUSED = {
    "no heads": (["--img-size", "16,48"], "say num_heads="),
    "no number": (["--img-size", "16x48"], "--img-size is one positive number or two"),
    "three numbers": (["--img-size", "16,48,3"], "--img-size is one positive number or two"),
    "another handoff": (["--handoff", "invariant"], "'hybrid', 'abs'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    arguments, message = REFUSED[name]
    source, _ = saved(tmp_path / "a.pth")
    result = convert(source, "-o", tmp_path / "a.safetensors", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == [source]
