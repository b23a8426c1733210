"""One run of a network: modes, precisions, training, memory."""

import pytest
import timm
import torch
from support import networks_to_measure
from support.measurements import in_setting
from support.networks_to_measure import Net

from flopping.cost.worker import Run, describe, peak_memory
from flopping.functional import operation

X = torch.randn(2, 3, 8, 8)


def test_networks_that_cannot_be_counted_are_described() -> None:
    """One has an operation without a rule; the other looks at numbers, which the meta device has not."""
    for name, words in {"Unknown": "special_bessel_j0", "Looking": ""}.items():
        found = describe(f"{networks_to_measure.__file__}:{name}", training=False)
        assert (found["params"], found["input_size"]) == (192 * 4 + 4, (3, 8, 8))
        assert words in (found["problem"] or "")


def test_training_updates_the_weights() -> None:
    model = Net()
    before = model.head.weight.clone()
    run = Run(model, X, in_setting(mode="eager", task="training", batch=2))
    run()
    assert not torch.equal(model.head.weight, before)
    assert model.head.weight.grad is None
    assert model.training
    found = peak_memory(run)
    assert found is not None
    assert found.peak >= 3 * 4 * (192 * 4 + 4)  # with the optimiser's state


@pytest.mark.parametrize("task", ["inference", "training"])
@pytest.mark.parametrize("optimised", [True, False])
def test_a_network_without_optimisations(optimised: bool, task: str) -> None:
    """It isn't fused, and its last block computes all tokens."""
    model = timm.create_model("deit3_flop_test_patch16_64", group="trivial")
    run = Run(model, torch.randn(2, 3, 64, 64), in_setting(mode="eager", task=task, batch=2), optimised=optimised)
    seen = []
    last = run.model.get_submodule("blocks")[-1]
    last.mlp.register_forward_hook(lambda _, given, out: seen.append(out[0].shape[1]))
    run()
    assert seen == [1 if optimised else 17]
    assert (run.model is model) == (not optimised or task == "training")


@pytest.mark.parametrize("mode", ["compiled-frozen", pytest.param("compiled", marks=pytest.mark.long)])
def test_frozen_weights_are_constants(mode: str) -> None:
    """Frozen code does not notice that a weight changes."""
    run = Run(Net(), X, in_setting(mode=mode, batch=2))
    run()
    with torch.no_grad():
        before = run.compiled(run.x).clone()
        run.model.get_submodule("head").weight.zero_()
        after = run.compiled(run.x)
    assert torch.equal(before, after) == (mode == "compiled-frozen")
    if mode == "compiled-frozen":
        assert peak_memory(run) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inference_has_no_gradients_and_runs_in_its_precision(dtype: str) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Identity()).train()
    seen = []
    model.register_forward_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), model.training, torch.is_autocast_enabled("cpu")))
    )
    Run(model, X, in_setting(mode="eager", dtype=dtype, batch=2))()
    assert seen == [(False, False, dtype == "bfloat16")]
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


@pytest.mark.parametrize("task", ["inference", "training"])
def test_our_networks_run_in_the_inference_form(task: str) -> None:
    model = timm.create_model("deit3_flop_test_patch16_64")
    run = Run(model, torch.randn(2, 3, 64, 64), in_setting(mode="eager", task=task, batch=2))
    run()
    first = run.model.get_submodule("blocks.0.ls1")
    assert isinstance(first, torch.nn.Identity) == (run.model is not model) == (task == "inference")


def test_operations_are_compiled_while_their_network_runs() -> None:
    seen = []
    model = Net()
    model.register_forward_hook(lambda *_: seen.append(operation._compiler is not None))
    for mode in ("operations", "eager"):
        Run(model, X, in_setting(mode=mode, batch=2))()
    assert seen == [True, False]
    assert operation._compiler is None
