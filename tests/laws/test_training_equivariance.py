"""Training keeps networks equivariant, and has no use for mirrored images where the network ignores mirroring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from support.real_sizes import real_sizes
from support.training_runs import call, command, image_folder
from torch import Tensor, nn
from torchvision.transforms import RandomHorizontalFlip

from flopping.data.augment import RandomSymmetry
from flopping.data.images import ArrayDataset
from flopping.data.order import seed_generators
from flopping.groups import Group, flop, get_group
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.resnet import ResNet
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.zoo import ZOO
from flopping.testing import relative_error, run
from flopping.training.distributed import World
from flopping.training.job import Job, RunOptions
from flopping.training.learner import Learner, create_loss, create_mixup
from flopping.training.networks import build, ignores
from flopping.training.recipe import Recipe, load
from flopping.training.trainer import Trainer

CPU = World(torch.device("cpu"))
STEPS, BATCH, CLASSES = 3, 2, 5
SMALL = [name for name in ZOO if "test" in name]
INDUCTOR = ("test", "small", "tiny", "t12", "s24")
"""Sizes for which the longer suite generates code, too."""

RECIPES = {
    VisionTransformer: "deit3_base",
    ResMlp: "resmlp_base",
    ConvNeXt: "convnext_iso_base",
    ResNet: "convnext_iso_base",
}
"""The paper's, one for each family: optimiser, weight decay, clipping, augmentation, mixing, loss; ResNet has none."""
SHORT = [
    "epochs=1",
    "warmup_epochs=0",
    f"batch_size={BATCH}",
    "repeats=1",
    "ema=0.8",
    "precision=float32",
    "drop_path=0.1",
]


def recipe_for(name: str, *changes: str) -> Recipe:
    """Three steps with two images each, as small as the network takes them."""
    entry = ZOO[name]
    patch = int(entry.args.get("patch_size", 4 if entry.model is ConvNeXt else 16))
    # four stages of ConvNeXt: two places remain of 64 pixels; ResMLP reads A2 and B1, which 2 x 2 tokens don't have
    size = 64 if patch == 4 else (4 if (entry.model, entry.group) == (ResMlp, "octic") else 2) * patch
    size = min(entry.img_size, 65) if entry.model is ResNet else size
    return load(RECIPES[entry.model]).override([*SHORT, f"model={name}", f"img_size={size}", *changes])


def images(recipe: Recipe) -> ArrayDataset:
    generator = np.random.default_rng(0)
    shape = (STEPS * BATCH, recipe.img_size, recipe.img_size, 3)
    labels = generator.integers(0, CLASSES, shape[0])
    return ArrayDataset(
        "noise", generator.integers(0, 256, shape, dtype=np.uint8), labels, [str(n) for n in range(CLASSES)]
    )


