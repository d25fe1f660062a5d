"""Backbones from ONNX files: a convolution that returns a map, and a small transformer that returns tokens."""

from __future__ import annotations

import copy
import hashlib
import sys
import warnings

import pytest
import torch
from torch import nn

from torchmultiset.encoders import PretrainedEncoder, make_backbone, onnx_backbone

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

IMAGENET = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Tokens(nn.Module):
    """The output layout of a transformer: `extra` tokens, then one for each patch."""

    def __init__(self, extra: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 8, stride=8)
        self.extra = nn.Parameter(torch.randn(1, extra, 6))
        self.mix = nn.Linear(6, 6)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.mix(torch.cat([self.extra.expand(x.shape[0], -1, -1), tokens], 1))


class Pooled(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def export(module: nn.Module, x: torch.Tensor, path, axes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of the exporter
        torch.onnx.export(module, (x,), str(path), input_names=["x"], dynamic_axes=axes, dynamo=False)


def save(module: nn.Module, path, *, size=(32, 32), fixed=False, batch=2, metadata=None) -> str:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    axes = {"x": [2, 3] if batch == 1 else [0, 2, 3]}
    export(module.eval(), torch.zeros(batch, 3, *size), path, {} if fixed else axes)
    model = onnx.load(path)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return str(path)


def images(*, size=(32, 32), count=3) -> torch.Tensor:
    return torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def normalise(x, mean=IMAGENET[0], std=IMAGENET[1]):
    return (x / 255 - mean) / std


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module")
def conv(folder):
    module = nn.Conv2d(3, 5, 4, stride=4)
    return module, save(module, folder / "conv.onnx")


@pytest.fixture(scope="module")
def vit(folder):
    module = Tokens()
    return module, save(module, folder / "vit.onnx", fixed=True)


def test_feature_maps_equal_those_of_the_network_for_any_image_size(conv):
    module, path = conv
    backbone = make_backbone(path)
    assert (backbone.name, backbone.channels) == ("conv.onnx", 5)
    for size in [(32, 32), (16, 24)]:
        x = images(size=size)
        torch.testing.assert_close(backbone(x), module(normalise(x)).detach(), rtol=1e-4, atol=1e-4)


def test_tokens_are_arranged_as_a_map_without_the_class_token(vit):
    module, path = vit
    backbone = make_backbone(path)
    x = images(count=2)
    features = backbone(x)
    assert features.shape == (2, 6, 4, 4)
    tokens = module(normalise(x)).detach()
    for row in range(4):
        for column in range(4):
            torch.testing.assert_close(
                features[:, :, row, column], tokens[:, 1 + 4 * row + column], rtol=1e-4, atol=1e-4
            )


def test_tokens_without_a_class_token_are_arranged_as_a_map(folder):
    module = Tokens(extra=0)
    backbone = onnx_backbone(save(module, folder / "plain.onnx", fixed=True))
    x = images(count=2)
    expected = module(normalise(x)).detach().transpose(1, 2).reshape(2, 6, 4, 4)
    torch.testing.assert_close(backbone(x), expected, rtol=1e-4, atol=1e-4)


def test_images_are_resized_to_a_fixed_size(vit):
    module, path = vit
    backbone = onnx_backbone(path)
    assert backbone.trunk.image_size == (32, 32)
    x = images(size=(64, 64), count=2)
    small = nn.functional.interpolate(normalise(x), (32, 32), mode="bilinear", antialias=True)
    expected = module(small).detach()[:, 1:].transpose(1, 2).reshape(2, 6, 4, 4)
    torch.testing.assert_close(backbone(x), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(
        ValueError, match=r"image_size must be \(32, 32\), which is fixed in vit.onnx, but is \(64, 64\)"
    ):
        onnx_backbone(path, image_size=(64, 64))


def test_a_fixed_batch_of_one_is_run_image_by_image(folder):
    module = nn.Conv2d(3, 2, 4, stride=4)
    backbone = onnx_backbone(save(module, folder / "single.onnx", fixed=True, batch=1))
    x = images()
    torch.testing.assert_close(backbone(x), module(normalise(x)).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["[0.5, 0.4, 0.3]", "0.5 0.4 0.3", "0.5,0.4,0.3"])
def test_the_normalisation_is_read_from_the_metadata(folder, form):
    module = nn.Conv2d(3, 2, 4, stride=4)
    path = save(module, folder / "meta.onnx", metadata={"mean": form, "std": "0.25, 0.5, 1"})
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.25, 0.5, 1]).view(3, 1, 1)
    x = images()
    torch.testing.assert_close(onnx_backbone(path)(x), module(normalise(x, mean, std)).detach(), rtol=1e-4, atol=1e-4)
    given = onnx_backbone(path, mean=IMAGENET[0].flatten().tolist(), std=IMAGENET[1].flatten().tolist())
    torch.testing.assert_close(given(x), module(normalise(x)).detach(), rtol=1e-4, atol=1e-4)


def test_invalid_metadata_is_refused(folder):
    path = save(nn.Conv2d(3, 2, 4), folder / "wrong.onnx", metadata={"mean": "red"})
    with pytest.raises(ValueError, match=r"metadata of wrong.onnx must have three numbers as mean, but has 'red'"):
        onnx_backbone(path)
    with pytest.raises(ValueError, match="std must be three numbers"):
        onnx_backbone(path, mean=(0.0,) * 3, std=(1.0, 1.0))


def test_the_fingerprint_is_the_hash_of_the_file(conv):
    path = conv[1]
    with open(path, "rb") as file:  # noqa: PTH123
        expected = hashlib.sha256(file.read()).hexdigest()
    assert onnx_backbone(path).fingerprint() == expected
    others = {onnx_backbone(path, mean=(0.5,) * 3).fingerprint(), onnx_backbone(path, image_size=(8, 8)).fingerprint()}
    assert len(others | {expected}) == 3


def test_an_encoder_from_a_file_is_rebuilt_from_its_arguments(conv, folder):
    path = conv[1]
    encode = PretrainedEncoder(path, width=4, mean=(0.5,) * 3)
    assert encode.channels == 5
    x = images()
    memory = encode(x)
    assert memory.shape == (3, 4, 8, 8)
    again = PretrainedEncoder(**encode.arguments)
    again.load_state_dict(encode.state_dict())
    torch.testing.assert_close(again(x), memory)
    torch.testing.assert_close(copy.deepcopy(encode)(x), memory)
    other = save(nn.Conv2d(3, 5, 2, stride=4), folder / "other.onnx")
    with pytest.raises(ValueError, match="are not those this model was trained with"):
        PretrainedEncoder(**{**encode.arguments, "backbone": other, "channels": 5}).backbone()


def test_cached_features_can_be_encoded_without_the_file():
    encode = PretrainedEncoder("gone.onnx", width=4, channels=5, fingerprint="abc")
    assert encode(torch.rand(2, 5, 3, 3).half()).shape == (2, 4, 3, 3)
    with pytest.raises(FileNotFoundError, match=r"there is no ONNX file at gone.onnx"):
        encode(images())


def test_a_damaged_file_is_refused(conv, folder):
    path = folder / "damaged.onnx"
    with open(conv[1], "rb") as file:  # noqa: PTH123
        path.write_bytes(file.read()[:100])
    with pytest.raises(ValueError, match=r"damaged.onnx is damaged or is not an ONNX file"):
        onnx_backbone(path)


def test_networks_with_other_inputs_or_outputs_are_refused(folder):
    path = save(nn.Sequential(nn.Conv2d(3, 3, 1), Pooled()), folder / "pooled.onnx")
    with pytest.raises(ValueError, match=r"pooled.onnx must return a map \(B, D, h, w\) or tokens"):
        onnx_backbone(path)(images())
    vector = folder / "vector.onnx"
    export(nn.Linear(3, 2), torch.zeros(2, 3), vector, {})
    with pytest.raises(ValueError, match=r"path must be an ONNX file whose input is floating-point images"):
        onnx_backbone(vector)


def test_a_number_of_tokens_that_is_not_square_is_refused(folder):
    path = save(Tokens(extra=3), folder / "registers.onnx", fixed=True)
    with pytest.raises(ValueError, match="returns 19 tokens, which is neither a square number nor one more"):
        onnx_backbone(path)(images(count=2))


def test_an_image_size_that_the_network_cannot_process_is_refused(conv):
    with pytest.raises(ValueError, match=r"conv.onnx cannot process images of shape \(1, 3, 2, 2\)"):
        onnx_backbone(conv[1])(images(size=(2, 2), count=1))


def test_without_onnxruntime_the_error_has_the_install_command(conv, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'pip install .*\[onnx\]"'):
        onnx_backbone(conv[1])


def test_strides_are_refused_with_an_onnx_file(conv):
    with pytest.raises(ValueError, match="strides must be left out with an ONNX file"):
        make_backbone(conv[1], strides=(16,))


@pytest.mark.parametrize("channels", [1, 3])
def test_features_that_could_be_images_are_refused(channels):
    with pytest.raises(ValueError, match=f"channels must be more than 3, so that .* images, but is {channels}"):
        PretrainedEncoder("gone.onnx", width=4, channels=channels, fingerprint="abc")
