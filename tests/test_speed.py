"""The benchmark of loader and network: it trains for real, and says what its figures mean."""

import json
from pathlib import Path

import pytest
from pictures import web_dataset
from typer.testing import CliRunner

from flopping.training.speed import Speed
from flopping_cli import app

TINY = ["model_args.embed_dim=16", "model_args.depth=1", "--no-compile", "--seconds", "0.05", "--device", "cpu"]


def bench(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench-loader", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def test_figures_of_images_in_memory() -> None:
    code, out, err = bench("fashion_vit", "--data", "fashion-mnist", "--workers", "1", "--json", *TINY)
    assert code == 0, err
    found = json.loads(out)
    assert found["loader"] > 0
    assert found["network"] > 0
    assert found["together"] > 0
    assert 0 <= found["waiting"] <= 1
    assert found["workers"] == 1
    assert found["ratio"] == pytest.approx(found["loader"] / found["network"])
    assert str(found["workers_needed"]) in found["verdict"] or found["ratio"] >= 1


def test_a_table_of_a_stream(tmp_path: Path) -> None:
    root = web_dataset(tmp_path, {"train": (20, 20)})
    code, out, err = bench(
        "fashion_vit", "in_chans=3", "mean=null", "std=null", "batch_size=8", "--data", "wds/it", "--root", str(root),
        "--workers", "0", *TINY,
    )  # fmt: skip
    assert code == 0, err
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["loader", "network", "together"]
    assert "training steps of E(ViT-S)" in out
    assert "waits for images" in out.splitlines()[-1]
    assert "Timing both together" in err


def test_a_missing_compiler_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, err = bench("fashion_vit", "--data", "fashion-mnist", *TINY, "--compile")
    assert (code, out) == (2, "")
    assert "no C++ compiler is called 'no-such-compiler'" in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("loader", "network", "waiting", "workers", "needed", "said"),
    [
        (1000, 100, 0.0, 1, 1, "The loader is 10.0 times as fast as the network, which waits for images 0 % of"),
        (150, 100, 0.2, 1, 1, "20 % of the time. They compete for the cores: try more workers, or fewer."),
        (50, 100, 0.5, 1, 2, "50 % of the time: the loader is 0.50 times as fast. --workers 2 would keep up."),
        (50, 100, 0.5, 0, 2, "--workers 2 would keep up."),
        (30, 100, 0.7, 2, 7, "--workers 7 would keep up, on 7 cores; this machine has 4."),
    ],
)  # fmt: skip
def test_verdicts(loader: float, network: float, waiting: float, workers: int, needed: int, said: str) -> None:
    speed = Speed(loader, network, network * (1 - waiting), waiting, workers, cores=4)
    assert speed.workers_needed == needed
    assert said in speed.verdict


def test_refusals_are_those_of_training() -> None:
    code, _, err = bench("fashion_vit")
    assert code == 2
    assert "--data says where the images are" in err
    code, _, err = bench("fashion_vit", "--data", "nowhere", *TINY)
    assert code == 2
    assert "there is no folder 'nowhere'" in err
