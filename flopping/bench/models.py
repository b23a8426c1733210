"""Equivariant networks against ordinary ones of the same size: the saving on the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import timm
import torch

from flopping.bench.layers import Result
from flopping.bench.timing import interleave
from flopping.models import paper_names, registered_name

GOALS: dict[str, dict[str, float]] = {
    "ViT-S": {"eager": 1.0, "compiled": 1.6},
    "ViT-B": {"compiled": 1.7},
    "ResMLP-S24": {"eager": 1.0, "compiled": 1.7},
    "ResMLP-B24": {"compiled": 1.8},
    "ConvNeXt-S (iso.)": {"eager": 1.0, "compiled": 1.5},
    "ConvNeXt-B (iso.)": {"compiled": 1.7},
}
"""The speed-up that E(X) must reach over X at least, by mode: float32, batch 8, 2 threads, no gradients."""
BATCH, THREADS = 8, 2


def bench_models(
    names: Sequence[str] = tuple(GOALS),
    modes: Sequence[str] = ("eager", "compiled"),
    batch: int = BATCH,
    repeats: int = 20,
    progress: Callable[[str], object] | None = None,
) -> Iterator[Result]:
    """Time E(X) beside X, interleaved, for each X given by the paper's name of X or of E(X)."""
    pairs = [(name, paper_names()[name], paper_names()[f"E({name})"]) for name in map(ordinary_name, names)]
    goals_hold = batch == BATCH and torch.get_num_threads() == THREADS
    for name, ordinary, equivariant in pairs:
        x = torch.randn(batch, *timm.get_pretrained_cfg(equivariant).input_size)
        models = {n: timm.create_model(n).eval() for n in (ordinary, equivariant)}
        for mode in modes:
            if progress is not None:
                progress(f"E({name}), {mode}")
            functions = {n: _call(model, x, mode) for n, model in models.items()}
            with torch.no_grad():
                timings = interleave(functions, repeats)
            slow, fast = timings[ordinary], timings[equivariant]
            bar = GOALS.get(name, {}).get(mode) if goals_hold else None
            yield Result(f"E({name})", mode, 1e3 * slow.median, 1e3 * fast.median, slow.over(fast), bar)
        torch.compiler.reset()


def _call(model: torch.nn.Module, x: torch.Tensor, mode: str) -> Callable[[], object]:
    called = torch.compile(model, fullgraph=True) if mode == "compiled" else model
    return lambda: called(x)


def ordinary_name(name: str) -> str:
    """The paper's name of X, from any spelling of X or E(X).

    >>> ordinary_name("e(vit-s)"), ordinary_name("ConvNeXt-S iso.")
    ('ViT-S', 'ConvNeXt-S (iso.)')
    """
    papers = {registered: paper for paper, registered in paper_names().items()}
    paper = papers.get(registered_name(name), "")
    ordinary = paper[2:-1] if paper.startswith("E(") else paper
    if f"E({ordinary})" not in paper_names():
        pairs = [x for x in paper_names() if f"E({x})" in paper_names()]
        raise ValueError(f"{name!r} has no equivariant twin in the paper; those that have are {', '.join(pairs)}")
    return ordinary
