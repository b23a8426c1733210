"""`flopping predict`: what a network says about photos, whatever they are, in every format, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from odd_photos import ODD, png, scene, write_odd
from pictures import packed, picture
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf
from training_runs import Ended, Launcher, call
from typer.testing import CliRunner

from flopping.classifier import Classifier, open_classifier
from flopping.photos import Failed, Photo, pillow_is_quiet
from flopping.predict import Prediction, predict
from flopping.testing import randomize_
from flopping.training.checkpoint import WEIGHTS
from flopping_cli import app
from flopping_cli.predict import COLUMNS, MIRROR_COLUMNS, shown

CLASSES = ["cat", "dög", "[red]cow", 'a "quoted", name']
EQUIVARIANT, ORDINARY = "convnext_flop_iso_test", "convnext_iso_test"


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An equivariant and an ordinary network with large weights, in folders as timm's models save."""
    root = tmp_path_factory.mktemp("networks")
    for name in (EQUIVARIANT, ORDINARY):
        model = randomize_(timm.create_model(name, num_classes=len(CLASSES)))
        save_for_hf(model, root / name, model_config={"label_names": CLASSES}, safe_serialization=True)
    return {name: root / name for name in (EQUIVARIANT, ORDINARY)}


@pytest.fixture(scope="module")
def network(networks: dict[str, Path]) -> Classifier:
    return open_classifier(str(networks[ORDINARY]))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    write_odd(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven photos of many sizes."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(7):
        picture(number, size=(90 - 7 * number, 40 + 9 * number)).save(folder / f"{number}.png")
    return folder


def classify(target: object, *arguments: object, stdin: bytes | None = None) -> Ended:
    return call("predict", "--device", "cpu", str(target), *map(str, arguments), stdin=stdin)


def lines(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def predictions(network: Classifier, photos: Any, **more: Any) -> list[Prediction]:
    found = list(predict(network, photos, **more))
    assert all(isinstance(one, Prediction) for one in found), found
    return [one for one in found if isinstance(one, Prediction)]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_each_odd_photo(name: str, odd: Path, network: Classifier) -> None:
    """The network says something about it, or there is a reason why not: nothing else ever happens."""
    with pillow_is_quiet():
        (found,) = predict(network, [odd / name])
    assert found.name == str(odd / name)
    if ODD[name].mode:
        assert isinstance(found, Prediction), found
        assert sum(one.probability for one in found.top) == pytest.approx(1)
    else:
        assert isinstance(found, Failed)
        assert ODD[name].reason in found.reason


def test_all_odd_photos_in_one_command(odd: Path, networks: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By names that look like options, patterns and markup."""
    monkeypatch.chdir(odd)
    ended = classify(networks[ORDINARY], "--json", "--batch", 5, "--check-mirror", "--", *ODD)
    assert ended.code == 1
    assert [line["image"] for line in lines(ended)] == [name for name in ODD if ODD[name].mode]
    for name, one in ODD.items():
        assert (f"{shown(name)}: " in ended.err) == (not one.mode), name
        assert one.reason in ended.err
    good = sum(bool(one.mode) for one in ODD.values())
    assert f"{good} images were classified; {len(ODD) - good} could not be used, for the reasons above." in ended.err
    assert "Traceback" not in ended.err + ended.out


def test_batches_change_nothing(photos: Path, network: Classifier) -> None:
    paths = sorted(photos.iterdir())
    single = predictions(network, paths, batch=1, check_mirror=True)
    assert [one.name for one in single] == [str(path) for path in paths]
    for batch in (2, 3, 7, 100):
        for one, other in zip(single, predictions(network, paths, batch=batch, check_mirror=True), strict=True):
            assert [(r.label, r.number) for r in one.top] == [(r.label, r.number) for r in other.top]
            for field in ("probability", "logit"):
                values = ([getattr(r, field) for r in found.top] for found in (one, other))
                assert next(values) == pytest.approx(next(values), abs=1e-5)
            assert one.mirrored is not None
            assert other.mirrored is not None
            assert one.mirrored.difference == pytest.approx(other.mirrored.difference, abs=1e-4)


def test_they_are_the_networks_own(photos: Path, network: Classifier) -> None:
    """Against logits that are computed by hand; the mirror image is that of the network's input."""
    paths = sorted(photos.iterdir())
    x = network.prepare([Image.open(path) for path in paths])
    with torch.no_grad():
        logits, mirrored = network.model(x), network.model(x.flip(-1))
    for row, other, one in zip(logits, mirrored, predictions(network, paths, check_mirror=True), strict=True):
        order = row.argsort(descending=True).tolist()
        assert [ranked.number for ranked in one.top] == order
        assert [ranked.label for ranked in one.top] == [CLASSES[number] for number in order]
        assert [ranked.logit for ranked in one.top] == pytest.approx(row[order].tolist(), abs=1e-4)
        assert [ranked.probability for ranked in one.top] == pytest.approx(row.softmax(0)[order].tolist(), abs=1e-5)
        assert one.mirrored is not None
        assert one.mirrored.difference == pytest.approx(float((row - other).abs().max()), abs=1e-4)
        assert one.mirrored.label == CLASSES[int(other.argmax())]
        assert one.mirrored.same == (int(other.argmax()) == order[0])


def test_unreadable_ones_stand_in_their_places(photos: Path, network: Classifier) -> None:
    given = [Photo("a", b""), photos / "0.png", Photo("b", b"x"), Photo("c", packed(scene())), photos / "1.png"]
    for batch in (1, 2, 9):
        found = list(predict(network, given, batch=batch))
        assert [one.name for one in found] == ["a", str(photos / "0.png"), "b", "c", str(photos / "1.png")]
        assert [isinstance(one, Failed) for one in found] == [True, False, True, False, False]
    assert list(predict(network, [])) == []


def test_no_more_is_read_than_needed(photos: Path, network: Classifier) -> None:
    """Photos are read a little ahead, whatever number of them there is, and not at all once nobody wants them."""
    asked = 0

    def endless() -> Any:
        nonlocal asked
        while True:
            asked += 1
            yield photos / "0.png"

    found = predict(network, endless(), batch=4)
    assert len(list(islice(found, 8))) == 8
    found.close()
    assert asked <= 8 + 4 + 4 + 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("photos")]


@pytest.mark.parametrize("name", ["top", "batch", "max_pixels"])
def test_numbers_below_one(name: str, network: Classifier) -> None:
    with pytest.raises(ValueError, match=f"{name} is at least 1, got 0"):
        predict(network, [], **{name: 0})


@pytest.mark.parametrize("name", [EQUIVARIANT, ORDINARY])
def test_mirror_images(name: str, photos: Path, networks: dict[str, Path]) -> None:
    ended = classify(networks[name], photos, "--json", "--check-mirror")
    assert ended.code == 0, ended.err
    found = [line["mirrored"] for line in lines(ended)]
    worst = max(one["difference"] for one in found)
    same = sum(one["same"] for one in found)
    assert f"Mirrored, {same} of 7 images keep their class; the logits differ by {worst:.1e} at most (" in ended.err
    if name == EQUIVARIANT:
        assert worst < 1e-4
        assert same == 7
    else:
        assert worst > 0.1


def test_a_trained_run(small_run: Path, images: Path) -> None:
    """Its classes are colours, and it has learned them; also with averaged weights."""
    for more in ((), ("--average",)):
        ended = classify(small_run, images / "val", "--json", "--top", "1", "--check-mirror", *more)
        assert ended.code == 0, ended.err
        found = lines(ended)
        assert len(found) == 12
        right = [Path(line["image"]).parent.name == line["top"][0]["label"] for line in found]
        assert sum(right) > 8
        assert all(line["mirrored"]["same"] and line["mirrored"]["difference"] < 1e-4 for line in found)
        assert "no trained weights" not in ended.err


def test_formats_agree(photos: Path, networks: dict[str, Path]) -> None:
    for more in ((), ("--check-mirror",)):
        ends = [classify(networks[ORDINARY], photos, "--format", form, *more) for form in ("jsonl", "csv", "table")]
        assert [ended.code for ended in ends] == [0, 0, 0]
        objects, rows = lines(ends[0]), list(csv.DictReader(io.StringIO(ends[1].out)))
        assert list(rows[0]) == [*COLUMNS, *(MIRROR_COLUMNS if more else ())]
        ranked = [(one["image"], rank, top) for one in objects for rank, top in enumerate(one["top"], 1)]
        assert len(rows) == len(ranked) == 7 * len(CLASSES)
        for row, (image, rank, top) in zip(rows, ranked, strict=True):
            assert (row["image"], int(row["rank"]), row["label"], int(row["class"])) == (
                *(image, rank),
                *(top["label"], top["class"]),
            )
            assert float(row["probability"]) == pytest.approx(top["probability"])
            assert float(row["logit"]) == pytest.approx(top["logit"])
        for row, one in zip(rows[:: len(CLASSES)], objects, strict=True):
            if more:
                assert json.loads(row["mirror_same"]) == one["mirrored"]["same"]
                assert row["mirror_label"] == one["mirrored"]["label"]
                assert float(row["mirror_difference"]) == pytest.approx(one["mirrored"]["difference"])
            best = next(line for line in ends[2].out.splitlines() if one["image"] in line)
            assert f"{one['top'][0]['probability']:.1%}" in best
            assert one["top"][0]["label"] in best
            if more:
                assert f"{one['mirrored']['difference']:.1e}" in best
        assert ("images keep their class" in ends[2].out) == bool(more)


def test_names_in_all_formats(tmp_path: Path, networks: dict[str, Path]) -> None:
    """Names come out as the bytes they are; for people, what can't be printed is written as Python would."""
    strange = [b"[red] a.png", b"two\nlines.png", b"latin-\xe9.png", "größe,1.png".encode()]
    for name in strange:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(packed(scene()))
    wanted = {os.fsencode(tmp_path) + b"/" + name for name in strange}
    arguments = ["predict", str(networks[ORDINARY]), str(tmp_path), "--top", "1", "--format"]
    found = {form: CliRunner().invoke(app, [*arguments, form]) for form in ("jsonl", "csv", "table")}
    parsed = [json.loads(line)["image"] for line in found["jsonl"].stdout_bytes.splitlines()]
    assert {os.fsencode(name) for name in parsed} == wanted
    text = found["csv"].stdout_bytes.decode("utf-8", "surrogateescape")
    assert {os.fsencode(row["image"]) for row in csv.DictReader(io.StringIO(text))} == wanted
    for shown_name in ("/[red] a.png ", "/two\\nlines.png' ", "/latin-\\udce9.png' ", "/größe,1.png "):
        assert shown_name in found["table"].stdout


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (3, 3), (100, len(CLASSES))])
def test_as_many_classes_as_there_are(asked: int, given: int, photos: Path, networks: dict[str, Path]) -> None:
    for line in lines(classify(networks[ORDINARY], photos, "--json", "--top", asked)):
        assert len(line["top"]) == given
        shares = [one["probability"] for one in line["top"]]
        assert shares == sorted(shares, reverse=True)


