"""The tools behind the documentation: drawings that are what their script draws, and links of the site."""

import doctest
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.scripts import load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["docs_site", "docs_doctests", "draw_idea"])
def test_doctests(name: str) -> None:
    found = doctest.testmod(load(name, "tools"))
    assert found.attempted
    assert not found.failed


def test_drawings_are_those_of_the_script(tmp_path: Path) -> None:
    load("draw_idea", "tools").main(tmp_path)
    assert (tmp_path / "blocks.svg").read_text() == (ROOT / "docs" / "blocks.svg").read_text()
    drawn, kept = (np.asarray(Image.open(folder / "mirror.png")) for folder in (tmp_path, ROOT / "docs"))
    assert np.array_equal(drawn, kept)
    assert load("draw_fold", "tools").draw() == (ROOT / "docs" / "fold.svg").read_text()


def test_links_in_the_site(tmp_path: Path) -> None:
    """Prose is changed, code is not; a file outside of docs/ is copied."""
    site = load("docs_site", "tools")
    text = "[a](../examples/slurm.sbatch) [b](dense.md#law)\n```text\n[c](../README.md)\n```\n[d](../README.md) [e](https://x.y)"
    page = type("Page", (), {"file": type("File", (), {"src_uri": "distributed.md"})})
    assert site.on_page_markdown(text, page) == (
        "[a](files/examples/slurm.sbatch) [b](dense.md#law)\n```text\n[c](../README.md)\n```\n[d](index.md) [e](https://x.y)"
    )
    copied = site.outside(text, "docs/distributed.md")
    assert copied == {"files/examples/slurm.sbatch": ROOT / "examples" / "slurm.sbatch"}