def shake_(model: nn.Module) -> None:
    """Random numbers on top of all vectors: zero shifts and tiny scales at the start hide errors."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def trained(recipe: Recipe, folder: Path, compiled: bool) -> tuple[Learner, dict[str, Tensor]]:
    """A few steps of the trainer, and the weights before; a whole run would test and save, for long if it is large."""
    source = images(recipe)
    job = Job(recipe, recipe.model, "noise", micro_batch=BATCH)
    options = RunOptions(device="cpu", workers=0, compile=compiled)
    trainer = Trainer(job, options, folder, CPU, source, source, Console(stderr=True))
    learner = trainer.learner
    assert learner.average is not None
    shake_(trainer.model)
    learner.average.set(trainer.model)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    batches = trainer.source.start(0, 0)
    trainer.model.train()
    for step in range(STEPS):
        assert learner.step(0, step, batches).isfinite()
    return learner, before


def moved_errors(network: nn.Module, group: Group, size: int) -> list[float]:
    """How much each element of the group but the identity changes; of an ordinary network, the mirror."""
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    moving = group if group.order > 1 else flop
    with torch.compiler.set_stance("force_eager"):  # it is the training that is compiled here
        out = run(network, x)
        return [relative_error(run(network, moving.act(g, x)), out) for g in range(1, moving.order)]


@pytest.fixture
def backend() -> Iterator[Callable[[str], None]]:
    """Say how networks are compiled."""
    torch.compiler.reset()
    yield torch.compiler.set_default_backend
    torch.compiler.set_default_backend(None)
    torch.compiler.reset()


def check_training_keeps(name: str, folder: Path, *changes: str, compiled: bool) -> None:
    """E(X) and I(X) ignore their group after a few steps, and so do their averaged weights; X, H(X) and S(X) don't."""
    group = get_group(ZOO[name].group)
    recipe = recipe_for(name, *changes)
    learner, before = trained(recipe, folder, compiled)
    assert learner.average is not None
    # irreps of octic act on a class token by products of two or more: steps of some are below float32's resolution
    slow = {n for n, p in learner.model.named_parameters() if ZOO[name].group == "octic" and p.grad.any()}
    for network in (learner.model, learner.average.module):
        errors = moved_errors(network, group, recipe.img_size)
        if group.order > 1 and ignores(learner.model, group):
            assert max(errors) <= 1e-5
        else:
            assert min(errors) > 1e-3
        # what has a gradient moved; only ConvNeXt's last block has outputs that its classifier ignores
        still = [n for n, p in network.named_parameters() if torch.equal(p, before[n]) and n not in slow]
        unread = {irrep.name for irrep in group.irreps[1:]}
        assert all(isinstance(network, ConvNeXt) and unread & set(n.split(".")) for n in still), still


@pytest.mark.parametrize("name", SMALL)
def test_training_keeps_networks_equivariant(name: str, tmp_path: Path) -> None:
    """With mixup, weight decay, an average, and all else that a recipe has."""
    check_training_keeps(name, tmp_path, compiled=False)


def test_compiled_training_keeps_networks_equivariant(tmp_path: Path, backend: Callable[[str], None]) -> None:
    """The longer suite compiles all networks."""
    backend("aot_eager")
    small = "model_args={depth: 2, handoffs: {1: invariant}}"
    check_training_keeps("deit3_flop_invariant_test_patch16_64", tmp_path, small, compiled=True)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch hides it otherwise
@pytest.mark.parametrize("name", [*SMALL, *real_sizes()])
def test_compiled_training_keeps_networks_equivariant_at_real_sizes(
    name: str, tmp_path: Path, backend: Callable[[str], None]
) -> None:
    backend("inductor" if any(size in name for size in INDUCTOR) else "aot_eager")
    check_training_keeps(name, tmp_path, compiled=True)


def test_which_networks_are_in_question() -> None:
    """The law above is claimed for all networks but H(X), S(X) and X."""
    for name in SMALL:
        expected = ZOO[name].group != "trivial" and "hybrid" not in name and "stepdown" not in name
        assert ignores(timm.create_model(name), get_group(ZOO[name].group) if expected else flop) == expected, name
    assert len(ZOO) == 144


# -- mirrored training images


def loss_and_gradients(recipe: Recipe, model: nn.Module, x: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
    """In training mode, with the same paths dropped every time."""
    seed_generators(7)
    model.zero_grad()
    loss = create_loss(recipe)(model(x), targets)
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def difference(
    one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]], batch_norms: bool = False
) -> float:
    """The largest relative error of the loss and of every gradient.

    A batch norm takes back a factor of the weight before it. So a weight with one input channel has a gradient of
    rounding errors alone; with batch norms, what is below a thousandth of the largest gradient is compared with that.
    """
    least = max(float(gradient.norm()) for gradient in other[1]) / 1000 if batch_norms else 0.0
    pairs = zip([one[0], *one[1]], [other[0], *other[1]], strict=True)
    return max(relative_error(a, b) if b.norm() >= least else float((a - b).norm()) / least for a, b in pairs)


def prepared(name: str, *changes: str) -> tuple[Recipe, nn.Module, Tensor, Tensor]:
    recipe = recipe_for(name, *changes)
    model = build(recipe, name, CLASSES).double().train()
    shake_(model)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 3, recipe.img_size, recipe.img_size, generator=generator, dtype=torch.float64)
    return recipe, model, x, torch.randint(0, CLASSES, (4,), generator=generator)


