"""Exported networks, read back by what their users have (torch, ONNX Runtime, timm), and the check that must fail."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from safetensors.torch import load_file
from support.real_sizes import real_sizes
from support.saved_networks import LABELS, TINY, list_files, save_network
from torch import Tensor, nn
from typer.testing import CliRunner

from flopping.checkpoints import weight_files
from flopping.deploy import FORMATS, CheckFailedError, Exported, ExportError, export, onnx_file, open_classifier
from flopping.deploy.exporter import TOLERANCE, check, describe, make_images
from flopping.errors import UsageError
from flopping.models import VisionTransformer
from flopping.testing import randomize_, relative_error
from flopping_cli import app

CFG = {"mean": (0.3, 0.4, 0.5), "std": (0.2, 0.25, 0.3), "crop_pct": 0.8}
NETWORKS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "E(ViT)": (TINY, {"depth": 1}, True),
    "E(ViT rope)": ("vit_flop_test_patch16_rope_reg4_64", {"depth": 1}, True),
    "E(ResMLP)": ("resmlp_flop_test_64", {"depth": 1}, True),
    "E(ConvNeXt iso)": ("convnext_flop_iso_test", {"depths": [1]}, True),
    "ResMLP": ("resmlp_test_64", {"depth": 1}, False),
    "H(ViT)": ("deit3_flop_hybrid_test_patch16_64", {"depth": 2, "handoffs": {"1": "hybrid"}}, False),
    "I(ViT)": ("deit3_flop_invariant_test_patch16_64", {"depth": 2, "handoffs": {"1": "invariant"}}, True),
    "octic I(ViT)": ("deit3_octic_invariant_test_patch16_64", {"depth": 2, "handoffs": {"1": "polynomial"}}, True),
    "max filtering": ("deit3_octic_invariant_test_patch16_64", {"depth": 2, "handoffs": {"1": "max_filtering"}}, True),
    "lengths": ("vit_octic_invariant_test_patch16_dinov2", {"depth": 2, "handoffs": {"1": "power_spectrum"}}, True),
    "octic E(ViT)": ("deit3_octic_test_patch16_64", {"depth": 1}, True),
    "octic H(ViT)": ("deit3_octic_hybrid_test_patch16_64", {"depth": 2, "handoffs": {"1": "concat"}}, False),
    "octic S(ViT)": (
        "deit3_octic_stepdown_test_patch16_64",
        {"depth": 3, "handoffs": {"1": "flop", "2": "trivial"}},
        False,
    ),
    "octic E(ResMLP)": ("resmlp_octic_test_64", {"depth": 1}, True),
    "octic E(ConvNeXt iso)": ("convnext_octic_iso_test", {"depths": [1]}, True),
    "octic E(ConvNeXt)": ("convnext_octic_test", {"depths": [1, 1], "dims": [8, 16]}, True),
    "octic E(ResNet)": ("resnet_octic_test", {"depths": [1, 1], "widths": [8, 16]}, True),
    "flipflop E(ViT)": ("deit3_flipflop_test_patch16_64", {"depth": 1}, True),
    "flipflop E(ResMLP)": ("resmlp_flipflop_test_64", {"depth": 1}, True),
    "flipflop E(ConvNeXt iso)": ("convnext_flipflop_iso_test", {"depths": [1]}, True),
    "E(ResNet)": ("resnet_flop_test", {"depths": [1, 1], "widths": [8, 16]}, True),
    "E(ConvNeXt)": ("convnext_flop_test", {"depths": [1, 1], "dims": [8, 16]}, True),
}
"""The registered name, what makes it small, and whether a mirrored image has the same logits."""
OUTPUTS = {"pt2": "a.pt2", "onnx": "a.onnx", "folder": "a"}
CASES = [
    pytest.param(key, form, marks=[] if key in ("E(ViT)", "ResMLP") or form == "folder" else [pytest.mark.long])
    for key in NETWORKS
    for form in OUTPUTS
]
"""A trace takes seconds, so most of them are made by `make test-long`."""


class Exports:
    """Networks in folders, and their exports, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.network, self.exported = cache(self._network), cache(self._export)

    def _network(self, key: str) -> tuple[Path, nn.Module]:
        name, args, _ = NETWORKS[key]
        folder = self.root / key
        return folder, save_network(folder, name, LABELS, CFG, **args)

    def _export(self, key: str, form: str) -> tuple[Exported, Path]:
        path = self.root / f"{key}-{OUTPUTS[form]}"
        return export(str(self.network(key)[0]), path), path


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(tmp_path_factory.mktemp("exports"))


