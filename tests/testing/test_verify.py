"""The table of `verify` and the command line around it."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from flopping import Layout, flop, octic
from flopping import nn as fnn
from flopping.testing import randomize_
from flopping.testing.cases import LAYERS
from flopping.testing.verify import first_break, verify
from flopping_cli import app

runner = CliRunner()


class Rectify(nn.Module):
    """An ordinary function on a feature: right on even channels, wrong on odd ones."""

    def forward(self, x):
        return x[0].relu(), x[1].relu()


class Leak(nn.Module):
    """A user's own block without declared layouts, with an ordinary layer hidden inside."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.norm = fnn.LayerNorm(layout)
        self.odd = nn.Linear(layout.multiplicities[1], layout.multiplicities[1])  # its bias breaks the parity

    def forward(self, x):
        even, odd = self.norm(x)
        return even, self.odd(odd)


def network(*middle: nn.Module, group=flop) -> nn.Module:
    width = Layout.regular(group, 16)
    return fnn.Sequential(
        fnn.PatchEmbed(width, (8, 8), 4),
        fnn.PosEmbed(width, 2),
        fnn.ClassToken(width),
        *middle,
        fnn.TransformerBlock(width, 2),
        fnn.LayerNorm(width),
        fnn.InvariantHead(width, 3, pool="token"),
    )


IMAGE = torch.randn(2, 3, 8, 8)


def test_every_layer_has_a_row_in_order_of_execution() -> None:
    rows = verify(randomize_(network()), IMAGE)
    names = [row.name for row in rows]
    assert names[0] == "0.proj"
    assert names[-1] == "(whole)"
    assert names.index("3.attn.qkv") < names.index("3.attn") < names.index("3")
    assert all(row.passed for row in rows)
    assert first_break(rows) is None


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        (lambda: Rectify(), ("3", "Rectify")),
        (lambda: Leak(Layout.regular(flop, 16)), ("3", "Leak")),
    ],
)
def test_the_first_layer_that_breaks_is_named(wrong, culprit: tuple[str, str]) -> None:
    rows = verify(randomize_(network(wrong())), IMAGE)
    broken = first_break(rows)
    assert (broken.name, broken.layer) == culprit
    after = rows[rows.index(broken) :]
    assert not any(row.passed for row in after), "the error is carried on"
    assert all(row.passed for row in rows[: rows.index(broken)])


def test_a_declared_layer_with_a_fault_is_named() -> None:
    net = network()
    net[3].attn.proj.forward = lambda x: (x[0], x[1].abs())
    assert first_break(verify(randomize_(net), IMAGE)).name == "3.attn.proj"


def test_a_group_given_up_is_not_claimed() -> None:
    wide = Layout.regular(octic, 16)
    narrow = fnn.Restrict(wide, flop)
    hybrid = fnn.ToRegular(narrow.out_layout)
    net = fnn.Sequential(
        fnn.LayerNorm(wide), narrow, fnn.LayerNorm(narrow.out_layout), hybrid, fnn.LayerNorm(hybrid.out_layout)
    )
    rows = {row.name: row for row in verify(randomize_(net), wide.random(2, 5))}
    assert [rows[name].passed for name in "01234"] == [True, True, True, None, None]


def test_a_hybrid_is_not_blamed_unless_asked() -> None:
    """What follows the hand-off claims nothing; asked whether it follows flop, the whole says no."""
    width = Layout.regular(flop, 16)
    plain = fnn.ToRegular(width).out_layout
    net = fnn.Sequential(fnn.PatchEmbed(width, 8, 4), fnn.ToRegular(width), fnn.Mlp(plain), fnn.InvariantHead(plain, 3))
    rows = verify(randomize_(net), IMAGE)
    assert first_break(rows) is None
    assert [row.passed for row in rows if row.name in {"3", "(whole)"}] == [None, None]
    asked = verify(net, IMAGE, group=flop)
    assert asked[-1].passed is False


def test_features_of_a_larger_group_than_asked() -> None:
    wide = Layout.regular(octic, 16)
    net = randomize_(fnn.Sequential(fnn.LayerNorm(wide), fnn.Linear(wide, wide)))
    assert all(row.passed for row in verify(net, wide.random(2, 5), group=flop))
    small = Layout.regular(flop, 16)
    with pytest.raises(ValueError, match=r"rot90 of octic has no action on Layout\(flop"):
        verify(fnn.LayerNorm(small), small.random(2, 5), group=octic)


def test_a_smaller_group_than_asked_for_fails() -> None:
    rows = verify(randomize_(network()), IMAGE, group=octic)
    assert rows[-1].passed is False


def test_an_ordinary_network_fails_as_a_whole() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    rows = verify(randomize_(net), IMAGE)
    assert [(row.name, row.passed) for row in rows] == [("(whole)", False)]


