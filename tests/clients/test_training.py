"""Clients train these networks: one step gives gradients, and what comes out still keeps the mirror."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from support.doc_pages import ROOT, blocks
from timm.optim import create_optimizer_v2
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from transformers import (
    AutoModelForImageClassification,
    TimmBackbone,
    TimmBackboneConfig,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
)

from flopping.lab.doctor import networks
from flopping.models import ConvNeXt
from flopping.models.blocks import find_blocks
from flopping.testing import randomize_, relative_error

X = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
UNUSED = ("norm.", "head.")
"""Parameters after the last map, which decoders don't use."""


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    """What docs/clients.md defines for decoders: the blocks up to detection, without what runs between."""
    names: dict[str, object] = {"timm": timm}
    for block in blocks(ROOT / "docs" / "clients.md"):
        if block.file == "mirrored.py" or (block.language == "python" and "class Pyramid" in block.text):
            exec(compile(block.text.partition("\nanchors =")[0], block.place, "exec"), names)
    return SimpleNamespace(**names)


def images(name: str) -> torch.Tensor:
    """Two images of the size that a network takes."""
    return torch.randn(2, *timm.get_pretrained_cfg(name).input_size, generator=torch.Generator().manual_seed(0))


def without_gradient(model: nn.Module) -> list[str]:
    """Parameters whose gradient is missing or zero, but for odd ones of ConvNeXt's last block: no head reads them."""
    unread: set[nn.Parameter] = set()
    for network in model.modules():
        if isinstance(network, ConvNeXt):
            unread |= {p for name, p in find_blocks(network)[-1].named_parameters() if "odd" in name}
    found = [(name, p) for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    return [name for name, p in found if p not in unread]


def require_mirrored(maps: list[torch.Tensor], flopped: list[torch.Tensor], layouts: list) -> None:
    """The law of docs/dense.md: places are mirrored, odd channels negated."""
    for x, y, layout in zip(maps, flopped, layouts, strict=True):
        even, odd = layout.split(x.movedim(1, -1))
        expected = layout.merge((even.flip(-2), -odd.flip(-2))).movedim(-1, 1)
        assert relative_error(y, expected) < 1e-4
        assert relative_error(y, x.flip(-1)) > 0.1


def test_unet_trains_and_keeps_the_mirror(page: SimpleNamespace) -> None:
    unet = smp.Unet("tu-convnext_flop_test", encoder_weights=None, classes=4)
    randomize_(unet.encoder)
    page.keep_mirror(unet.decoder)
    page.keep_mirror(unet.segmentation_head)
    layouts = unet.encoder.model.model.layouts
    unet.encoder.register_forward_hook(lambda _, x, maps: [*maps[:-4], *page.invariant_maps(maps[-4:], layouts)])
    optimizer = torch.optim.SGD(unet.parameters(), lr=1e-2)
    loss = nn.functional.cross_entropy(unet(X), torch.randint(4, (2, 64, 64)))
    loss.backward()
    assert not without_gradient(unet)
    optimizer.step()
    unet.eval()
    assert relative_error(unet(X.flip(-1)), unet(X).flip(-1)) < 1e-4


def test_dpt_trains_on_maps_that_keep_the_mirror() -> None:
    dpt = smp.DPT("tu-deit3_flop_test_patch16_64", encoder_weights=None, classes=4)
    randomize_(dpt.encoder)
    dpt(X).square().mean().backward()
    left_out = [name.removeprefix("encoder.model.") for name in without_gradient(dpt.encoder)]
    assert all(name.removeprefix("model.").startswith(UNUSED) for name in left_out)
    dpt.eval()
    (maps, _), (flopped, _) = dpt.encoder(X), dpt.encoder(X.flip(-1))
    require_mirrored(maps, flopped, dpt.encoder.model.layouts)


def test_faster_rcnn_trains(page: SimpleNamespace) -> None:
    anchors = AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3)
    pool = MultiScaleRoIAlign(["0", "1", "2"], output_size=7, sampling_ratio=2)
    size = {"min_size": 128, "max_size": 128}
    detector = FasterRCNN(page.Pyramid(), num_classes=3, rpn_anchor_generator=anchors, box_roi_pool=pool, **size)
    randomize_(detector.backbone.body)
    page.keep_mirror(detector.backbone.fpn)
    boxes = torch.tensor([[8.0, 8, 72, 72], [40, 16, 120, 90]])
    losses = detector([torch.rand(3, 128, 128)], [{"boxes": boxes, "labels": torch.tensor([1, 2])}])
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    sum(losses.values()).backward()
    unused = [name for name in without_gradient(detector.backbone) if ".head." not in name]
    assert not unused
    image = torch.rand(1, 3, 128, 128)
    maps, flopped = (list(detector.backbone(x).values()) for x in (image, image.flip(-1)))
    for x, y in zip(maps, flopped, strict=True):
        assert relative_error(y, x.flip(-1)) < 1e-4
    detector.eval()
    assert set(detector([image[0]])[0]) == {"boxes", "labels", "scores"}


@pytest.mark.parametrize("name", networks())
def test_timm_wrapper_round_trip(name: str, tmp_path: Path) -> None:
    model = TimmWrapperForImageClassification(TimmWrapperConfig(architecture=name, num_labels=5))
    randomize_(model).eval()
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    x = images(name)
    assert torch.equal(again(x).logits, model(x).logits)
    assert relative_error(again(x.flip(-1)).logits, model(x).logits) < 1e-4
    again.train()(x, labels=torch.tensor([0, 3])).loss.backward()
    assert not without_gradient(again)


@pytest.mark.parametrize("name", networks())
def test_timm_backbone(name: str) -> None:
    layouts, x = timm.create_model(name).layouts, images(name)
    wanted = list(range(len(layouts)))
    config = TimmBackboneConfig(backbone=name, out_indices=wanted, use_pretrained_backbone=False)
    backbone = randomize_(TimmBackbone(config)).eval()
    maps, flopped = backbone(x).feature_maps, backbone(x.flip(-1)).feature_maps
    require_mirrored(list(maps), list(flopped), layouts)
    sum(x.square().mean() for x in maps).backward()
    assert all("norm" in n or "head" in n for n in without_gradient(backbone))


@pytest.mark.parametrize("name", networks())
def test_int8(name: str) -> None:
    model = randomize_(timm.create_model(name, num_classes=7)).eval()
    small = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    int8 = [m for m in small.modules() if type(m).__module__.startswith("torch.ao")]
    assert len(int8) > 1
    x = images(name)
    assert 0 < relative_error(small(x), model(x)) < 0.2
    assert relative_error(small(x.flip(-1)), small(x)) < 0.2


@pytest.mark.parametrize("name", networks())
def test_layer_decay(name: str) -> None:
    """Rates fall from the head to the stem, every parameter is in one group, and a step keeps the mirror."""
    model = randomize_(timm.create_model(name, num_classes=7))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert sorted(scale) == sorted(id(p) for p in model.parameters())
    first, *_, last = (scale[id(p)] for p in model.parameters())
    assert first < last == 1.0
    x = images(name)
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    assert not without_gradient(model)
    optimizer.step()
    model.eval()
    assert relative_error(model(x.flip(-1)), model(x)) < 1e-4
