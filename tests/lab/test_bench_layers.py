"""Single layers side by side; nothing here depends on how fast the machine is."""

import pytest
import torch
from support.marks import needs_onednn
from typer.testing import CliRunner

from flopping.cost.timing import Timing
from flopping.errors import UsageError
from flopping.functional import product
from flopping.lab.bench import bench_layers as layers
from flopping_cli import app


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "BATCH", 1)
    monkeypatch.setattr(layers, "WIDTH", 64)
    monkeypatch.setattr(layers, "CONVOLUTIONS", {(32, 6): (1.5, 1.25), (64, 3): (0.9, 0.8)})


def test_pairs_do_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides give the same number of values, in all ways in which the ordinary one runs."""
    for pair in (*layers.transformer_pairs(), *layers.convolution_pairs()):
        for case in pair.ordinary:
            with torch.no_grad():
                ordinary, parts = case.layer.eval()(case.x), pair.equivariant.layer.eval()(pair.equivariant.x)
            assert ordinary.numel() == sum(part.numel() for part in parts)
    monkeypatch.setattr(layers, "MODES", ("eager",))
    results = list(layers.bench_layers(layers.select_runs(), repeats=1))
    assert [result.name for result in results] == [pair.name for pair in layers.transformer_pairs()]
    assert all((result.met is None) == (result.goal is None) and result.speedup > 0 for result in results)


def test_convolutions_run_in_both_formats_and_the_faster_counts() -> None:
    pair = layers.convolution_pairs()[0]
    formats = (torch.contiguous_format, torch.channels_last)
    for case, form in zip(pair.ordinary, formats, strict=True):
        assert isinstance(case.x, torch.Tensor)
        assert case.x.is_contiguous(memory_format=form)
        assert case.layer.weight.is_contiguous(memory_format=form)  # type: ignore[operator]
    seconds = {f"{pair.name} 0": 3.0, f"{pair.name} 1": 2.0, pair.name: 1.0}
    found = layers._compare(pair, "training", {name: Timing((s, s)) for name, s in seconds.items()})
    assert (found.ordinary_ms, found.speedup, found.low, found.high, found.goal) == (2000, 2, 2, 2, 1.25)


def test_a_training_step_gives_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda layer, **_: layer)
    pair = layers.convolution_pairs()[0]
    wanted = len(list(pair.equivariant.layer.parameters())) + 2
    assert len(pair.equivariant.prepare("training")()) == wanted  # type: ignore[arg-type]
    assert len(pair.ordinary[1].prepare("training")()) == 3  # type: ignore[arg-type]
    names = [(r.name, r.mode) for r in layers.bench_layers(layers.select_runs(["conv2d 32"]), repeats=1)]
    assert names == [("Conv2d 32@6", "compiled"), ("Conv2d 32@6", "training")]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="Conv3d; there are"):
        layers.select_runs(["Conv3d"])


@needs_onednn
def test_onednn_multiplies_in_convolutions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it in ordinary layers; the switch is as before afterwards."""
    found = []

    def note(pairs: list[layers.Pair], mode: str, *_: object) -> dict[str, Timing]:
        found.append((pairs[0].name, mode, product._enabled))
        names = [f"{pair.name} {number}" for pair in pairs for number in range(len(pair.ordinary))]
        return {name: Timing((1.0, 1.0)) for name in (*names, *(pair.name for pair in pairs))}

    monkeypatch.setattr(layers, "_time", note)
    monkeypatch.setattr(layers, "onednn_is_faster", lambda: True)
    list(layers.bench_layers(layers.select_runs(["Mlp", "conv2d 32"])))
    mlp, conv = "Mlp", "Conv2d 32@6"
    assert found == [
        (mlp, "eager", False), (mlp, "compiled", False), (conv, "compiled", True), (conv, "training", True),
    ]  # fmt: skip
    assert not product._enabled


def test_the_table_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        layers.Result("Mlp", "compiled", 2.0, 1.0, 2.1, 2.0, 2.2, 1.7),
        layers.Result("GELU", "eager", 1.0, 1.0, 0.5, 0.4, 0.6, 1.0),
    ]
    monkeypatch.setattr(layers, "bench_layers", lambda *args, **kwargs: results)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    words = ["bench", "layers", "--repeats", "7", "--threads", "1"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Medians of 7 rounds" in text
    assert "1 x 197 x 64 (GELU: 256), images 1 x 3 x 224 x 224" in text
    assert text.index("2.10 [2.00, 2.20] │ 1.70 │ met") < text.index("0.50 [0.40, 0.60] │ 1.00 │ missed")