def test_standard_input(photos: Path, networks: dict[str, Path], odd: Path) -> None:
    image = classify(networks[ORDINARY], "-", "--json", stdin=(odd / "turned-6.jpg").read_bytes())
    file = classify(networks[ORDINARY], odd / "turned-6.jpg", "--json")
    assert lines(image)[0]["image"] == "-"
    assert lines(image)[0]["top"] == lines(file)[0]["top"]
    listed = "".join(f"{path}\n" for path in sorted(photos.iterdir())).encode()
    paths = classify(networks[ORDINARY], "-", "--json", stdin=listed)
    assert paths.out == classify(networks[ORDINARY], photos, "--json").out
    ended = classify(networks[ORDINARY], "-", stdin=b"")
    assert ended.code == 2
    assert "-: standard input is empty" in ended.err
    assert "there are no images to classify" in ended.err


def test_large_images_on_demand(tmp_path: Path, networks: dict[str, Path]) -> None:
    path = tmp_path / "a.png"
    Image.new("L", (100, 50)).save(path)
    ended = classify(networks[ORDINARY], path, "--max-pixels", "4999")
    assert ended.code == 2
    assert (
        f"{path}: 100 x 50 = 5,000 pixels are more than the limit of 4,999 (predict --max-pixels raises it" in ended.err
    )
    assert classify(networks[ORDINARY], path, "--max-pixels", "5000").code == 0


