"""Exported networks, read back by what their users have: torch, ONNX Runtime, timm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import timm
import torch
from exported_networks import BATCHES, LABELS, MEAN, NETWORKS, STD, Saved, listing, saved
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from flopping.checkpoints.files import write_weights
from flopping.classifier import open_classifier
from flopping.export import FORMATS, CheckFailedError, Exported, ExportError, export, exporting, onnx_file
from flopping.export.check import TOLERANCE, check, pictures
from flopping.export.describe import description
from flopping.models import VisionTransformer
from flopping.models.zoo import ZOO
from flopping.testing import randomize_, relative_error
from flopping_cli import app

OUTPUTS = {"pt2": "a.pt2", "onnx": "a.onnx", "folder": "a"}


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    place = tmp_path_factory.mktemp("networks")
    return {key: saved(place / str(number), *row) for number, (key, row) in enumerate(NETWORKS.items())}


@pytest.fixture(scope="module")
def exported(
    networks: dict[str, Saved], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Exported, Path]]:
    """Each network in each format, written once, when it is first asked for."""
    place = tmp_path_factory.mktemp("exported")
    done: dict[tuple[str, str], tuple[Exported, Path]] = {}

    def get(key: str, form: str) -> tuple[Exported, Path]:
        if (key, form) not in done:
            path = place / str(len(done)) / OUTPUTS[form]
            path.parent.mkdir()
            done[key, form] = export(str(networks[key].folder), path), path
        return done[key, form]

    return get


def reloaded(form: str, path: Path) -> Callable[[Tensor], Tensor]:
    """As a user would load it, without any code of ours."""
    if form == "pt2":
        return torch.export.load(path).module()
    if form == "folder":
        model: nn.Module = timm.create_model(f"local-dir:{path}", pretrained=True)
        return model.eval()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


@pytest.mark.parametrize("form", OUTPUTS)
@pytest.mark.parametrize("key", NETWORKS)
@torch.no_grad()
def test_reloaded_networks_agree(
    key: str,
    form: str,
    networks: dict[str, Saved],
    exported: Callable[[str, str], tuple[Exported, Path]],
) -> None:
    found, path = exported(key, form)
    run, network = reloaded(form, path), networks[key]
    for batch in BATCHES:
        images = torch.randn(batch, 3, 64, 64)
        logits = run(images)
        assert logits.shape == (batch, len(LABELS))
        assert relative_error(logits, network.model(images)) < TOLERANCE
        assert (relative_error(run(images.flip(-1)), logits) < TOLERANCE) == network.mirror
    assert found.format == form
    assert found.checked.ignores_mirroring == network.mirror
    assert found.checked.difference < TOLERANCE
    assert (found.checked.mirror_difference < TOLERANCE) == network.mirror
    assert found.bytes > sum(p.numel() for p in network.model.parameters())


def test_metadata_are_enough_to_use_the_graph(exported: Callable[[str, str], tuple[Exported, Path]]) -> None:
    """With classes and preprocessing in the file, the same class has the same score as in a run of ours."""
    _, path = exported("E(ViT)", "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == LABELS
    assert about["name"] == "deit3_flop_test_patch16_64"
    assert json.loads(about["input_size"]) == [3, 64, 64]
    assert tuple(json.loads(about["mean"])) == MEAN
    assert tuple(json.loads(about["std"])) == STD
    assert (about["interpolation"], json.loads(about["crop_pct"])) == ("bicubic", 0.8)
    assert session.get_inputs()[0].shape == ["batch", 3, 64, 64]
    extra = {"flopping.json": ""}
    torch.export.load(exported("E(ViT)", "pt2")[1], extra_files=extra)
    assert {key: json.loads(extra["flopping.json"])[key] for key in ("labels", "mean")} == {
        "labels": LABELS,
        "mean": list(MEAN),
    }


def test_a_folder_is_opened_and_exported_again(
    exported: Callable[[str, str], tuple[Exported, Path]], tmp_path: Path
) -> None:
    _, path = exported("E(ViT)", "folder")
    again = open_classifier(str(path))
    assert again.labels == tuple(LABELS)
    assert again.trained
    export(again, tmp_path / "b")
    for name, weights in load_file(path / "model.safetensors").items():
        assert torch.equal(load_file(tmp_path / "b" / "model.safetensors")[name], weights)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (path, tmp_path / "b")]
    assert configs[0] == configs[1]


def test_an_image_size_and_a_fixed_batch(tmp_path: Path) -> None:
    model = randomize_(timm.create_model("resmlp_test_64", depth=1, img_size=32)).eval()
    path = tmp_path / "a.onnx"
    onnx_file.write_graph(model, (3, 32, 32), path, batch=2, opset=18)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [2, 3, 32, 32]
    assert check(onnx_file.read(path), model, [pictures(model, (3, 32, 32), 2)]).batches == (2,)


def test_a_folder_of_a_model_by_name_remembers_its_size(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["export", "deit3_flop_test_patch16_64", "--img-size", "32", "-o", f"{tmp_path}/a/", "--json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["format"], found["batches"], found["ignores_mirroring"]) == ("folder", [1, 3], True)
    model = timm.create_model(f"local-dir:{tmp_path}/a", pretrained=True)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


# the checker must be able to fail


def test_a_tampered_graph_is_noticed(
    networks: dict[str, Saved], exported: Callable[[str, str], tuple[Exported, Path]], tmp_path: Path
) -> None:
    import onnx
    from onnx.numpy_helper import from_array, to_array

    _, path = exported("E(ViT)", "onnx")
    graph = onnx.load(path)
    weight = next(w for w in graph.graph.initializer if len(w.dims) == 2 and w.dims[0] > 16)
    weight.CopyFrom(from_array(to_array(weight) * 1.01, weight.name))
    onnx.save(graph, tmp_path / "tampered.onnx")
    model = networks["E(ViT)"].model
    images = [pictures(model, (3, 64, 64), 2)]
    check(onnx_file.read(path), model, images)
    with pytest.raises(CheckFailedError, match="its logits differ from the network's by"):
        check(onnx_file.read(tmp_path / "tampered.onnx"), model, images)


def test_a_graph_that_sees_the_mirror_is_noticed() -> None:
    """Even one that agrees with a network which ought to be blind to it."""

    class Leaky(VisionTransformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x[..., :4].mean((1, 2, 3))[:, None]

    model = Leaky(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3).eval()
    with pytest.raises(CheckFailedError, match="mirrored images differ"):
        check(model, model, [pictures(model, (3, 32, 32), 2)])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_noticed(broken: float) -> None:
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3).eval()
    with pytest.raises(CheckFailedError, match="by inf of"):
        check(lambda images: model(images) + broken, model, [pictures(model, (3, 32, 32), 1)])


def test_grey_images_of_a_network_of_ones_own(tmp_path: Path) -> None:
    """Its config has three values for colours, and its images one channel."""
    code = """
