from __future__ import annotations

import copy
import hashlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchmultiset.encoders.backbone import Backbone, load_weights

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def small_trunk() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())


def small_backbone(**changes: object) -> Backbone:
    given = {"name": "small", "channels": 4, "mean": (0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3), **changes}
    return Backbone(small_trunk(), **given)


# --- all backbones ---


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_images_are_normalised_channel_by_channel(dtype):
    backbone = Backbone(nn.Identity(), name="none", channels=3, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    colour = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    images = colour if dtype == torch.uint8 else colour.to(dtype) / 255
    expected = torch.tensor([-0.485 / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(backbone(images).flatten(), expected)


def test_grey_images_equal_images_of_three_equal_channels():
    backbone, grey = small_backbone(), torch.randint(256, (2, 1, 9, 9), dtype=torch.uint8)
    torch.testing.assert_close(backbone(grey), backbone(grey.repeat(1, 3, 1, 1)), rtol=0, atol=0)


def test_a_backbone_does_not_change_while_the_model_trains():
    backbone = small_backbone()
    model = nn.Sequential(backbone, nn.Flatten(), nn.Linear(4 * 4 * 4, 2))
    model.train()
    model.requires_grad_(True)  # without effect on the backbone
    assert model[2].training
    assert not any(module.training for module in backbone.modules())
    before, head_before = copy.deepcopy(backbone.state_dict()), model[2].weight.detach().clone()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        loss = F.cross_entropy(model(torch.rand(3, 3, 9, 9)), torch.tensor([0, 1, 0]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert all(parameter.grad is None for parameter in backbone.parameters())
    for name, value in backbone.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert not torch.equal(model[2].weight, head_before)


def test_parameters_of_a_backbone_require_no_gradient():
    assert not any(parameter.requires_grad for parameter in small_backbone().parameters())
    assert not small_backbone()(torch.rand(1, 3, 9, 9)).requires_grad


def test_an_image_has_the_same_features_alone_and_in_a_batch():
    backbone, images = small_backbone(), torch.rand(5, 3, 9, 9)
    torch.testing.assert_close(backbone(images)[2:3], backbone(images[2:3]))
    assert backbone(images[:0]).shape == (0, 4, 4, 4)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(3, 9, 9), r"shape \(B, 3, H, W\).*float32 tensor of shape \(3, 9, 9\)"),
        (torch.rand(1, 4, 9, 9), r"shape \(1, 4, 9, 9\)"),
        (torch.zeros(1, 3, 9, 9, dtype=torch.int64), "uint8 or floating-point"),
        (torch.full((1, 3, 9, 9), 255.0), "from 255 to 255; do not normalise them"),
        (torch.full((1, 3, 9, 9), -0.5), "from 0 to 1"),
        (torch.full((1, 3, 9, 9), float("nan")), "from nan to nan"),
    ],
)
def test_inputs_that_are_not_images_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        small_backbone()(images)


def test_the_fingerprint_covers_everything_that_changes_the_features():
    fingerprint = small_backbone().fingerprint()
    assert small_backbone().fingerprint() == fingerprint
    assert small_backbone().train().fingerprint() == fingerprint
    others = [
        small_backbone(name="tiny"),
        small_backbone(mean=(0.4, 0.5, 0.601)),
        small_backbone(std=(0.1, 0.2, 0.301)),
        small_backbone().to(torch.float64),
    ]
    for weight in ("0.weight", "0.bias", "1.running_mean", "1.running_var"):
        other = small_backbone()
        other.trunk.state_dict()[weight].view(-1)[-1] += 1e-6
        others.append(other)
    assert len({fingerprint, *(other.fingerprint() for other in others)}) == len(others) + 1
    same = small_backbone()
    same.trunk.state_dict()["1.num_batches_tracked"] += 7
    assert same.fingerprint() == fingerprint


def test_the_fingerprint_is_the_hash_of_name_and_weights():
    trunk = nn.Conv2d(3, 1, 1, bias=False)
    trunk.weight.data = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    backbone = Backbone(trunk, name="sum", channels=1, mean=(0.0,) * 3, std=(1.0,) * 3)
    hashed = b"sum"
    for name, shape, values in [
        ("mean", (3, 1, 1), [0, 0, 0]),
        ("std", (3, 1, 1), [1, 1, 1]),
        ("trunk.weight", (1, 3, 1, 1), [1, 2, 3]),
    ]:
        hashed += f"{name} torch.float32 {shape}".encode() + np.array(values, "<f4").tobytes()
    assert backbone.fingerprint() == hashlib.sha256(hashed).hexdigest()


# --- checkpoints ---


def test_weights_are_loaded_from_a_file_without_the_classifier(tmp_path):
    source = small_trunk()
    torch.save({**source.state_dict(), "fc.weight": torch.zeros(10, 4)}, tmp_path / "weights.pth")
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4))
    load_weights(trunk, tmp_path / "weights.pth", ignore="fc.")
    torch.testing.assert_close(trunk[0].weight, source[0].weight, rtol=0, atol=0)


