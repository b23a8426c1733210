"""The same figures in the terminal and in Markdown; nothing is cut, nothing is taken for markup."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from support.measurements import MACHINE, equivariant, in_setting, many, ordinary, own

from flopping.lab.report import tables
from flopping.lab.report.comparison import Row, compare

PAIR = compare([ordinary(), equivariant()])
BY_HAND = {
    "model": "E(ViT-B)",
    "params M": "43.30",
    "params M (paper)": "43.3",
    "im/s": "32.00",
    "im/s (paper)": "3266",
    "ms (IQR)": "250.0 (50.0)",
    "speed-up": "1.60 [1.50, 2.10]",
    "speed-up (paper)": "1.06",
    "FLOPs G": "9.000",
    "FLOPs G (paper)": "9.3",
    "FLOPs X/E": "2.00",
    "efficiency": "0.80",
    "efficiency (paper)": "0.56",
    "memory MB": "500",
    "memory MB (paper)": "828",
    "compile s": "10.0",
    "top-1 % (paper)": "82.2",
}
NARROW = {"model", "im/s", "speed-up", "speed-up (paper)", "FLOPs X/E", "memory MB"}
"""What a terminal shows without --wide."""
EVIL = r"<script>|[x](y)*_`\{$%&#~^" + '"'


def in_terminal(rows: list[Row], width: int = 80, wide: bool = False) -> str:
    out = io.StringIO()
    tables.show(rows, Console(file=out, width=width), wide)
    return out.getvalue()


def in_markdown(rows: list[Row]) -> list[dict[str, str]]:
    """The lines of the first table by heading."""
    table = tables.markdown(rows).split("\n\n")[1]
    heading, rule, *lines = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table.splitlines()]
    assert rule[0] == ":--"
    assert set(rule[1:]) == {"--:"}
    assert {len(line) for line in lines} == {len(heading)} == {len(rule)}
    plain = [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line] for line in (heading, *lines)]
    return [dict(zip(plain[0], line, strict=True)) for line in plain[1:]]


def test_markdown_has_every_figure() -> None:
    assert in_markdown(PAIR)[1] == BY_HAND


@pytest.mark.parametrize("wide", [False, True])
def test_terminal_has_the_main_figures_or_all(wide: bool) -> None:
    (line,) = [line for line in in_terminal(PAIR, wide=wide).splitlines() if line.split()[:1] == ["E(ViT-B)"]]
    figures = " ".join(text for name, text in BY_HAND.items() if wide or name in NARROW)
    assert " ".join(line.split()) == figures


def test_a_column_without_figures_is_left_out() -> None:
    lines = in_markdown(compare([own("a"), own("b", "a")]))
    assert not [name for name in lines[0] if "paper" in name]
    assert "compile s" not in in_markdown(compare([ordinary(compile_seconds=None)]))[0]


def test_families_are_headed_in_the_order_of_the_paper() -> None:
    names = [line["model"] for line in in_markdown(compare(many()))]
    assert [name for name in names if name.startswith("**")] == ["**ResMLP**", "**ViT**", "**ConvNeXt**", "**others**"]
    assert names[:3] == ["**ResMLP**", "ResMLP-B24", "E(ResMLP-B24)"]
    assert names[5:7] == ["**ViT**", "E(ViT-H) [1]"]
    assert "**ViT**" not in tables.markdown(PAIR)


def test_the_title_names_the_gpu_if_it_was_used() -> None:
    machine = replace(MACHINE, gpu="A100")
    for device, words in (("cuda", "cuda, 2 threads, A100"), ("cpu", "cpu, 2 threads, Testor 9000")):
        assert words in tables.markdown(compare([ordinary(machine=machine, setting=in_setting(device=device))]))


@pytest.mark.parametrize("write", [in_terminal, tables.markdown], ids=["terminal", "markdown"])
def test_notes_say_how_where_and_what(write: object) -> None:
    """The words, whatever the escapes between them."""
    text = re.sub(r"[\\{}]", "", " ".join(write(compare(many())[:17]).split()))  # type: ignore[operator]
    for words in (
        "[1] E(ViT-H) has no times: out of memory: 9.1 GiB are needed, 4.2 GiB free.",
        "Medians of 5 to 20 rounds after 3 runs to warm up; input 3 x 224 x 224.",
        "had an IQR of 1.2% to 7.0% of its median. The machine was busy (more than 5%)",
        "Measured on Testor 9000, 2 cores, 24 GiB, Linux 6.1, Python 3.11.7, flopping 0.1.0, torch 2.15.0",
        "instructions=AVX2.",
        "Only ratios within one run are comparable",
        "one A100-40GB at batch 64",
        "Efficiency is speed-up divided by FLOPs X/E",
    ):
        assert words in text, words


def test_problems_are_numbered_and_marked() -> None:
    short = equivariant(seconds=(0.2,), problem="interrupted")
    none = ordinary(seconds=(), problem="illegal instruction.")
    lines = in_markdown(compare([none, short]))
    assert [line["model"] for line in lines] == ["ViT-B [1]", "E(ViT-B) [2]"]
    assert lines[0]["im/s"] == lines[0]["ms (IQR)"] == ""
    assert lines[1]["im/s"] == "40.00"
    text = in_terminal(compare([none, short]))
    assert "[1] ViT-B has no times: illegal instruction.\n" in text
    assert "[2] E(ViT-B) has fewer figures than were asked for: interrupted.\n" in text


def test_names_are_never_cut_and_the_papers_fit() -> None:
    for width in (40, 80):
        text = in_terminal(compare(many()), width=width)
        assert "…" not in text
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    long = "a_very_long_name_" * 8 + ".py:attribute"
    assert long in in_terminal([Row(own(long), None)], width=40)


@pytest.mark.parametrize("name", [EVIL, "[red]x[/red]", "[link=http://x]y[/link]", "* [a](b)", r"\\[3cm]"])
def test_names_are_not_taken_for_markup(name: str) -> None:
    rows = [Row(own(name, problem=name), None)]
    assert f"{name} [1]" in in_terminal(rows)
    (line,) = in_markdown(rows)
    assert line["model"].replace("&lt;", "<").replace("&amp;", "&") == f"{name} [1]"
    assert "<" not in tables.markdown(rows)