@pytest.mark.parametrize("name", SMALL)
def test_mirrored_images_teach_nothing_new(name: str) -> None:
    """Whichever images are mirrored, loss and gradients of E(X) and I(X) are the same; those of X and H(X) aren't."""
    recipe, model, x, labels = prepared(name, "mixup=0", "cutmix=0")
    some = torch.where(torch.tensor([True, False, True, True])[:, None, None, None], x.flip(-1), x)
    found = [loss_and_gradients(recipe, model, images, labels) for images in (x, some)]
    error = difference(found[0], found[1], batch_norms=ZOO[name].model is ResNet)
    if ignores(model, flop):
        assert error < 1e-10
    else:
        assert error > 1e-3


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mirrored_mixtures_teach_nothing_new(kind: str) -> None:
    """A mixture is an image like any other. One of an image and another one's mirror image is another mixture."""
    name = "deit3_flop_test_patch16_64"
    recipe, model, x, labels = prepared(name, f"{kind}=1.0", f"{'cutmix' if kind == 'mixup' else 'mixup'}=0")
    mix = create_mixup(recipe, CLASSES)
    assert mix is not None

    def mixed(images: Tensor) -> tuple[Tensor, Tensor]:
        seed_generators(11)
        mixture, targets = mix(images.clone(), labels)
        return mixture, targets.double()

    mixture, targets = mixed(x)
    first = loss_and_gradients(recipe, model, mixture, targets)
    assert difference(first, loss_and_gradients(recipe, model, mixture.flip(-1), targets)) < 1e-10
    half = torch.cat([x[:2].flip(-1), x[2:]])
    assert difference(first, loss_and_gradients(recipe, model, *mixed(half))) > 1e-3


@pytest.mark.parametrize(
    ("name", "flips"), [("deit3_flop_test_patch16_64", False), ("deit3_flop_hybrid_test_patch16_64", True)]
)
def test_only_networks_that_see_mirroring_get_mirrored_images(name: str, flips: bool, tmp_path: Path) -> None:
    """And the run says so."""
    recipe = recipe_for(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    data = image_folder(tmp_path / "data", train=1, test=1)
    ended = call(*command(path, data, tmp_path / "run", name, "--workers", "0"))
    assert ended.code == 0, ended.err
    assert ("images are not mirrored at random" in ended.err) != flips
    found = [part.p for part in augmentation(recipe, name, tmp_path) if isinstance(part, RandomHorizontalFlip)]
    assert found == [recipe.flip] * flips


def augmentation(recipe: Recipe, name: str, folder: Path) -> list[Any]:
    """The steps by which a run makes a training image."""
    source, options = images(recipe), RunOptions(device="cpu", workers=0, compile=False)
    job = Job(recipe, name, "noise", micro_batch=BATCH)
    trainer = Trainer(job, options, folder, CPU, source, source, Console(stderr=True))
    steps: list[Any] = trainer.source.loader.dataset.transform.transforms  # type: ignore[attr-defined]
    return steps


@pytest.mark.parametrize(
    ("name", "symmetry", "moves"),
    [
        ("deit3_flop_test_patch16_64", "flop", False),
        ("deit3_flop_test_patch16_64", "octic", True),
        ("deit3_flop_hybrid_test_patch16_64", "flop", True),
    ],
)
def test_only_networks_that_see_some_element_get_moved_images(
    name: str, symmetry: str, moves: bool, tmp_path: Path
) -> None:
    steps = augmentation(recipe_for(name).override([f"symmetry={symmetry}"]), name, tmp_path)
    drawn = [part for part in steps if isinstance(part, RandomSymmetry)]
    assert [part.elements for part in drawn] == [get_group(symmetry).elements] * moves
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    found = {(moved.size, moved.tobytes()) for part in drawn for moved in (part(image) for _ in range(200))}
    assert len(found) == get_group(symmetry).order * moves  # every element is drawn