def test_weights_are_loaded_from_safetensors(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    source = small_trunk()
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4))
    load_weights(trunk, tmp_path / "weights.safetensors", ignore="fc.")
    torch.testing.assert_close(trunk[0].weight, source[0].weight, rtol=0, atol=0)
    (tmp_path / "broken.safetensors").write_bytes(b"no header")
    with pytest.raises(ValueError, match=r"broken.safetensors is not a safetensors file"):
        load_weights(trunk, tmp_path / "broken.safetensors", ignore="fc.")


def test_a_checkpoint_of_another_network_is_refused_with_the_differences(tmp_path):
    weights = small_trunk().state_dict()
    del weights["0.bias"], weights["1.running_var"]
    weights["0.weight"] = torch.zeros(4, 3, 5, 5)
    weights["extra.weight"] = torch.zeros(1)
    torch.save(weights, tmp_path / "other.pth")
    trunk = small_trunk()
    before = copy.deepcopy(trunk.state_dict())
    problems = r"missing: 0\.bias, 1\.running_var; unknown: extra\.weight; wrong shape: 0\.weight"
    with pytest.raises(ValueError, match=problems):
        load_weights(trunk, tmp_path / "other.pth", ignore="fc.")
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("code-was-run",)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))])
def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, monkeypatch, save):
    monkeypatch.chdir(tmp_path)
    save({**small_trunk().state_dict(), "0.bias": RunsCode()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil.pth is damaged, or contains more than plain tensors"):
        load_weights(small_trunk(), tmp_path / "evil.pth", ignore="fc.")
    assert not Path("code-was-run").exists()
    pickle.loads(pickle.dumps(RunsCode()))
    assert Path("code-was-run").exists()  # loading it without protection does run code


def test_damaged_and_missing_files_are_distinguished(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere\.pth"):
        load_weights(small_trunk(), tmp_path / "nowhere.pth", ignore="fc.")
    torch.save(small_trunk().state_dict(), tmp_path / "whole.pth")
    content = (tmp_path / "whole.pth").read_bytes()
    for name, damaged in [("cut", content[: len(content) // 2]), ("empty", b""), ("text", b"<html>404</html>")]:
        (tmp_path / f"{name}.pth").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{name}\.pth is damaged"):
            load_weights(small_trunk(), tmp_path / f"{name}.pth", ignore="fc.")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="must hold a state dict"):
        load_weights(small_trunk(), tmp_path / "list.pth", ignore="fc.")


def test_a_file_is_checked_against_the_hash_in_its_name(tmp_path):
    torch.save(small_trunk().state_dict(), tmp_path / "weights.pth")
    actual = hashlib.sha256((tmp_path / "weights.pth").read_bytes()).hexdigest()
    shutil.copy(tmp_path / "weights.pth", tmp_path / f"small-{actual[:8]}.pth")
    load_weights(small_trunk(), tmp_path / f"small-{actual[:8]}.pth", ignore="fc.")
    shutil.copy(tmp_path / "weights.pth", tmp_path / "small-b627a593.pth")
    with pytest.raises(ValueError, match=f"SHA-256 begins with {actual[:8]}, not with b627a593"):
        load_weights(small_trunk(), tmp_path / "small-b627a593.pth", ignore="fc.")
