"""The benchmark of loader and network: it trains for real, and says what its figures mean."""

import json
from pathlib import Path

import pytest
from support.image_files import web_dataset
from typer.testing import CliRunner

from flopping_cli import app

TINY = ["model_args.embed_dim=16", "model_args.depth=1", "--no-compile", "--seconds", "0.05", "--device", "cpu"]


def bench(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench", "loader", "fashion_vit", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, " ".join(done.stderr.replace("│", " ").split())


def test_figures_of_images_in_memory() -> None:
    code, out, err = bench("--data", "fashion-mnist", "--workers", "1", "--json", *TINY)
    assert code == 0, err
    found = json.loads(out)
    assert min(found["loader"], found["network"], found["together"]) > 0
    assert 0 <= found["waiting"] <= 1
    assert found["workers"] == 1
    assert found["ratio"] == pytest.approx(found["loader"] / found["network"])


def test_a_table_of_shards(tmp_path: Path) -> None:
    root = web_dataset(tmp_path, {"train": (20, 20)})
    changes = "in_chans=3", "mean=null", "std=null", "batch_size=8"
    code, out, err = bench(*changes, "--data", "wds/it", "--root", str(root), "--workers", "0", *TINY)
    assert code == 0, err
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["loader", "network", "together"]
    assert "training steps of E(ViT-S)" in out
    assert "waits for images" in out.splitlines()[-1]


def test_refusals_are_those_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, err = bench(*TINY, "--data", "fashion-mnist", "--compile")
    assert (code, out) == (2, "")
    assert "no-such-compil" in err
    code, out, err = bench(*TINY, "--data", "fashion-mnist", "--micro-batch", "5000")
    assert (code, out) == (2, "")
    assert "micro-batches of 5000" in " ".join(err.split())
