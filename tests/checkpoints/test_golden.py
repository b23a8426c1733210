"""The reference code's networks, from its weights: the same logits and pooled features in float32."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.golden import FOLDER, HINTS, OCTIC, golden_file
from support.reference_format import to_reference
from torch import Tensor

from flopping import load_reference
from flopping.testing import equivariance_errors

NAMES = sorted(HINTS)


def load(name: str) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    path = golden_file(name)
    return load_reference(path, **HINTS[name]).eval(), load_file(path)


def near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0.0)


def test_every_golden_file_is_tested() -> None:
    golden_file(NAMES[0])
    found = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
    assert found == sorted([*NAMES, *OCTIC])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_logits_and_pooled_features(name: str) -> None:
    model, golden = load(name)
    x = golden["input"]
    near(model(x), golden["logits"])
    near(model(x.flip(-1)), golden["logits_flopped_input"])
    near(model.forward_head(model.forward_features(x), pre_logits=True), golden["pooled_features"])
    (error,) = equivariance_errors(model, x, group="flop").values()
    assert error > 0.01 if name == "vit_hybrid" else error < 1e-5


@pytest.mark.parametrize("name", OCTIC)
@torch.no_grad()
def test_octic_networks(name: str) -> None:
    """Logits, or the normed class token of DINOv2, of the image, its mirror image and its quarter turn."""
    golden = load_file(golden_file(name))
    model, x = load_reference(golden_file(name), num_heads=2).eval(), golden["input"]
    torch.testing.assert_close(model(x), golden["output"], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(model(x.flip(-1)), golden["output_flopped"], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(model(x.rot90(1, (-2, -1))), golden["output_rot90"], atol=1e-5, rtol=0.0)
    _, *errors = equivariance_errors(model, x, group="octic").values()
    assert min(errors) > 0.01 if "hybrid" in name else max(errors) < 1e-5


def test_the_teacher_of_a_training_run() -> None:
    golden = load_file(golden_file("octic_dinov2_invariant"))
    weights = {key.removeprefix("model."): value for key, value in golden.items() if key.startswith("model.")}
    teacher = {f"backbone.{key}": value for key, value in weights.items()} | {"dino_head.weight": torch.ones(2, 2)}
    got = load_reference({"teacher": teacher}, num_heads=2).state_dict()
    torch.testing.assert_close(got, load_reference(golden, num_heads=2).state_dict(), rtol=0, atol=0)


FORMS = {
    "bare": lambda weights: weights,
    "with logits beside": lambda weights: {**weights, "logits": torch.ones(1), "input": torch.ones(1)},
    "compiled, of a parallel run": lambda weights: {f"module._orig_mod.{k}": v for k, v in weights.items()},
    "beside other state": lambda weights: {"model": weights, "epoch": 3, "scaler": {}},
    "half precision": lambda weights: {k: v.half() if v.is_floating_point() else v for k, v in weights.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_state_dicts_and_their_wrappers(form: str) -> None:
    golden = load_file(golden_file("resmlp_equivariant"))
    expected = load_reference(golden).state_dict()  # with the prefix, and input and logits beside
    weights = {key.removeprefix("model."): value for key, value in golden.items() if key.startswith("model.")}
    got = load_reference(FORMS[form](weights)).state_dict()
    tolerance: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-6} if form == "half precision" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(got, expected, **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_the_way_back(name: str) -> None:
    """Written in the reference code's format again, all weights are those of the file."""
    model, golden = load(name)
    got = to_reference(model)
    expected = {key.removeprefix("model."): value for key, value in golden.items() if key.startswith("model.")}
    if name == "vit_equivariant":
        got.pop("norm.scaling.alpha_asym"), expected.pop("norm.scaling.alpha_asym")  # no logit depends on it
    assert set(got) == set(expected)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
