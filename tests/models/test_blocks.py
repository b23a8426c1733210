"""Blocks of a network: which are of the same kind."""

import timm
import torch

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.models.blocks import find_blocks, group_blocks


def test_kinds_are_told_apart_by_type_and_settings() -> None:
    """Not by what a block prints: that doesn't show its function."""
    layout = Layout.regular(flop, 16)
    variants = [
        *({}, {"function": torch.relu}, {"num_heads": 1}, {"drop_path": 0.1}, {"init_values": 1.0}, {"eps": 1e-3}),
        *({"qk_norm": True}, {"gated_mlp": True}, {"rope": fnn.RotaryEmbed(Layout.regular(flop, 16), 2, 4)}),
    ]
    blocks = [fnn.TransformerBlock(layout, **{"num_heads": 2, **args}) for args in (*variants, {})]
    assert repr(blocks[0]) == repr(blocks[1])
    assert [len(kind) for kind in group_blocks(blocks)] == [2, *[1] * 8]
    assert group_blocks(blocks)[0] == [blocks[0], blocks[-1]]


def test_kinds_of_networks() -> None:
    """Ours and timm's; a hand-off begins another kind, and so does every rate that rises."""
    wanted = {
        "deit3_flop_hybrid_test_patch16_64": ({}, [2, 2]),
        "resmlp_flop_test_64": ({}, [4]),
        "convnext_flop_test": ({}, [1, 1, 2, 1]),
        "convnext_flop_iso_test": ({"drop_path_rate": 0.1}, [1, 1, 1]),
        "resnet_flop_test": ({}, [1, 1, 1, 1, 1]),
        "resnet26": ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        "resnet50": ({}, [1, 2, 1, 3, 1, 5, 1, 2]),
        "deit3_small_patch16_224": ({"embed_dim": 32, "depth": 3, "num_heads": 2}, [3]),
    }
    for name, (args, sizes) in wanted.items():
        found = group_blocks(find_blocks(timm.create_model(name, **args)))
        assert [len(kind) for kind in found] == sizes, name
