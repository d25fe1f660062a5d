"""A frozen pretrained backbone under a small layer that learns."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import relu

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset.encoders.backbone import Backbone

__all__ = ["BackboneName", "PretrainedEncoder", "make_backbone"]

BackboneName: TypeAlias = Literal["resnet34", "efficientnet-lite0"]


def make_backbone(name: BackboneName) -> Backbone:
    """A frozen backbone with its ImageNet weights, by name."""
    check_one_of("name", name, ("resnet34", "efficientnet-lite0"))
    if name == "resnet34":
        from torchmultiset.encoders.resnet import resnet34

        return resnet34()
    from torchmultiset.encoders.efficientnet import efficientnet_lite0

    return efficientnet_lite0()


@recorded
class PretrainedEncoder(nn.Module):
    """Features of a frozen backbone, projected to fewer channels at each place by a layer that learns.

    Args:
        backbone: Which one. It is made when the first image comes: features that were cached need none of it.
        channels: Channels of its features.
        width: Channels of the memory.

    The backbone is not part of the state dict: its weights never change and belong to its own package or file.

    Example:
        >>> encoder = PretrainedEncoder("efficientnet-lite0", channels=1280, width=32)
        >>> encoder(torch.rand(2, 1280, 8, 8, dtype=torch.float16)).shape  # from a feature cache
        torch.Size([2, 32, 8, 8])
    """

    def __init__(self, backbone: BackboneName, channels: int, *, width: int = 128) -> None:
        super().__init__()
        check_one_of("backbone", backbone, ("resnet34", "efficientnet-lite0"))
        self.name = backbone
        self.channels = channels
        self.project = nn.Conv2d(channels, width, 1)
        self._backbone: list[Backbone] = []  # in a list, so that it is no submodule

    def forward(self, x: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """A map (B, width, h, w), from features (B, channels, h, w) or from images (B, 3, H, W)."""
        check(
            x.ndim == 4 and x.shape[1] in (1, 3, self.channels),
            "x",
            f"features of shape (B, {self.channels}, h, w) or images of shape (B, 3, H, W)",
            x,
        )
        if x.shape[1] != self.channels:
            if not self._backbone:
                self._backbone.append(make_backbone(self.name))
            # Being no submodule, it does not move with this one.
            x = self._backbone[0].to(self.project.weight.device)(x)
        x = x.to(self.project.weight.dtype).contiguous(memory_format=torch.channels_last)
        return relu(self.project(x))