def reload(form: str, path: Path) -> Callable[[Tensor], Tensor]:
    """As a user would load it, without any code of ours."""
    if form == "pt2":
        return torch.export.load(path).module()
    if form == "folder":
        model: nn.Module = timm.create_model(f"local-dir:{path}", pretrained=True)
        return model.eval()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


@pytest.mark.parametrize(("key", "form"), CASES)
@torch.no_grad()
def test_reloaded_networks_agree(key: str, form: str, exports: Exports) -> None:
    found, path = exports.exported(key, form)
    run, (_, model), mirror = reload(form, path), exports.network(key), NETWORKS[key][2]
    for batch in (1, 5):
        images = torch.randn(batch, *model.pretrained_cfg["input_size"])
        logits = run(images)
        assert logits.shape == (batch, len(LABELS))
        assert relative_error(logits, model(images)) < TOLERANCE
        assert (relative_error(run(images.flip(-1)), logits) < TOLERANCE) == mirror
    assert (found.format, found.checked.ignores_mirroring) == (form, mirror)
    assert found.checked.difference < TOLERANCE
    assert (found.checked.mirror_difference < TOLERANCE) == mirror
    assert found.bytes > sum(p.numel() for p in model.parameters())


@pytest.mark.long
@pytest.mark.parametrize("name", real_sizes())
def test_networks_at_real_sizes(name: str, tmp_path: Path) -> None:
    """In all formats: each export checks itself."""
    classifier = open_classifier(name)
    for form in FORMATS:
        assert export(classifier, tmp_path / f"a{form.suffix}").checked.difference < TOLERANCE