def test_command_verifies_all_layers_of_a_group() -> None:
    result = runner.invoke(app, ["verify", "layers", "--group", "flipflop", "--dtype", "float64", "--json"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {row["layer"] for row in rows} == set(LAYERS)
    assert all(row["passed"] and row["error"] <= row["tolerance"] == 1e-12 for row in rows)


def test_command_shows_a_table_and_names_the_culprit(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import torch, flopping\n"
        "from flopping import Layout, flop, nn\n"
        "width = Layout.regular(flop, 8)\n"
        "class Wrong(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x[0], x[1].abs()\n"
        "def good():\n"
        "    return nn.Sequential(nn.PatchEmbed(width, 8, 4), nn.InvariantHead(width, 3))\n"
        "def bad():\n"
        "    return nn.Sequential(nn.PatchEmbed(width, 8, 4), Wrong(), nn.InvariantHead(width, 3))\n"
        "ready = good()\n"
        "maps = nn.Sequential(nn.DepthwiseConv2d(width, 3), nn.Downsample(width, width))\n"
        "plain = nn.LayerNorm(Layout.regular('trivial', 8))\n"
        "def crash():\n"
        "    raise RuntimeError('deep in my code')\n"
        "number = 3\n"
        "wide = nn.Sequential(nn.PatchEmbed(width, (8, 16), 4), nn.InvariantHead(width, 3))\n"
    )
    for name in ("ready", "maps"):
        result = runner.invoke(app, ["verify", f"{source}:{name}"])
        assert result.exit_code == 0, result.output
        assert "pass" in result.output
        assert "No layer breaks" in result.output
    result = runner.invoke(app, ["verify", f"{source}:bad"])
    assert result.exit_code == 1
    assert "FAIL" in result.output
    assert "The first layer that breaks is 1 (Wrong)" in result.output
    result = runner.invoke(app, ["verify", f"{source}:good", "--group", "octic"])
    assert result.exit_code == 1
    result = runner.invoke(app, ["verify", f"{source}:plain"])
    assert result.exit_code == 2
    assert "Nothing to check" in result.output
    result = runner.invoke(app, ["verify", f"{source}:crash"])
    assert str(result.exception) == "deep in my code"
    for target in ("maps", "wide"):  # a layout and a size of images that octic doesn't act on
        result = runner.invoke(app, ["verify", f"{source}:{target}", "--group", "octic"])
        assert result.exit_code == 2, result.output
        assert "Sequential can't be checked for octic" in " ".join(result.output.split())
    for wrong, message in {
        f"{source}:god": "has no 'god'; it has good",
        f"{source}:number": "is int, not a torch module",
        "no_file.py:net": "no file 'no_file.py'",
        "no.such.package:net": "cannot import",
        "vit_tinyy_patch16_224": "closest are",
    }.items():
        result = runner.invoke(app, ["verify", wrong], env={"COLUMNS": "400"})
        assert result.exit_code == 2, result.output
        assert message in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Linear", "--group", "flap"], "unknown group 'flap'"),
        (["TokenMix", "--group", "octic"], "TokenMix doesn't support octic; it supports flip, flipflop, flop, rot180"),
        (["Linear", "--dtype", "float8"], "float8"),
        (["Linear", "--img-size", "7"], "are for networks, got the layer 'Linear'"),
        (["attention"], "no layer and no model is called 'attention'; the closest are Attention"),
        (["ToRegular"], "ToRegular gives up the group"),
        (["zzzzzzz"], "is called 'zzzzzzz'. For your own module"),
        (["test_vit", "--img-size", "30"], "refuses --img-size 30: Input height (30) should be divisible"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["verify", *arguments], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert message in result.output


MINE = """
import torch
from flopping import Layout, nn
width = Layout.regular("flop", 8)
class Net(torch.nn.Module):
    def forward(self, x):
        return x.view(2, 3 * 16 * 16).sum(1)
def build():
    return nn.Sequential(nn.PatchEmbed(width, 16, 4), nn.InvariantHead(width, 3))
def _hidden():
    raise RuntimeError("must not run")
net = build()
"""


def test_a_file_alone_gets_the_names_to_choose_from(tmp_path: Path) -> None:
    """The file is read, not run: what fails in it doesn't matter yet."""
    source = tmp_path / "my_net.py"
    for ending, message in {
        "_hidden()": f"write {source}:ATTRIBUTE for a module in it, or a function that makes one;"
        " it defines Net, build, width, net",
        "def": "can't be loaded as Python code: invalid syntax",
    }.items():
        source.write_text(MINE + ending + "\n")
        result = runner.invoke(app, ["verify", str(source)], env={"COLUMNS": "600"})
        assert result.exit_code == 2
        assert message in result.output
        assert "_hidden" not in result.output


def test_a_size_that_the_network_refuses(tmp_path: Path) -> None:
    source = tmp_path / "my_net.py"
    source.write_text(MINE)
    result = runner.invoke(app, ["verify", f"{source}:build", "--img-size", "30"], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert "Sequential refuses --img-size 30: PatchEmbed was built for images of size (16, 16)" in result.output
    assert runner.invoke(app, ["verify", f"{source}:build", "--img-size", "16"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "caption"),
    [
        (["net", "--group", "flipflop"], "checked: the group flipflop (flop, flip, rot180)"),
        (["Affine"], "checked: each group that a layer supports"),
    ],
)
def test_the_table_says_which_group_was_checked(tmp_path: Path, arguments: list[str], caption: str) -> None:
    source = tmp_path / "my_net.py"
    source.write_text(MINE)
    target, *options = arguments
    target = f"{source}:net" if target == "net" else target
    result = runner.invoke(app, ["verify", target, *options])
    lines = [line.strip() for line in result.output.splitlines()]
    assert caption in lines