import timm
def grey():
    return timm.create_model("deit3_flop_test_patch16_64", in_chans=1, num_classes=7)
"""
    (tmp_path / "mine.py").write_text(code)
    classifier = open_classifier(f"{tmp_path}/mine.py:grey")
    known = description(classifier)
    assert (known["input_size"], len(known["mean"]), len(known["std"])) == ([1, 64, 64], 1, 1)
    assert known["trained"] is None
    assert [255 * known["mean"][0]] == pytest.approx(classifier.preparation.mean.flatten().tolist())
    assert export(classifier, tmp_path / "a.pt2").checked.difference < TOLERANCE
    extra = {"flopping.json": ""}
    torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert '"trained": null' in extra["flopping.json"]


def test_what_cannot_be_read_back_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: Path) -> Any:
        raise RuntimeError("Guard failed\nand more")

    form = next(form for form in FORMATS if form.name == "folder")
    monkeypatch.setattr(exporting, "format_of", lambda _: replace(form, read=read))
    result = CliRunner().invoke(app, ["export", "deit3_flop_test_patch16_64", "-o", str(tmp_path / "a"), "-q"])
    assert result.exit_code == 1, result.output
    assert "what was written can't be run: Guard failed" in " ".join(result.output.split())
    assert not listing(tmp_path)


# whole or not at all


@pytest.mark.parametrize("form", OUTPUTS)
def test_a_wrong_export_leaves_what_was_there(
    form: str, networks: dict[str, Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writers themselves are made to write other weights; the command says so and ends with 1."""
    target = _older(tmp_path, form)
    wrong = randomize_(timm.create_model("resmlp_test_64", depth=1, num_classes=len(LABELS)), seed=3).eval()
    traced = onnx_file.traced
    for module in ("onnx_file", "pt2"):
        monkeypatch.setattr(f"flopping.export.{module}.traced", lambda _, *others: traced(wrong, *others))
    monkeypatch.setattr("flopping.export.folder.write_weights", lambda _, path: write_weights(wrong.state_dict(), path))
    before = listing(tmp_path)
    result = CliRunner().invoke(app, ["export", str(networks["ResMLP"].folder), "-o", str(target), "--force"])
    assert result.exit_code == 1, result.output
    assert "was not written: its logits differ" in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("form", "end"),
    [
        ("pt2", KeyboardInterrupt()),
        ("folder", OSError("no space left")),
        ("folder", KeyboardInterrupt()),
    ],
    ids=["pt2-Ctrl-C", "folder-full disk", "folder-Ctrl-C"],
)
def test_an_end_midway_leaves_what_was_there(
    form: str, end: BaseException, networks: dict[str, Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _older(tmp_path, form)

    def half(_: object, path: Path, *more: object) -> None:
        (path / "model.safetensors" if path.is_dir() else path).write_bytes(b"half of it")
        raise end

    row = next(row for row in FORMATS if row.name == form)
    monkeypatch.setattr(exporting, "format_of", lambda _: replace(row, write=half))
    before = listing(tmp_path)
    with pytest.raises(type(end)):
        export(str(networks["ResMLP"].folder), target, force=True)
    assert listing(tmp_path) == before


def _older(place: Path, form: str) -> Path:
    target = place / OUTPUTS[form]
    if form == "folder":
        target.mkdir()
        (target / "config.json").write_text("older")
    else:
        target.write_text("older")
    return target


def test_force_replaces(networks: dict[str, Saved], tmp_path: Path) -> None:
    target = _older(tmp_path, "folder")
    export(str(networks["ResMLP"].folder), target, force=True)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# networks that have no graph, and all that are in the zoo


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
    assert listing(tmp_path).keys() == {"mine.py"}


def test_the_table(networks: dict[str, Saved], tmp_path: Path) -> None:
    """What a mirror does to a network that sees it is told, and a path is shown as it is."""
    target = tmp_path / "a[" / "b]"  # what would end a style in the table's markup
    target.parent.mkdir()
    result = CliRunner().invoke(
        app, ["export", str(networks["ResMLP"].folder), "-o", str(target), "-q"], env={"COLUMNS": "300"}
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    rows = dict(line.strip("│ ").split("│") for line in result.stdout.splitlines() if line.startswith("│"))
    found = {key.strip(): value.strip() for key, value in rows.items()}
    assert found["file"] == str(target)
    assert (found["format"], found["network"]) == ("folder", "resmlp_test_64")
    assert found["checked with batches of"] == "1, 3"
    assert found["largest difference from the network"] == "0.0e+00 of the largest logit"
    assert "the network has no mirror property" in found["largest difference for mirrored images"]


@pytest.mark.long
@pytest.mark.parametrize("name", ZOO)
def test_every_network_of_the_zoo(name: str, tmp_path: Path) -> None:
    """At its real size, in all formats: each export checks itself."""
    classifier = open_classifier(name)
    for form in FORMATS:
        found = export(classifier, tmp_path / f"a{form.suffix}")
        assert found.checked.difference < TOLERANCE
