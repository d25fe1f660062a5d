"""A frozen pretrained backbone followed by a small trainable layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import relu

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import MemorySpec
from torchmultiset._registry import Registry
from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.onnx import is_onnx, onnx_backbone
from torchmultiset.encoders.trunk import Trunk

__all__ = ["BACKBONES", "PretrainedEncoder", "backbone_channels", "make_backbone", "make_trunk"]

BACKBONES = Registry(
    "backbone",
    {
        "resnet34": "torchmultiset.encoders.resnet:resnet34",
        "efficientnet-lite0": "torchmultiset.encoders.efficientnet:efficientnet_lite0",
        "efficientnet-lite1": "torchmultiset.encoders.efficientnet:efficientnet_lite1",
        "efficientnet-lite2": "torchmultiset.encoders.efficientnet:efficientnet_lite2",
    },
)
"""Functions that return a frozen backbone with its ImageNet weights or, with ``weights=None``, with random ones."""


def make_backbone(
    name: str,
    *,
    strides: Sequence[int] = (32,),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    progress: bool = False,
) -> Backbone:
    """Return a frozen backbone with its pretrained weights.

    Args:
        name: Name of the backbone, or the path of an ``.onnx`` file.
        strides: Strides of its map: 8, 16, 32, or several of them in increasing order, which are joined. An ONNX file
            has one map: leave the default.
        mean: Mean of an ONNX file's input normalisation, if it is not the default of `onnx_backbone`.
        std: Standard deviation, likewise.
        progress: Show a progress bar if its weights have to be downloaded.
    """
    if is_onnx(name):
        check(tuple(strides) == (32,), "strides", "left out with an ONNX file, which has one map", tuple(strides))
        return onnx_backbone(name, mean=mean, std=std)
    for what, given in (("mean", mean), ("std", std)):
        check(given is None, what, f"left out with {name}, which declares its own", given)
    backbone: Backbone = BACKBONES[name](strides=tuple(strides), progress=progress)
    return backbone


def make_trunk(name: str, *, strides: Sequence[int] = (32,)) -> Trunk:
    """Return the network of a backbone without pretrained weights."""
    trunk = BACKBONES[name](weights=None, strides=tuple(strides)).trunk.requires_grad_(True).train()
    assert isinstance(trunk, Trunk)
    return trunk


def backbone_channels(name: str, strides: Sequence[int] = (32,)) -> int:
    """Return the number of channels of a backbone's map, without loading its weights.

    Example:
        >>> [backbone_channels("efficientnet-lite0", strides) for strides in [(8,), (16,), (32,), (16, 32)]]
        [40, 112, 1280, 432]
    """
    with torch.device("meta"):  # allocates no memory and draws no random numbers
        return make_trunk(name, strides=strides).channels


@recorded
class PretrainedEncoder(nn.Module):
    """Features of a frozen backbone, projected to fewer channels by a trainable 1x1 convolution.

    Args:
        backbone: Name of the backbone, or the path of an ``.onnx`` file. It is loaded when the first image is encoded;
            cached features do not need it.
        width: Number of channels of the memory; None: the backbone's map itself, without a projection.
        fingerprint: `fingerprint` of the backbone used in training; a backbone with other weights is rejected. None:
            that of the first backbone loaded.
        strides: Strides of the backbone's map. An ONNX file has one map: leave the default.
        channels: Number of channels of the backbone's map, more than 3: inputs with as many channels are its features,
            others are images. None: looked up; for an ONNX file, this opens the file.
        mean: Mean of an ONNX file's input normalisation, if it is not the default of `onnx_backbone`.
        std: Standard deviation, likewise.

    The backbone is not part of the state dict: its weights never change and belong to its own package or file.

    Example:
        >>> encoder = PretrainedEncoder("efficientnet-lite0", width=32, strides=(16, 32))
        >>> encoder(torch.rand(2, 432, 16, 16, dtype=torch.float16)).shape  # from a feature cache
        torch.Size([2, 32, 16, 16])
    """

    arguments: dict[str, Any]
    """Constructor arguments, set by `recorded`."""
    reads_features = True
    """See `encoders.optional`."""
    _device: Tensor

    def __init__(
        self,
        backbone: str,
        *,
        width: int | None = 128,
        fingerprint: str | None = None,
        strides: Sequence[int] = (32,),
        channels: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not is_onnx(backbone):
            check_one_of("backbone", backbone, BACKBONES)
        self.name = backbone
        self.strides = tuple(strides)
        self._options: dict[str, Any] = {"strides": self.strides, "mean": mean, "std": std}
        self.fingerprint = fingerprint
        self._backbone: list[Backbone] = []  # in a list, so that it is not a submodule
        if channels is None:
            channels = self.backbone().channels if is_onnx(backbone) else backbone_channels(backbone, self.strides)
        # Features and images are both (B, channels, h, w), and images have 1 or 3 channels.
        check(channels > 3, "channels", "more than 3, so that features are not taken for images", channels)
        self.channels = channels
        self.project = None if width is None else nn.Conv2d(channels, width, 1)
        # Without a projection, there is no parameter from which to read the device and dtype.
        self.register_buffer("_device", torch.empty(0), persistent=False)

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[PretrainedEncoder, MemorySpec]:
        """Return an encoder for inputs of this shape and the shape of its memory.

        The settings are `units`, `backbone`, `fingerprint` and `strides`.
        """
        backbone, units = settings["backbone"], settings["units"]
        width = units[-1] if units else None
        channels = shape[0] if is_onnx(backbone) else None  # known for other backbones
        encoder = cls(
            backbone,
            width=width,
            fingerprint=settings["fingerprint"],
            strides=tuple(settings["strides"]),
            channels=channels,
        )
        fits = len(shape) == 3 and shape[0] == encoder.channels
        check(fits, "shape", f"({encoder.channels}, h, w), the shape of the features of {backbone}", shape)
        return encoder, MemorySpec(width or shape[0], grid=(shape[1], shape[2]))

    @property
    def export_instead(self) -> str:
        """What can be exported in its place, for an error message; empty if it can be exported."""
        if not is_onnx(self.name):
            return ""
        return "one with a backbone of this package: an ONNX file cannot contain the network of another one"

    def backbone(self) -> Backbone:
        """Return the backbone, loading it on the first call.

        Raises:
            ValueError: If its weights are not those used in training.
        """
        if not self._backbone:
            with torch.random.fork_rng(devices=[]):  # random weights are drawn before the pretrained ones are loaded
                backbone = make_backbone(self.name, **self._options)
            found = backbone.fingerprint()
            if self.fingerprint not in (None, found):
                raise ValueError(
                    f"the weights of {self.name} are not those this model was trained with: the fingerprint was"
                    f" {str(self.fingerprint)[:12]}... and is now {found[:12]}.... Install the original weights, or"
                    " train the model again"
                )
            self.fingerprint = found
            self._backbone.append(backbone)
        if hasattr(self, "arguments"):
            self.arguments["fingerprint"] = self.fingerprint
        return self._backbone[0]

    def forward(self, x: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Compute a map (B, width, h, w) from features (B, channels, h, w) or images (B, 3, H, W)."""
        check(
            x.ndim == 4 and x.shape[1] in (1, 3, self.channels),
            "x",
            f"features of shape (B, {self.channels}, h, w) or images of shape (B, 3, H, W)",
            x,
        )
        if x.shape[1] != self.channels:
            backbone, device = self.backbone(), self._device.device
            if backbone.mean.device != device:  # not a submodule, so it is not moved with this module
                backbone.to(device)
            x = backbone(x)
        if self.project is None:
            return x.to(self._device.dtype)
        x = x.to(self.project.weight.dtype).contiguous(memory_format=torch.channels_last)
        return relu(self.project(x))
