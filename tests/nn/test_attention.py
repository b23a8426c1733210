"""Attention with masks, a context, normed queries and keys, rotary positions; gated MLPs: laws, and timm's layers."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
import torch
import torch.nn.functional as F
from support.oracles import GROUPS, assert_same, dense_linear, layouts, regular_basis
from timm.layers import Attention as TimmAttention
from timm.layers import GluMlp
from torch import Tensor, nn

from flopping import Layout, flop, functional, octic, trivial
from flopping import nn as fnn
from flopping.groups import Group, grid_groups
from flopping.testing import assert_equivariant, equivariance_errors, randomize_, relative_error

each_group = pytest.mark.parametrize("group", GROUPS, ids=str)


def sizes(group: Group) -> tuple[Layout, tuple[int, int]]:
    """Two heads of four copies with extra invariant channels; a rectangle where the group keeps rectangles."""
    return Layout.regular(group, 8 * group.order + 8, extra=8), (3, 3) if group.swaps_axes else (3, 4)


# --- rotary positions ------------------------------------------------------------------------------


def rotary(layout: Layout, grid: tuple[int, int], prefix: int = 0) -> fnn.RotaryEmbed:
    rope = fnn.RotaryEmbed(layout, 2, grid, num_prefix_tokens=prefix, dtype=torch.float64)
    assert rope.cos.shape == (prefix + prod(grid), layout.dim // 2)
    return rope


@pytest.mark.parametrize("group", grid_groups().values(), ids=str)
def test_products_depend_on_differences_of_places(group: Group) -> None:
    """One query and one key on all places; prefix tokens don't turn, so the product of two of them is the plain one."""
    layout, (h, w) = sizes(group)
    rope = rotary(layout, (h, w), prefix=2)
    q, k = torch.randn(2, rope.cos.shape[1], dtype=torch.float64)
    turned_q, turned_k = (rope.turn(x.expand(len(rope.cos), -1)) for x in (q, k))
    torch.testing.assert_close((turned_q * turned_q).sum(-1), (q @ q).expand(len(rope.cos)))
    products = turned_q @ turned_k.T
    torch.testing.assert_close(products[:2, :2], (q @ k).expand(2, 2))
    by_place = products[2:, 2:].view(h, w, h, w)
    torch.testing.assert_close(by_place[:-1, :-1, :-1, :-1], by_place[1:, 1:, 1:, 1:])
    assert (by_place[0, 0, 1:] - by_place[0, 0, :1]).abs().min() > 1e-4, "rows matter"
    assert (by_place[0, 0, :, 1:] - by_place[0, 0, :, :1]).abs().min() > 1e-4, "and so do columns"


@pytest.mark.parametrize("group", grid_groups().values(), ids=str)
def test_every_regular_channel_turns(group: Group) -> None:
    """By as many different rates per axis as a head has quarters of channels; extra channels don't turn."""
    layout = sizes(group)[0]
    planes = functional.rotary_planes(layout, 2, 100.0)
    for rates in planes.rates:
        assert len(set(rates) - {0.0}) == layout.copies * group.order // 2 // 4
    still = [rates == (0, 0) for rates in zip(*planes.rates, strict=True)]
    assert sum(still) == layout.extra // 2 if group.order > 1 else not any(still)


def test_pairs_of_flop() -> None:
    """Planes of the horizontal angle pair an even with an odd channel, others channels of one kind."""
    planes = functional.rotary_planes(Layout.regular(flop, 64), 2, 100.0)
    partners = [channel for start, length in planes.partners for channel in range(start, start + length)]
    for channel, partner in enumerate(partners):
        vertical, horizontal = (rates[channel] > 0 for rates in planes.rates)
        assert vertical != horizontal
        assert ((channel < 16) != (partner < 16)) == horizontal


@each_group
def test_the_usual_pairing_breaks_the_mirror(group: Group) -> None:
    """Channels paired as the trivial group does, whatever their irrep."""
    layout, grid = sizes(group)
    attention = randomize_(fnn.Attention(layout, 2, rope=rotary(layout, grid)).double())
    x = layout.random(2, prod(grid), dtype=torch.float64)
    assert_equivariant(attention, x, grid=grid)
    attention.rope = rotary(Layout.regular(trivial, layout.dim), grid)
    assert max(equivariance_errors(attention, x, grid=grid).values()) > 1e-2


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (3, 3), (7, 5), (4, 9), (14, 14)], ids=str)
def test_rotary_positions_of_flop_on_any_grid(grid: tuple[int, int]) -> None:
    """In single precision to 1e-6; the tables of another grid are made once."""
    layout = Layout.regular(flop, 64)
    attention = randomize_(fnn.Attention(layout, 2, rope=fnn.RotaryEmbed(layout, 2, (4, 4), num_prefix_tokens=1)))

    class At(fnn.Module):
        def forward(self, x):
            return attention(x, grid=grid)

    assert_equivariant(At(layout, layout), layout.random(2, 1 + prod(grid)), grid=grid, tol=1e-6)
    first, second = (attention.rope.tables(grid)[0] for _ in range(2))
    assert first is second
    torch.testing.assert_close(attention.rope.resize_(grid).cos, first)


