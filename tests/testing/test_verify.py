"""The table of `verify` and the command line around it."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
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


@pytest.mark.parametrize("wrong", [Rectify(), Leak(Layout.regular(flop, 16))], ids=["Rectify", "Leak"])
def test_the_first_layer_that_breaks_is_named(wrong: nn.Module) -> None:
    rows = verify(randomize_(network(wrong)), IMAGE)
    broken = first_break(rows)
    assert (broken.name, broken.layer) == ("3", type(wrong).__name__)
    assert not any(row.passed for row in rows[rows.index(broken) :]), "the error is carried on"
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


def test_what_must_fail_as_a_whole() -> None:
    """An ordinary network, and one that follows a smaller group than asked for."""
    ordinary = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    assert [(row.name, row.passed) for row in verify(randomize_(ordinary), IMAGE)] == [("(whole)", False)]
    assert verify(randomize_(network()), IMAGE, group=octic)[-1].passed is False


# --- the command -----------------------------------------------------------------------------------

MINE = """
import torch
from flopping import Layout, nn
width = Layout.regular("flop", 8)
class Wrong(torch.nn.Module):
    def forward(self, x):
        return x[0], x[1].abs()
def build():
    return nn.Sequential(nn.PatchEmbed(width, 8, 4), nn.InvariantHead(width, 3))
def bad():
    return nn.Sequential(nn.PatchEmbed(width, 8, 4), Wrong(), nn.InvariantHead(width, 3))
def crash():
    raise RuntimeError("deep in my code")
def _hidden():
    raise RuntimeError("must not run")
net = build()
maps = nn.Sequential(nn.DepthwiseConv2d(width, 3), nn.Downsample(width, width))
plain = nn.LayerNorm(Layout.regular("trivial", 8))
wide = nn.Sequential(nn.PatchEmbed(width, (8, 16), 4), nn.InvariantHead(width, 3))
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    source = tmp_path / "mine.py"
    source.write_text(MINE)
    return source


def run(*arguments: str) -> Result:
    return runner.invoke(app, ["verify", *arguments], env={"COLUMNS": "600"})


def test_command_verifies_all_layers_of_a_group() -> None:
    result = runner.invoke(app, ["verify", "layers", "--group", "flipflop", "--dtype", "float64", "--json"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {row["layer"] for row in rows} == set(LAYERS)
    assert all(row["passed"] and row["error"] <= row["tolerance"] == 1e-12 for row in rows)


# exit code, text in the output; MINE is the file
COMMANDS: list[tuple[str, int, str]] = [
    ("MINE:net", 0, "No layer breaks"),
    ("MINE:build --img-size 8", 0, "pass"),
    ("MINE:maps", 0, "No layer breaks"),
    ("MINE:bad", 1, "The first layer that breaks is 1 (Wrong)"),
    ("MINE:bad", 1, "FAIL"),
    ("MINE:net --group octic", 1, "FAIL"),
    ("MINE:net --group flipflop", 1, "checked: the group flipflop (flop, flip, rot180)"),
    ("Affine", 0, "checked: all groups of the pixel grid"),
    ("Affine --group flop", 0, "┃ tolerance ┃ result ┃"),
    ("MINE:plain", 2, "Nothing to check"),
    ("MINE:maps --group octic", 2, "Sequential can't be checked for octic"),
    ("MINE:wide --group octic", 2, "Sequential can't be checked for octic"),
    ("MINE:build --img-size 30", 2, "refuses --img-size 30: PatchEmbed was built for images of size (8, 8)"),
    ("MINE:god", 2, "has no 'god'"),
    ("MINE:number", 2, "is int"),
    ("MINE", 2, "it defines Wrong, build, bad"),
    ("no_file.py:net", 2, "no file 'no_file.py'"),
    ("no.such.package:net", 2, "cannot import"),
    (":net", 2, "':net'"),
    ("..near:net", 2, "'..near:net'"),
    ("torch:zeros", 2, "'torch:zeros'"),
    ("vit_tinyy_patch16_224", 2, "closest are"),
    ("Linear --group flap", 2, "unknown group 'flap'"),
    ("TokenMix --group octic", 0, "No layer breaks; 2 of 2 shown"),
    ("Linear --dtype float8", 2, "float8"),
    ("Linear --img-size 7", 2, "got the layer 'Linear'"),
    ("attention", 2, "'attention'; the closest are Attention"),
    ("ToRegular", 2, "ToRegular gives up the group"),
    ("zzzzzzz", 2, "'zzzzzzz'. For your own module"),
    ("test_vit --img-size 30", 2, "refuses --img-size 30: Input height (30)"),
]


@pytest.mark.parametrize(("line", "code", "text"), COMMANDS)
def test_command(mine: Path, line: str, code: int, text: str) -> None:
    result = run(*line.replace("MINE", str(mine)).split())
    assert result.exit_code == code, result.output
    assert text in " ".join(result.output.split())
    assert "_hidden" not in result.output


def test_errors_of_a_users_own_code(mine: Path) -> None:
    """A crash is shown with its traceback; a file without an attribute is read, not run."""
    crashed = run(f"{mine}:crash")
    assert crashed.exit_code == 2
    assert "in crash" in crashed.stderr
    assert "RuntimeError: deep in my code" in crashed.stderr
    mine.write_text(MINE + "_hidden()\n")
    assert "it defines Wrong" in run(str(mine)).output
    mine.write_text(MINE + "def\n")
    assert "invalid syntax" in run(str(mine)).output
