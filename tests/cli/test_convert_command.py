"""`flopping convert reference`: what it writes, that everything takes it, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.golden import HINTS, golden_file
from support.image_files import image_folder, make_image
from support.reference_format import to_reference
from support.training_runs import TINY, call
from typer.testing import CliRunner, Result

from flopping import load_reference
from flopping.checkpoints import read_weights
from flopping.models import ConvNeXt, VisionTransformer
from flopping.testing import randomize_
from flopping_cli import app

WIDE = {"img_size": (16, 48), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
ANIMALS = {"cat": 4, "dog": 4}


def convert(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["convert", "reference", *map(str, arguments)], env={"COLUMNS": "1000"})


def options(hints: dict[str, Any]) -> list[str]:
    return [part for key, value in hints.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def saved(path: Path, **args: Any) -> tuple[Path, torch.nn.Module]:
    """A checkpoint of a small network, and the network; without arguments it has a wide grid of tokens."""
    model = randomize_(VisionTransformer(**{**WIDE, **args})).eval()
    torch.save(to_reference(model), path)
    return path, model


def load_by(line: str) -> torch.nn.Module:
    model: torch.nn.Module = eval(line, {"timm": timm}).eval()
    return model


@pytest.mark.parametrize("name", sorted(HINTS))
@pytest.mark.parametrize("out", ['it\'s "here".safetensors', "a folder"])
@torch.no_grad()
def test_the_line_of_python_loads_the_same_network(out: str, name: str, tmp_path: Path) -> None:
    source = golden_file(name)
    result = convert(source, "-o", tmp_path / out, *options(HINTS[name]))
    assert result.exit_code == 0, result.output
    x = torch.randn(2, 3, 64, 64)
    expected = load_reference(source, **HINTS[name]).eval()(x)
    assert torch.equal(load_by(result.stdout.splitlines()[-1])(x), expected)
    if out.endswith(".safetensors"):
        with safe_open(tmp_path / out, "pt") as file:
            stored = file.metadata()
        args = json.loads(stored["args"])
        again = timm.create_model(stored["architecture"], **args, checkpoint_path=tmp_path / out).eval()
        assert torch.equal(again(x), expected)


@pytest.mark.parametrize("out", ["a.safetensors", "a"])
@torch.no_grad()
def test_sizes_that_shapes_do_not_tell(out: str, tmp_path: Path) -> None:
    source, model = saved(tmp_path / "a.pth")
    result = convert(source, "-o", tmp_path / out, "--num-heads", "2", "--img-size", "16,48")
    assert result.exit_code == 0, result.output
    x = torch.randn(2, 3, 16, 48)
    torch.testing.assert_close(load_by(result.stdout.splitlines()[-1])(x), model(x))


def test_a_folder_is_taken_by_all_commands(tmp_path: Path) -> None:
    """With the preprocessing of the paper: the whole image, without a border that is cut off."""
    source, model = saved(tmp_path / "a.pth", img_size=32, num_classes=2, embed_dim=16, depth=1)
    folder, data = tmp_path / "converted", image_folder(tmp_path / "data", {"train": ANIMALS, "val": ANIMALS})
    assert convert(source, "-o", folder, "--num-heads", "2").exit_code == 0
    cfg = timm.create_model(f"local-dir:{folder}", pretrained=True).pretrained_cfg
    assert (cfg["crop_pct"], cfg["interpolation"], cfg["input_size"]) == (1.0, "bicubic", [3, 32, 32])
    here = ("--device", "cpu", "--workers", "0")
    tested = call("eval", str(folder), "--data", str(data), "--json", *here)
    assert (tested.code, tested.result["images"]) == (0, 8), tested.err
    make_image(0).save(tmp_path / "a.png")
    said = call("predict", str(folder), str(tmp_path / "a.png"), "--json", "--device", "cpu")
    assert {one["label"] for one in json.loads(said.out)["top"]} == {"0", "1"}
    assert call("export", str(folder), "-o", str(tmp_path / "exported"), "-q").code == 0
    fields = [*TINY, "model_args.patch_size=8", "model_args.num_heads=2", "img_size=32", "epochs=1", "warmup_epochs=0"]
    words = ["fashion_vit", *fields, "lr=1e-6", "min_lr=0", "--init", str(folder), "--data", str(data)]
    tuned = call("train", *words, "-o", str(tmp_path / "run"), "--no-compile", *here)
    assert tuned.code == 0, tuned.err
    for path in (folder, tmp_path / "exported", tmp_path / "run" / "last"):
        weights = read_weights(path / "model.safetensors")
        torch.testing.assert_close(weights, dict(model.state_dict()), rtol=0, atol=1e-4)


def test_a_network_of_the_paper_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    save_file(to_reference(timm.create_model("convnext_flop_iso_small", num_classes=5)), source)
    named, _, line = convert(source, "-o", tmp_path / "b").stdout.splitlines()
    assert named == "E(ConvNeXt-S (iso.)), registered as convnext_flop_iso_small with num_classes=5."
    assert line == f'timm.create_model("local-dir:{tmp_path}/b", pretrained=True)'


@pytest.mark.parametrize("out", ["b.safetensors", "b"])
def test_what_exists_is_replaced_only_by_force(out: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / out
    save_file(to_reference(ConvNeXt(depths=(1,), dims=(8,))), source)
    kept = target if target.suffix else target / "model.safetensors"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(b"precious")
    assert "--force" in convert(source, "-o", target).output
    assert convert(tmp_path / "none.pth", "-o", target, "--force").exit_code == 2
    assert kept.read_bytes() == b"precious"
    assert convert(source, "-o", target, "--force").exit_code == 0
    assert "stem.0.proj.even.weight" in safe_open(kept, "pt").keys()  # noqa: SIM118
    assert sorted(tmp_path.iterdir()) == [source, target]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--img-size 16,48", "a.pth': shapes don't tell the heads of a width of 16"),
        ("--img-size 16x48", "'16x48'"),
        ("--img-size 16,48,3", "'16,48,3'"),
        ("--handoff invariant", "'hybrid', 'abs'"),
        ("--output a.pth", "a.pth'"),
        ("--output .safetensors", "'.safetensors' is a suffix"),
    ],
)
def test_refused(arguments: str, message: str, tmp_path: Path) -> None:
    source, _ = saved(tmp_path / "a.pth")
    result = convert(source, "-o", tmp_path / "a.safetensors", *arguments.split())
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == [source]
