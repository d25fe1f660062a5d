"""Networks in stages, whose maps can be read at several strides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, interpolate

from torchmultiset._checks import check

__all__ = ["Trunk", "conv_norm", "join", "run_stages"]


class Trunk(nn.Module, ABC):
    """A convolutional network as a sequence of stages, some of whose outputs can be used as feature maps.

    A map of stride s has one position for each s x s pixels of the image. Maps of several strides are joined: coarser
    ones are upsampled to the size of the finest, and their channels are concatenated.

    Args:
        strides: Strides of the map that the network computes, in increasing order.
    """

    taps: Mapping[int, tuple[int, int]]
    """Stride -> number of stages that compute its map, and number of channels of that map."""
    joined_taps: Mapping[int, tuple[int, int]] = {}
    """Taps used instead of `taps` if several strides are joined, where a narrower map saves space."""

    stages_below: Mapping[int, int]
    """Stride -> number of stages whose outputs are finer."""
    mean: tuple[float, ...]
    """Mean of the red, green and blue values in [0, 1] that the network was trained with."""
    std: tuple[float, ...]
    """Standard deviation, likewise."""

    def __init__(self, strides: Sequence[int] = (32,)) -> None:
        super().__init__()
        self.strides = tuple(strides)

    @abstractmethod
    def stages(self) -> Sequence[nn.Module]:
        """Return the stages in order; each reads the output of the previous one."""

    def costly(self) -> list[Tensor]:
        """Return parameters whose gradients are slow to compute relative to their number."""
        return []

    def used(self) -> list[tuple[int, int]]:
        """Return the number of stages and the number of channels for each of the strides."""
        strides, known = self.strides, ", ".join(map(str, self.taps))
        ok = len(strides) > 0 and tuple(sorted(set(strides))) == strides and all(s in self.taps for s in strides)
        check(ok, "strides", f"one or more of {known}, in increasing order", strides)
        taps = {**self.taps, **self.joined_taps} if len(strides) > 1 else self.taps
        return [taps[stride] for stride in strides]

    @property
    def channels(self) -> int:
        """Number of channels of the joined map."""
        return sum(channels for _, channels in self.used())

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d i j"]:
        """Compute the joined map of normalised images (B, 3, H, W): (B, channels, h, w)."""
        return run_stages(self.stages(), [end for end, _ in self.used()], x)


def run_stages(
    stages: Iterable[nn.Module], ends: Sequence[int], x: Float[Tensor, "b 3 h w"], *, frozen: int = 0
) -> Float[Tensor, "b d i j"]:
    """Run stages in order and join some of their outputs.

    Args:
        stages: The stages.
        ends: Numbers of stages, in increasing order, after which an output is used.
        x: Input of the first stage.
        frozen: Number of stages, from the first, that are run without recording gradients.
    """
    maps = []
    for number, stage in enumerate(stages, start=1):
        with torch.set_grad_enabled(torch.is_grad_enabled() and number > frozen):
            x = stage(x)
        if number in ends:
            maps.append(x)
        if number == ends[-1]:
            break
    return join(maps)


def join(maps: Sequence[Float[Tensor, "b _ _ _"]]) -> Float[Tensor, "b d h w"]:
    """Upsample maps to the height and width of the first and concatenate their channels.

    Example:
        >>> join([torch.zeros(1, 2, 4, 4), torch.ones(1, 3, 2, 2)]).shape
        torch.Size([1, 5, 4, 4])
    """
    if len(maps) == 1:
        return maps[0]
    size = maps[0].shape[-2:]
    return torch.cat([maps[0], *(interpolate(each, size, mode="nearest") for each in maps[1:])], 1)


def conv_norm(
    x: Float[Tensor, "b c h w"], conv: nn.Conv2d, norm: nn.BatchNorm2d, *, padding: Sequence[int]
) -> Float[Tensor, "b d i j"]:
    r"""Compute a convolution followed by a batch norm with fixed statistics, as a single convolution.

    .. math::
        \frac{W * x - \mu}{\sqrt{\sigma^2 + \epsilon}} \gamma + \beta = (s W) * x + (\beta - s \mu), \qquad
        s = \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}

    Weights are scaled instead of activations, which are far more numerous. The gradients of all parameters equal those
    of the separate layers, so that a model can be trained this way. Stride and groups are those of `conv`.
    """
    mean, var, eps = norm.running_mean, norm.running_var, norm.eps
    assert mean is not None
    assert var is not None
    scale = norm.weight * (var + eps).rsqrt()
    weight, bias = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
    if bias.requires_grad and not weight.requires_grad and torch.is_grad_enabled():
        out: Tensor = _FixedWeight.apply(x, weight, bias, conv.stride, padding, conv.groups)  # type: ignore[no-untyped-call]
        return out
    return conv2d(x, weight, bias, conv.stride, padding, 1, conv.groups)


class _FixedWeight(torch.autograd.Function):
    """Convolution with a gradient for its bias but not for its weight.

    PyTorch computes the gradient of a bias together with that of the weight, which is slow for depthwise convolutions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> Tensor:
        stride, padding, groups = settings
        if torch.is_autocast_enabled("cpu"):
            x, weight, bias = (each.to(torch.get_autocast_dtype("cpu")) for each in (x, weight, bias))
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        return conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, groups = ctx.settings
        of_x = None
        if ctx.needs_input_grad[0]:
            mask = [True, False, False]
            of_x, _, _ = torch.ops.aten.convolution_backward(
                grad, x, weight, None, stride, padding, [1, 1], False, [0, 0], groups, mask
            )
        return of_x, None, grad.sum((0, 2, 3), dtype=torch.promote_types(grad.dtype, torch.float32)), None, None, None