def test_metadata_are_enough_to_use_the_graph(exports: Exports) -> None:
    session = onnxruntime.InferenceSession(exports.exported("E(ViT)", "onnx")[1], providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    assert (found["name"], found["interpolation"]) == (TINY, "bicubic")
    wanted = {"labels": LABELS, "input_size": [3, 64, 64], "trained": True, **json.loads(json.dumps(CFG))}
    assert {key: json.loads(found[key]) for key in wanted} == wanted
    assert session.get_inputs()[0].shape == ["batch", 3, 64, 64]
    extra = {"flopping.json": ""}
    torch.export.load(exports.exported("E(ViT)", "pt2")[1], extra_files=extra)
    assert {key: json.loads(extra["flopping.json"])[key] for key in wanted} == wanted


def test_a_folder_is_opened_and_exported_again(exports: Exports, tmp_path: Path) -> None:
    _, path = exports.exported("E(ViT)", "folder")
    again = open_classifier(str(path))
    assert again.labels == tuple(LABELS)
    export(again, tmp_path / "b")
    weights, copy = (load_file(folder / "model.safetensors") for folder in (path, tmp_path / "b"))
    assert all(torch.equal(copy[name], weight) for name, weight in weights.items())
    configs = [json.loads((folder / "config.json").read_text()) for folder in (path, tmp_path / "b")]
    assert configs[0] == configs[1]


def test_an_image_size_a_fixed_batch_and_an_opset(tmp_path: Path) -> None:
    model = randomize_(timm.create_model("resmlp_test_64", depth=1, img_size=32)).eval()
    path = tmp_path / "a.onnx"
    onnx_file.write_graph(model, (3, 32, 32), path, batch=2, opset=18)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [2, 3, 32, 32]
    assert check(onnx_file.read(path), model, [make_images(model, (3, 32, 32), 2)]).batches == (2,)


def test_a_folder_of_a_model_by_name_keeps_its_size(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", TINY, "--img-size", "32", "-o", f"{tmp_path}/a/", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["format"], found["batches"], found["ignores_mirroring"]) == ("folder", [1, 3], True)
    model = timm.create_model(f"local-dir:{tmp_path}/a", pretrained=True)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_grey_images_of_a_network_of_ones_own(tmp_path: Path) -> None:
    """Its config has three values for colours, and its images one channel."""
    code = f"import timm\ndef grey():\n    return timm.create_model({TINY!r}, in_chans=1, num_classes=7, depth=1)\n"
    (tmp_path / "mine.py").write_text(code)
    classifier = open_classifier(f"{tmp_path}/mine.py:grey")
    known = describe(classifier)
    assert (known["input_size"], len(known["mean"]), len(known["std"])) == ([1, 64, 64], 1, 1)
    assert [255 * known["mean"][0]] == pytest.approx(classifier.preparation.mean.flatten().tolist())
    assert known["trained"] is None
    check(classifier.model, classifier.model, [make_images(classifier.model, (1, 64, 64), 2)])


# the check must be able to fail


def test_a_tampered_graph_is_noticed(exports: Exports, tmp_path: Path) -> None:
    import onnx
    from onnx.numpy_helper import from_array, to_array

    graph = onnx.load(exports.exported("E(ViT)", "onnx")[1])
    weight = next(w for w in graph.graph.initializer if len(w.dims) == 2 and w.dims[0] > 16)
    weight.CopyFrom(from_array(to_array(weight) * 1.01, weight.name))
    onnx.save(graph, tmp_path / "tampered.onnx")
    _, model = exports.network("E(ViT)")
    with pytest.raises(CheckFailedError, match="differ from the network's"):
        check(onnx_file.read(tmp_path / "tampered.onnx"), model, [make_images(model, (3, 64, 64), 2)])


def test_a_graph_that_sees_the_mirror_is_noticed() -> None:
    """Even one that agrees with a network which ought to be blind to it."""

    class Leaky(VisionTransformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x[..., :4].mean((1, 2, 3))[:, None]

    model = Leaky(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3).eval()
    with pytest.raises(CheckFailedError, match="mirrored images differ"):
        check(model, model, [make_images(model, (3, 32, 32), 2)])


def test_logits_that_are_not_finite_are_noticed(exports: Exports) -> None:
    _, model = exports.network("E(ViT)")
    with pytest.raises(CheckFailedError, match="by inf of"):
        check(lambda images: model(images) + float("nan"), model, [make_images(model, (3, 64, 64), 1)])


# whole or not at all


def write_older(folder: Path, form: str) -> Path:
    target = folder / OUTPUTS[form]
    if form == "folder":
        target.mkdir()
    (target / "config.json" if form == "folder" else target).write_text("older")
    return target


def patch_format(monkeypatch: pytest.MonkeyPatch, form: str, **changes: Any) -> None:
    row = next(row for row in FORMATS if row.name == form)
    monkeypatch.setattr("flopping.deploy.exporter.find_format", lambda _: replace(row, **changes))


@pytest.mark.parametrize("form", ["pt2", "folder", pytest.param("onnx", marks=pytest.mark.long)])
def test_a_wrong_export_leaves_what_was_there(
    form: str, exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writers themselves are made to write other weights; the command says so and ends with 1."""
    target, network = write_older(tmp_path, form), str(exports.network("ResMLP")[0])  # made by the real writers
    wrong = randomize_(timm.create_model("resmlp_test_64", depth=1, num_classes=len(LABELS)), seed=3).eval()
    trace = onnx_file.trace
    monkeypatch.setattr(onnx_file, "trace", lambda _, *others: trace(wrong, *others))
    write = weight_files.write_safetensors
    monkeypatch.setattr(
        weight_files, "write_safetensors", lambda file, _, *more: write(file, wrong.state_dict(), *more)
    )
    before = list_files(tmp_path)
    result = CliRunner().invoke(app, ["export", network, "-o", str(target), "--force"])
    assert result.exit_code == 1, result.output
    assert "was not written: its logits differ" in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert list_files(tmp_path) == before


@pytest.mark.parametrize(("form", "end"), [("pt2", KeyboardInterrupt()), ("folder", OSError("no space left"))])
def test_an_end_midway_leaves_what_was_there(
    form: str, end: BaseException, exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_older(tmp_path, form)

    def half(_: object, path: Path, *more: object) -> None:
        (path / "model.safetensors" if path.is_dir() else path).write_bytes(b"half of it")
        raise end

    patch_format(monkeypatch, form, write=half)
    before = list_files(tmp_path)
    with pytest.raises(type(end)):
        export(str(exports.network("ResMLP")[0]), target, force=True)
    assert list_files(tmp_path) == before


def test_force_replaces(exports: Exports, tmp_path: Path) -> None:
    target = write_older(tmp_path, "folder")
    export(str(exports.network("ResMLP")[0]), target, force=True)
    assert list_files(tmp_path).keys() == {"a/config.json", "a/model.safetensors"}
    assert (target / "config.json").read_text() != "older"


def test_what_cannot_be_read_back_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: Path) -> Any:
        raise RuntimeError("Guard failed\nand more")

    patch_format(monkeypatch, "folder", read=read)
    result = CliRunner().invoke(app, ["export", TINY, "-o", str(tmp_path / "a"), "-q"])
    assert result.exit_code == 1, result.output
    assert "Guard failed" in result.output
    assert not list_files(tmp_path)


def test_a_network_that_has_no_graph(tmp_path: Path) -> None:
    code = """
import torch
class Moody(torch.nn.Module):
    num_classes = 3
    def forward(self, x):
        return x[:, :, 0, 0] if x.sum() > 0 else -x[:, :, 0, 0]
"""
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ExportError, match="Moody can't be written as pt2"):
        export(f"{tmp_path}/mine.py:Moody", tmp_path / "a.pt2")
    assert list_files(tmp_path).keys() == {"mine.py"}


# what is refused


def refuse(*arguments: str | Path) -> str:
    """The message of an export that is refused."""
    result = CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("a network was opened before the request was refused")

    monkeypatch.setattr("flopping.deploy.exporter.open_classifier", opened)


@pytest.mark.parametrize(
    ("output", "options", "word"),
    [
        ("a.tflite", [], "a.tflite'"),
        ("a.pt2", ["--opset", "20"], "--opset 20 is for .onnx"),
        ("a/", ["--batch", "4"], "--batch 4 is for .pt2 or .onnx"),
        ("a.onnx", ["--opset", "7"], "got 7"),
        ("a.onnx", ["--batch", "0"], "--batch"),
        ("missing/a.onnx", [], "missing'"),
        ("old.onnx", [], "old.onnx' exists"),
        (".onnx", [], "name.onnx"),
        ("..", ["--force"], "..'"),
        ("notes", ["--force"], "diary.txt"),
    ],
)
@pytest.mark.usefixtures("_idle")
def test_outputs_that_are_refused(output: str, options: list[str], word: str, tmp_path: Path) -> None:
    """Before the work begins, and what is there survives."""
    for name in ("old.onnx", "notes/config.json", "notes/diary.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("older")
    before = list_files(tmp_path)
    assert word in refuse("E(ViT-S)", "-o", f"{tmp_path}/{output}", *options)
    assert list_files(tmp_path) == before


@pytest.mark.usefixtures("_idle")
def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("flopping.deploy.exporter.find_spec", lambda name: None if name == "onnxscript" else find(name))
    assert "onnxscript: pip install 'flopping[onnx]'" in refuse("E(ViT-S)", "-o", tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("target", "output", "options", "word"),
    [
        ("E(ViT-X)", "a.onnx", {}, "E(ViT-S)"),
        ("checkpoint", "a.onnx", {"img_size": 32}, "--img-size 32"),
        (TINY, "a.onnx", {"average": True}, "--average"),
        ("mine.py:Mine", "a", {}, "timm"),
    ],
)
def test_networks_that_are_refused(
    target: str, output: str, options: dict[str, object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n        return x.mean((2, 3))\n"
    Path("mine.py").write_text(code)
    save_network(Path("checkpoint"), "resmlp_test_64", LABELS, depth=1)
    before = list_files(tmp_path)
    with pytest.raises(UsageError) as error:
        export(target, tmp_path / output, **options)  # type: ignore[arg-type]
    assert word in str(error.value)
    assert list_files(tmp_path) == before


def test_weights_that_are_too_large_for_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopping.deploy.onnx_file.LARGEST", 1000)
    monkeypatch.setattr("flopping.deploy.onnx_file.trace", lambda *_: pytest.fail("the work began"))
    with pytest.raises(UsageError, match="2 GB"):
        export(TINY, tmp_path / "a.onnx")
