"""Single layers side by side; nothing here depends on how fast the machine is."""

import pytest
import torch
from typer.testing import CliRunner

from flopping import flop
from flopping.errors import UsageError
from flopping.lab.bench import bench_layers as layers
from flopping_cli import app


def test_pairs_do_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides give the same number of values, and the bars apply to the width they were set for."""
    monkeypatch.setattr(layers, "BATCH", 1)
    for pair in layers.pairs(width=64):
        with torch.no_grad():
            ordinary, parts = pair.ordinary.eval()(pair.packed), pair.equivariant.eval()(pair.feature)
        assert ordinary.numel() == sum(part.numel() for part in parts)
    results = list(layers.bench_layers(64, flop, modes=("eager",), repeats=1))
    assert [result.name for result in results] == [pair.name for pair in layers.pairs(64)]
    assert all(result.bar is None and result.met is None and result.speedup > 0 for result in results)


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="got 100"):
        list(layers.bench_layers(100, flop, modes=("eager",), repeats=1))


def test_the_table_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        layers.Result("Mlp", "compiled", 2.0, 1.0, 2.1, 1.7),
        layers.Result("GELU", "eager", 1.0, 1.0, 0.5, 1.0),
    ]
    monkeypatch.setattr(layers, "bench_layers", lambda *args, **kwargs: results)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    result = CliRunner().invoke(app, ["bench", "layers", "--width", "128", "--repeats", "7", "--threads", "1"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Medians of 7 rounds" in text
    assert "8 x 197 x 128 (GELU: 512), images 8 x 3 x 224 x 224" in text
    assert text.index("2.10 │ 1.70 │ met") < text.index("0.50 │ 1.00 │ missed")
