"""A frozen pretrained backbone under a small layer that learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import relu

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._registry import Registry
from torchmultiset.encoders.backbone import Backbone

__all__ = ["BACKBONES", "BackboneName", "PretrainedEncoder", "make_backbone"]

BackboneName: TypeAlias = Literal["resnet34", "efficientnet-lite0"]

BACKBONES = Registry(
    "backbone",
    {
        "resnet34": "torchmultiset.encoders.resnet:resnet34",
        "efficientnet-lite0": "torchmultiset.encoders.efficientnet:efficientnet_lite0",
    },
)
"""Functions that make a frozen backbone with its ImageNet weights."""
CHANNELS: Mapping[str, int] = {"resnet34": 512, "efficientnet-lite0": 1280}
"""Channels of the features of each."""


def make_backbone(name: BackboneName, *, progress: bool = False) -> Backbone:
    """A frozen backbone with its ImageNet weights, by name.

    Args:
        name: Which one.
        progress: Show a progress bar if its weights have to be downloaded.
    """
    made: Backbone = BACKBONES[name](progress=progress)
    return made


@recorded
class PretrainedEncoder(nn.Module):
    """Features of a frozen backbone, projected to fewer channels at each place by a layer that learns.

    Args:
        backbone: Which one. It is made when the first image comes: features that were cached need none of it.
        width: Channels of the memory.
        fingerprint: `Backbone.fingerprint` of the one whose features were learned from; a backbone with other weights
            is refused. None: that of the one that is made first.

    The backbone is not part of the state dict: its weights never change and belong to its own package or file.

    Example:
        >>> encoder = PretrainedEncoder("efficientnet-lite0", width=32)
        >>> encoder(torch.rand(2, 1280, 8, 8, dtype=torch.float16)).shape  # from a feature cache
        torch.Size([2, 32, 8, 8])
    """

    arguments: dict[str, Any]
    """Set by `recorded`."""

    def __init__(self, backbone: BackboneName, *, width: int = 128, fingerprint: str | None = None) -> None:
        super().__init__()
        check_one_of("backbone", backbone, get_args(BackboneName))
        self.name = backbone
        self.channels = CHANNELS[backbone]
        self.fingerprint = fingerprint
        self.project = nn.Conv2d(self.channels, width, 1)
        self._backbone: list[Backbone] = []  # in a list, so that it is no submodule

    def backbone(self) -> Backbone:
        """The backbone, made when it is asked for first.

        Raises:
            ValueError: Its weights are not those that were learned from.
        """
        if not self._backbone:
            with torch.random.fork_rng(devices=[]):  # random weights come before the pretrained ones
                made = make_backbone(self.name)
            found = made.fingerprint()
            if self.fingerprint not in (None, found):
                raise ValueError(
                    f"the weights of {self.name} are not the ones that this model was trained with: their fingerprint"
                    f" was {str(self.fingerprint)[:12]}... and is now {found[:12]}.... Install those, or train it again"
                )
            self.fingerprint = self.arguments["fingerprint"] = found
            self._backbone.append(made)
        return self._backbone[0]

    def forward(self, x: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """A map (B, width, h, w), from features (B, channels, h, w) or from images (B, 3, H, W)."""
        check(
            x.ndim == 4 and x.shape[1] in (1, 3, self.channels),
            "x",
            f"features of shape (B, {self.channels}, h, w) or images of shape (B, 3, H, W)",
            x,
        )
        if x.shape[1] != self.channels:
            backbone, device = self.backbone(), self.project.weight.device
            if backbone.mean.device != device:  # being no submodule, it does not move with this one
                backbone.to(device)
            x = backbone(x)
        x = x.to(self.project.weight.dtype).contiguous(memory_format=torch.channels_last)
        return relu(self.project(x))