def test_exit_codes(photos: Path, networks: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(png((4, 4)))
    target, good, bad = networks[ORDINARY], photos / "0.png", tmp_path / "bad.png"
    assert classify(target, good).code == 0
    some = classify(target, good, bad, tmp_path / "*.jpg", tmp_path / "none.png")
    assert some.code == 1
    assert "1 image was classified; 3 could not be used" in some.err
    none = classify(target, bad)
    assert none.code == 2
    assert "0 images were classified; 1 could not be used" in none.err
    assert none.out == ""
    nowhere = classify(target, tmp_path / "*.jpg")
    assert nowhere.code == 2
    assert "there are no images to classify" in nowhere.err
    empty = classify(target, tmp_path / "bad.png", "--json", "--format", "csv")
    assert empty.code == 2
    assert "--json is --format jsonl, got --format csv too" in empty.err
    for wrong in (["--top", "0"], ["--batch", "0"], ["--device", "banana"], ["--format", "xml"], ["--max-pixels", "0"]):
        assert classify(target, good, *wrong).code == 2, wrong
    assert classify(target).code == 2


def test_an_untrained_network_says_so(photos: Path) -> None:
    ended = classify("deit3_flop_test_patch16_64", photos / "0.png", "--quiet", "--json")
    assert ended.code == 0
    assert ended.err == "Warning: deit3_flop_test_patch16_64 has no trained weights here: its answers mean nothing."
    assert len(lines(ended)[0]["top"]) == 5


def test_quiet(photos: Path, networks: dict[str, Path]) -> None:
    """Only warnings and errors are left on standard error; a table's last line is a result."""
    assert classify(networks[EQUIVARIANT], photos, "--quiet", "--json", "--check-mirror").err == ""
    assert "keep their class" in classify(networks[EQUIVARIANT], photos, "-q", "--check-mirror").out
    assert "none.png: there is no such file" in classify(networks[EQUIVARIANT], "none.png", "-q").err


def test_a_mirror_image_without_an_answer(photos: Path, tmp_path: Path) -> None:
    """JSON has no infinity."""
    code = """
import torch
class Lopsided(torch.nn.Module):
    num_classes = 3
    pretrained_cfg = {"input_size": (3, 8, 8)}
    def forward(self, x):
        left, right = x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))
        return torch.where(left < right, torch.inf, 0.0)[:, None] + x[:, :, 0, 0]
"""
    (tmp_path / "mine.py").write_text(code)
    for side, name in ((0, "left"), (4, "right")):
        picture = Image.new("RGB", (8, 8))
        picture.paste((255, 255, 255), (side, 0, side + 4, 8))
        picture.save(tmp_path / f"{name}.png")
        ended = classify(tmp_path / "mine.py:Lopsided", tmp_path / f"{name}.png", "--json", "--check-mirror")
        assert (ended.code, ended.out) == (2, ""), name
        assert f"{name}.png: the network's answer is not finite" in ended.err


def test_weights_that_are_no_numbers(photos: Path, networks: dict[str, Path], tmp_path: Path) -> None:
    """A run that went wrong gives an error for each image, and no line that isn't JSON."""
    folder = tmp_path / "net"
    folder.mkdir()
    for file in networks[ORDINARY].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / WEIGHTS)
    save_file({name: weight * float("nan") for name, weight in weights.items()}, folder / WEIGHTS)
    ended = classify(folder, photos / "0.png", "--json", "--check-mirror")
    assert (ended.code, ended.out) == (2, "")
    assert "0.png: the network's answer is not finite" in ended.err


