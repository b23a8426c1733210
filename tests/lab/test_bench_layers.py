"""Single layers side by side; nothing here depends on how fast the machine is."""

import pytest
import torch
from typer.testing import CliRunner

from flopping import flop, octic
from flopping.cost.timing import Timing
from flopping.errors import UsageError
from flopping.lab.bench import bench_layers as layers
from flopping_cli import app


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "BATCH", 1)
    monkeypatch.setattr(layers, "CONVOLUTIONS", {(32, 6): (1.5, 1.25), (64, 3): (0.9, 0.8)})


def test_pairs_do_the_same_job() -> None:
    """Both sides give the same number of values, in all ways in which the ordinary one runs."""
    for pair in layers.pairs(width=64):
        for case in pair.ordinary:
            with torch.no_grad():
                ordinary, parts = case.layer.eval()(case.x), pair.equivariant.layer.eval()(pair.equivariant.x)
            assert ordinary.numel() == sum(part.numel() for part in parts)
    results = list(layers.bench_layers(64, flop, modes=("eager",), repeats=1))
    assert [result.name for result in results] == [pair.name for pair in layers.transformer_pairs(64, flop)]
    assert all(result.goal is None and result.met is None and result.speedup > 0 for result in results)


def test_convolutions_run_in_both_formats_and_the_faster_counts() -> None:
    pair = layers.convolution_pairs(flop)[0]
    formats = (torch.contiguous_format, torch.channels_last)
    for case, form in zip(pair.ordinary, formats, strict=True):
        assert isinstance(case.x, torch.Tensor)
        assert case.x.is_contiguous(memory_format=form)
        assert case.layer.weight.is_contiguous(memory_format=form)  # type: ignore[operator]
    seconds = {f"{pair.name} 0": 3.0, f"{pair.name} 1": 2.0, pair.name: 1.0}
    found = layers._compare(pair, "training", {name: Timing((s, s)) for name, s in seconds.items()})
    assert (found.ordinary_ms, found.speedup, found.low, found.high, found.goal) == (2000, 2, 2, 2, 1.25)
    assert [each.goals for each in layers.convolution_pairs(octic)] == [{}, {}]


def test_a_training_step_gives_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda layer, **_: layer)
    pair = layers.convolution_pairs(flop)[0]
    wanted = len(list(pair.equivariant.layer.parameters())) + 2
    assert len(pair.equivariant.prepare("training")()) == wanted  # type: ignore[arg-type]
    assert len(pair.ordinary[1].prepare("training")()) == 3  # type: ignore[arg-type]
    names = [(r.name, r.mode) for r in layers.bench_layers(64, flop, ("compiled", "training"), 1, only=["conv2d 32"])]
    assert names == [("Conv2d 32@6", "compiled"), ("Conv2d 32@6", "training")]


@pytest.mark.parametrize(("width", "only", "value"), [(100, (), "got 100"), (64, ("Conv3d",), "Conv3d; there are")])
def test_what_is_refused(width: int, only: tuple[str, ...], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        list(layers.bench_layers(width, flop, modes=("eager",), repeats=1, only=only))


def test_the_table_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        layers.Result("Mlp", "compiled", 2.0, 1.0, 2.1, 2.0, 2.2, 1.7),
        layers.Result("GELU", "eager", 1.0, 1.0, 0.5, 0.4, 0.6, 1.0),
    ]
    monkeypatch.setattr(layers, "bench_layers", lambda *args, **kwargs: results)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    words = ["bench", "layers", "--width", "128", "--repeats", "7", "--threads", "1"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Medians of 7 rounds" in text
    assert "1 x 197 x 128 (GELU: 512), images 1 x 3 x 224 x 224" in text
    assert text.index("2.10 [2.00, 2.20] │ 1.70 │ met") < text.index("0.50 [0.40, 0.60] │ 1.00 │ missed")