# --- masks and a context ---------------------------------------------------------------------------


@each_group
def test_a_mask_moves_with_the_tokens(group: Group) -> None:
    layout, grid = sizes(group)
    tokens = prod(grid)
    attention = randomize_(fnn.Attention(layout, 2, rope=rotary(layout, grid)).double())
    x, mask = layout.random(2, tokens, dtype=torch.float64), torch.rand(2, 1, tokens, tokens) < 0.5
    mask |= torch.eye(tokens, dtype=torch.bool)
    for element in range(1, group.order):
        places = group.act(element, torch.arange(tokens).view(grid)).flatten()  # what stands where
        moved = attention(layout.act(element, x, grid), attn_mask=mask[:, :, places][..., places])
        assert relative_error(moved, layout.act(element, attention(x, attn_mask=mask), grid)) < 1e-12
        assert relative_error(moved, attention(layout.act(element, x, grid))) > 1e-3


@each_group
def test_masked_tokens_are_as_good_as_absent(group: Group) -> None:
    """As booleans, and as numbers that are added; for all tokens, and for those that are read."""
    layout = sizes(group)[0]
    attention = randomize_(fnn.Attention(layout, 2, qk_norm=True).double())
    x = layout.random(3, 7, dtype=torch.float64)
    seen = torch.arange(7) < 5
    expected = attention(tuple(part[:, :5] for part in x))
    added = torch.zeros(7, 7, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    for mask in (seen.expand(7, 7), seen.expand(1, 7), seen.expand(3, 2, 7, 7), added):
        found = tuple(part[:, :5] for part in attention(x, attn_mask=mask))
        assert relative_error(found, expected) < 1e-12
        first = attention(x, lambda x: tuple(part[:, :1] for part in x), mask)
        assert relative_error(first, tuple(part[:, :1] for part in expected)) < 1e-12


@each_group
def test_attention_to_a_context(group: Group) -> None:
    """Equivariant in both; with its own tokens as a context it is self-attention."""
    layout = sizes(group)[0]
    attention = randomize_(fnn.Attention(layout, 2, qkv_bias=True, qk_norm=True).double())
    x, context = layout.random(2, 3, dtype=torch.float64), layout.random(2, 5, dtype=torch.float64)
    assert relative_error(attention(x, context=x), attention(x)) < 1e-12
    out = attention(x, context=context)
    for element in range(1, group.order):
        moved = attention(layout.act(element, x), context=layout.act(element, context))
        assert relative_error(moved, layout.act(element, out)) < 1e-12
    read = attention(x, lambda x: tuple(part[:, 1:2] for part in x), context=context)
    assert relative_error(read, tuple(part[:, 1:2] for part in out)) < 1e-12
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[:, 2:] = False
    fewer = attention(x, context=tuple(part[:, :2] for part in context))
    assert relative_error(attention(x, attn_mask=mask, context=context), fewer) < 1e-12


REFUSED = {
    r"multiple of 8 .*got 12 in 1 heads of Layout\(flop, even=6, odd=6\)": lambda: fnn.RotaryEmbed(
        Layout.regular(flop, 12), 1, 3
    ),
    r"got 0 in 2 heads of Layout\(flop, even=8, odd=0\)": lambda: fnn.RotaryEmbed(Layout.invariant(flop, 8), 2, 3),
    r"multiple of 8 .*got 24 in 2 heads": lambda: fnn.RotaryEmbed(Layout.regular(octic, 24), 2, 3),
    r"square grid, got \(3, 4\)": lambda: fnn.RotaryEmbed(Layout.regular(octic, 16), 2, (3, 4)),
    r"above 1, got 0": lambda: fnn.RotaryEmbed(Layout.regular(flop, 16), 2, 3, temperature=0),
    r"those of 2 heads .*but attention has 1": lambda: fnn.Attention(
        Layout.regular(flop, 16), 1, rope=fnn.RotaryEmbed(Layout.regular(flop, 16), 2, 3)
    ),
    r"grid \(3, 3\) after 0 .*9, 8\), got shape \(1, 2, 8, 8\)": lambda: fnn.RotaryEmbed(
        Layout.regular(flop, 16), 2, 3
    ).turn(torch.zeros(1, 2, 8, 8)),
    r"a context has none": lambda: fnn.Attention(
        Layout.regular(flop, 16), 2, rope=fnn.RotaryEmbed(Layout.regular(flop, 16), 2, 3)
    )(Layout.regular(flop, 16).random(1, 9), context=Layout.regular(flop, 16).random(1, 9)),
    r"none, got grid \(3, 3\)": lambda: fnn.Attention(Layout.regular(flop, 16), 2)(
        Layout.regular(flop, 16).random(1, 9), grid=(3, 3)
    ),
    r"attn_mask has shape \(4, 4\), .*got \(3, 4\)": lambda: fnn.Attention(Layout.regular(flop, 16), 2)(
        Layout.regular(flop, 16).random(1, 4), attn_mask=torch.ones(3, 4)
    ),
    r"got \(2, 4, 4\)": lambda: fnn.Attention(Layout.regular(flop, 16), 2)(
        Layout.regular(flop, 16).random(2, 4), attn_mask=torch.ones(2, 4, 4)
    ),
    r"at least 1 register token, got 0": lambda: fnn.RegisterTokens(Layout.regular(flop, 16), 0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


# --- dense oracles and timm's layers ---------------------------------------------------------------


@each_group
def test_gated_mlp(group: Group) -> None:
    """On packed channels, by the matrix of the regular basis."""
    layout = layouts(group)[1]
    mlp = randomize_(fnn.Mlp(layout, layout * 2, torch.tanh, gated=True).double())
    hidden = layout * 2
    basis = regular_basis(hidden)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        doubled = (hidden * 2).split(F.linear(layout.merge(x), *dense_linear(mlp.fc1)))
        gate, value = (hidden.merge(half) @ basis.T for half in functional.split(doubled, [hidden, hidden]))
        return F.linear((torch.tanh(gate) * value) @ basis, *dense_linear(mlp.fc2))

    assert_same(mlp, layout.random(3, 4, dtype=torch.float64), oracle, layout.merge)


@each_group
def test_query_key_norm(group: Group) -> None:
    """Every head of every token on its own, by the norm of a feature."""
    layout = sizes(group)[0]
    attention = randomize_(fnn.Attention(layout, 2, qk_norm=True, eps=1e-3).double())
    x = layout.random(2, 3, dtype=torch.float64)
    plain = functional.heads(attention.qkv(x), layout, 2)
    for found, given, norm in zip(attention.heads(x), plain, (attention.q_norm, attention.k_norm, None), strict=True):
        for head in range(2):
            for token in range(3):
                value = given[1, head, token]
                if norm is not None:
                    value = norm.in_layout.merge(norm(norm.in_layout.split(value)))
                torch.testing.assert_close(found[1, head, token], value)


def load(ours: fnn.Module, theirs: nn.Module) -> None:
    """timm's weights under our names."""
    own = ours.state_dict()
    names = {key.replace(".even", ""): key for key in own}
    ours.load_state_dict({names[key]: value for key, value in theirs.state_dict().items()})


def test_trivial_group_is_timms_attention() -> None:
    """With normed queries and keys, and both kinds of masks."""
    theirs = randomize_(TimmAttention(32, 4, qkv_bias=True, qk_norm=True, norm_layer=partial(nn.LayerNorm, eps=1e-6)))
    ours = fnn.Attention(Layout.regular(trivial, 32), 4, qkv_bias=True, qk_norm=True)
    load(ours, theirs)
    x = torch.randn(2, 9, 32)
    for mask in (None, torch.rand(9, 9) < 0.7, torch.randn(2, 4, 9, 9)):
        torch.testing.assert_close(ours((x,), attn_mask=mask)[0], theirs(x, attn_mask=mask))


def test_trivial_group_is_timms_gated_mlp() -> None:
    theirs = randomize_(GluMlp(32, 96, act_layer=nn.SiLU, gate_last=False))
    layout = Layout.regular(trivial, 32)
    ours = fnn.Mlp(layout, layout * 1.5, F.silu, gated=True)
    load(ours, theirs)
    x = torch.randn(5, 32)
    torch.testing.assert_close(ours((x,))[0], theirs(x))
