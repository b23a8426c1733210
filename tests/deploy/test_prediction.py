"""`flopping predict`: what a network says about photos, whatever they are, in every format, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.image_files import encode, make_image
from support.odd_photos import ODD, png, scene, write_odd
from support.saved_networks import TINY, save_network
from support.training_runs import Ended, Launcher, call
from typer import Exit
from typer.testing import CliRunner

from flopping.data.photos import Failed, Photo
from flopping.deploy import Classifier, Prediction, open_classifier, predict
from flopping.errors import UsageError
from flopping.groups import Group, flop, get_group, octic
from flopping_cli import app
from flopping_cli.predict import COLUMNS, MOVED_COLUMNS, shown
from flopping_cli.predict import predict as command

CLASSES = ["cat", "dög", "[red]cow", 'a "quoted", name']
EQUIVARIANT, ORDINARY, OCTIC = "convnext_flop_iso_test", "convnext_iso_test", "octic"


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Equivariant networks and an ordinary one with large weights, in folders as timm's models save."""
    root = tmp_path_factory.mktemp("networks")
    for name in (EQUIVARIANT, ORDINARY):
        save_network(root / name, name, CLASSES, depths=[1])
    save_network(root / OCTIC, TINY, CLASSES, group="octic", depth=1)
    return {name: root / name for name in (EQUIVARIANT, ORDINARY, OCTIC)}


@pytest.fixture(scope="module")
def ordinary(networks: dict[str, Path]) -> Path:
    return networks[ORDINARY]


@pytest.fixture(scope="module")
def network(ordinary: Path) -> Classifier:
    return open_classifier(str(ordinary))


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
        make_image(number, size=(90 - 7 * number, 40 + 9 * number)).save(folder / f"{number}.png")
    return folder


def classify(target: object, *arguments: object, stdin: bytes | None = None) -> Ended:
    return call("predict", "--device", "cpu", str(target), *map(str, arguments), stdin=stdin)