def test_batches_that_do_not_fit(photos: Path, network: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network.model, "forward", full)
    with pytest.raises(ValueError, match="2 images at a time take more memory than cpu has: try a smaller --batch"):
        list(predict(network, [photos / "0.png", photos / "1.png"], batch=2))


def test_a_reader_that_has_enough(photos: Path, networks: dict[str, Path], tmp_path: Path, launcher: Launcher) -> None:
    """As `| head -1` does: no word about it."""
    os.mkfifo(tmp_path / "out.txt")
    copies = tmp_path / "copies"
    copies.mkdir()
    for number in range(300):
        (copies / f"{number}.png").symlink_to(photos / "0.png")
    options = ("--format", "csv", "--batch", "4", "--device", "cpu")
    process = launcher.start(tmp_path, "predict", str(networks[ORDINARY]), str(copies), *options)
    with open(tmp_path / "out.txt", encoding="utf-8") as out:
        assert out.readline() == ",".join(COLUMNS) + "\n"
    assert int(process.launcher.answer()) == 1
    assert process.err.read_text() == ""


def test_help_has_examples_and_loads_nothing_heavy() -> None:
    ended = call("predict", "--help")
    assert ended.code == 0
    assert "Examples: flopping predict" in " ".join(ended.out.split())
    heavy = "('torch', 'timm', 'PIL', 'numpy')"
    script = f"import sys, flopping_cli.predict; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