def lines(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def predictions(network: Classifier, photos: Any, **more: Any) -> list[Prediction]:
    found = list(predict(network, photos, **more))
    assert all(isinstance(one, Prediction) for one in found), found
    return [one for one in found if isinstance(one, Prediction)]


def test_all_odd_photos_in_one_command(odd: Path, ordinary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By names that look like options, patterns and markup."""
    monkeypatch.chdir(odd)
    ended = classify(ordinary, "--json", "--batch", 5, "--check-mirror", "--", *ODD)
    assert ended.code == 1
    good = [name for name in ODD if ODD[name].mode]
    assert [json.loads(line)["image"] for line in ended.out.splitlines()] == good
    for name, one in ODD.items():
        assert (f"{shown(name)}: " in ended.err) == (not one.mode), name
        assert one.reason in ended.err
    assert f"{len(good)} images were classified; {len(ODD) - len(good)} could not be used" in ended.err


@pytest.mark.parametrize(("batch", "group"), [(1, flop), (3, octic), (7, flop)])
def test_predictions_are_the_networks_own(batch: int, group: Group, photos: Path, network: Classifier) -> None:
    """Against logits that are computed by hand; moved is the network's input."""
    paths = sorted(photos.iterdir())
    x = network.prepare([Image.open(path) for path in paths])
    with torch.no_grad():
        logits, *moved = (network.model(group.act(element, x)) for element in range(group.order))
    found = predictions(network, paths, check=group, batch=batch)
    assert [one.name for one in found] == [str(path) for path in paths]
    for row, others, one in zip(logits, zip(*moved, strict=True), found, strict=True):
        order = row.argsort(descending=True).tolist()
        assert [(ranked.number, ranked.label) for ranked in one.top] == [(n, CLASSES[n]) for n in order]
        assert [ranked.logit for ranked in one.top] == pytest.approx(row[order].tolist(), abs=1e-4)
        assert [ranked.probability for ranked in one.top] == pytest.approx(row.softmax(0)[order].tolist(), abs=1e-5)
        assert [*one.moved] == [*group.elements[1:]]
        for other, said in zip(others, one.moved.values(), strict=True):
            assert said.difference == pytest.approx(float((row - other).abs().max()), abs=1e-4)
            assert said.label == CLASSES[int(other.argmax())]
            assert said.same == (int(other.argmax()) == order[0])


def test_unreadable_ones_keep_their_places(photos: Path, network: Classifier) -> None:
    given = [Photo("a", b""), photos / "0.png", Photo("b", b"x"), Photo("c", encode(scene())), photos / "1.png"]
    for batch in (1, 2, 9):
        found = list(predict(network, given, batch=batch))
        assert [one.name for one in found] == ["a", str(photos / "0.png"), "b", "c", str(photos / "1.png")]
        assert [isinstance(one, Failed) for one in found] == [True, False, True, False, False]
    assert list(predict(network, [])) == []


def test_no_more_is_read_than_needed(photos: Path, network: Classifier) -> None:
    """Photos are read a little ahead, whatever number of them there is, and not at all once the caller stops."""
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
        list(predict(network, [], **{name: 0}))


@pytest.mark.parametrize(
    ("name", "options", "group"),
    [
        (EQUIVARIANT, "--check-mirror", "flop"),
        (ORDINARY, "--check", "flop"),
        (OCTIC, "--check", "octic"),
        (EQUIVARIANT, "--check --group rot90", "rot90"),
    ],
)
def test_moved_images(name: str, options: str, group: str, photos: Path, networks: dict[str, Path]) -> None:
    """By all elements of the network's group, or of the one that is named."""
    ended = classify(networks[name], photos, "--json", *options.split())
    found = [line["moved"] for line in lines(ended)]
    for element in get_group(group).elements[1:]:
        ones = [line.pop(element) for line in found]
        worst, same = max(one["difference"] for one in ones), sum(one["same"] for one in ones)
        said = "Mirrored" if element == "flop" else element.capitalize()
        assert f"{said}, {same} of 7 images keep their class; the logits differ by {worst:.1e} at most (" in ended.err
        assert (worst < 1e-4 and same == 7) if group == {EQUIVARIANT: "flop"}.get(name, name) else worst > 0.1
    assert not any(found)


def test_a_trained_run(small_run: Path, images: Path) -> None:
    """Its classes are colours, and it has learned them; here with averaged weights."""
    ended = classify(small_run, images / "val", "--json", "--top", "1", "--check-mirror", "--average")
    found = lines(ended)
    assert len(found) == 12
    assert sum(Path(line["image"]).parent.name == line["top"][0]["label"] for line in found) > 8
    assert all(line["moved"]["flop"]["same"] and line["moved"]["flop"]["difference"] < 1e-4 for line in found)
    assert all(len(line["top"]) == 1 for line in found)
    assert "no trained weights" not in ended.err


def test_formats_agree(photos: Path, ordinary: Path) -> None:
    options = ("--check", "--group", "flipflop", "--format")
    ends = [classify(ordinary, photos, *options, form) for form in ("jsonl", "csv", "table")]
    objects, rows = lines(ends[0]), list(csv.DictReader(io.StringIO(ends[1].out)))
    elements = get_group("flipflop").elements[1:]
    assert list(rows[0]) == [*COLUMNS, *(f"{name}_{column}" for name in elements for column in MOVED_COLUMNS)]
    ranked = [(one, rank, top) for one in objects for rank, top in enumerate(one["top"], 1)]
    assert len(rows) == len(ranked) == 7 * len(CLASSES)
    for row, (one, rank, top) in zip(rows, ranked, strict=True):
        assert (row["image"], int(row["rank"])) == (one["image"], rank)
        assert (row["label"], int(row["class"])) == (top["label"], top["class"])
        assert float(row["probability"]) == pytest.approx(top["probability"])
        assert float(row["logit"]) == pytest.approx(top["logit"])
        for name in elements:
            assert json.loads(row[f"{name}_same"]) == one["moved"][name]["same"]
            assert row[f"{name}_label"] == one["moved"][name]["label"]
            assert float(row[f"{name}_difference"]) == pytest.approx(one["moved"][name]["difference"])
    for one in objects:
        line = next(line for line in ends[2].out.splitlines() if one["image"] in line)
        best = one["top"][0]
        largest = max(each["difference"] for each in one["moved"].values())
        changed = [f"{each['label']} ({name})" for name, each in one["moved"].items() if not each["same"]]
        for text in (best["label"], f"{best['probability']:.1%}", f"{largest:.1e}", *changed):
            assert text in line
    assert "images keep their class" in ends[2].out
    plain = classify(ordinary, photos / "0.png", "--format", "csv").out
    assert plain.splitlines()[0] == ",".join(COLUMNS)


def test_names_in_all_formats(tmp_path: Path, ordinary: Path) -> None:
    """Names come out as the bytes they are; for people, what can't be printed is written as Python would."""
    strange = [b"[red] a.png", b"two\nlines.png", b"latin-\xe9.png", "größe,1.png".encode()]
    for name in strange:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(encode(scene()))
    wanted = {os.fsencode(tmp_path) + b"/" + name for name in strange}
    arguments = ["predict", str(ordinary), str(tmp_path), "--top", "1", "--format"]
    found = {form: CliRunner().invoke(app, [*arguments, form]) for form in ("jsonl", "csv", "table")}
    parsed = [json.loads(line)["image"] for line in found["jsonl"].stdout_bytes.splitlines()]
    assert {os.fsencode(name) for name in parsed} == wanted
    text = found["csv"].stdout_bytes.decode("utf-8", "surrogateescape")
    assert {os.fsencode(row["image"]) for row in csv.DictReader(io.StringIO(text))} == wanted
    for shown_name in ("/[red] a.png ", "/two\\nlines.png' ", "/latin-\\udce9.png' ", "/größe,1.png "):
        assert shown_name in found["table"].stdout


def test_standard_input(photos: Path, ordinary: Path, odd: Path) -> None:
    (image,) = lines(classify(ordinary, "-", "--json", stdin=(odd / "turned-6.jpg").read_bytes()))
    (file,) = lines(classify(ordinary, odd / "turned-6.jpg", "--json"))
    assert (image["image"], image["top"]) == ("-", file["top"])
    listed = "".join(f"{path}\n" for path in sorted(photos.iterdir())).encode()
    paths = classify(ordinary, "-", "--json", stdin=listed)
    assert paths.out == classify(ordinary, photos, "--json").out
    ended = classify(ordinary, "-", stdin=b"")
    assert ended.code == 2
    assert "-: standard input is empty" in ended.err


def test_large_images_on_demand(tmp_path: Path, ordinary: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("L", (100, 50)).save(path)
    ended = classify(ordinary, path, "--max-pixels", "4999")
    assert ended.code == 2
    assert f"{path}: 100 x 50 = 5,000 pixels" in ended.err
    assert classify(ordinary, path, "--max-pixels", "5000").code == 0


def test_exit_codes(photos: Path, ordinary: Path, tmp_path: Path) -> None:
    good, bad = photos / "0.png", tmp_path / "bad.png"
    bad.write_bytes(png((4, 4)))
    some = classify(ordinary, good, bad, tmp_path / "*.jpg", tmp_path / "none.png")
    assert some.code == 1
    assert "1 image was classified; 3 could not be used" in some.err
    none = classify(ordinary, bad)
    assert (none.code, none.out) == (2, "")
    assert "0 images were classified; 1 could not be used" in none.err
    nowhere = classify(ordinary, tmp_path / "*.jpg")
    assert nowhere.code == 2
    assert "there are no images to classify" in nowhere.err


@pytest.mark.parametrize(
    "wrong",
    [
        "--top 0",
        "--device banana",
        "--format xml",
        "--json --format csv",
        "--group octic",
        "--check --group banana",
        "--batch 1048577",
    ],
)
def test_options_that_are_refused(wrong: str, photos: Path, ordinary: Path) -> None:
    ended = classify(ordinary, photos / "0.png", *wrong.split())
    assert (ended.code, ended.out) == (2, "")
    assert "banana" in ended.err if "banana" in wrong else wrong.split()[0] in ended.err


def test_elements_that_need_square_images(photos: Path, tmp_path: Path) -> None:
    save_network(tmp_path, ORDINARY, CLASSES, cfg={"input_size": (3, 64, 48)}, depths=[1])
    ended = classify(tmp_path, photos / "0.png", "--check", "--group", "rot90")
    assert (ended.code, ended.out) == (2, "")
    assert "64 x 48" in ended.err
    assert classify(tmp_path, photos / "0.png", "--check", "--group", "flipflop").code == 0


def test_closed_input(photos: Path, ordinary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no standard input, files are classified, and - names none."""
    monkeypatch.setattr("sys.stdin", None)
    command(str(ordinary), [str(photos / "0.png")], device="cpu")
    with pytest.raises(Exit) as ended:
        command(str(ordinary), ["-"], device="cpu")
    assert ended.value.exit_code == 2


def test_quiet(photos: Path, networks: dict[str, Path]) -> None:
    """Only warnings and errors are left on standard error; a table's last line is a result."""
    untrained = classify(TINY, photos / "0.png", "--quiet", "--json")
    assert untrained.err == f"Warning: {TINY} has no trained weights here: its answers mean nothing."
    assert len(lines(untrained)[0]["top"]) == 5
    by_paper = classify("E(ViT-S)", photos / "0.png", "--quiet", "--json").err
    assert by_paper.startswith("Warning: E(ViT-S) (deit3_flop_small_patch16_224) has no trained weights")
    assert classify(networks[EQUIVARIANT], photos, "--quiet", "--json", "--check-mirror").err == ""
    assert "keep their class" in classify(networks[EQUIVARIANT], photos, "-q", "--check-mirror").out
    assert "none.png: there is no such file" in classify(networks[EQUIVARIANT], "none.png", "-q").err


def test_a_mirror_image_without_an_answer(tmp_path: Path) -> None:
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
        image = Image.new("RGB", (8, 8))
        image.paste((255, 255, 255), (side, 0, side + 4, 8))
        image.save(tmp_path / f"{name}.png")
        ended = classify(tmp_path / "mine.py:Lopsided", tmp_path / f"{name}.png", "--json", "--check-mirror")
        assert (ended.code, ended.out) == (2, ""), name
        assert f"{name}.png: the network's answer is not finite" in ended.err


def test_batches_that_do_not_fit(photos: Path, network: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network.model, "forward", full)
    with pytest.raises(UsageError, match="--batch 2"):
        list(predict(network, [photos / "0.png", photos / "1.png"], batch=2))


def test_a_reader_that_has_enough(photos: Path, ordinary: Path, tmp_path: Path, launcher: Launcher) -> None:
    """As `| head -1` does: no word about it."""
    os.mkfifo(tmp_path / "out.txt")
    copies = tmp_path / "copies"
    copies.mkdir()
    for number in range(300):
        (copies / f"{number}.png").symlink_to(photos / "0.png")
    options = ("--format", "csv", "--batch", "4", "--device", "cpu")
    process = launcher.start(tmp_path, "predict", str(ordinary), str(copies), *options)
    with open(tmp_path / "out.txt", encoding="utf-8") as out:
        assert out.readline() == ",".join(COLUMNS) + "\n"
    assert process.wait_for_code() == 1
    assert process.err.read_text() == ""
