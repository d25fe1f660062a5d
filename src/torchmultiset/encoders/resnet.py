"""ResNet-34, the paper's image encoder, with the key names of the standard ImageNet checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset.encoders.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, load_weights
from torchmultiset.encoders.trunk import Trunk, conv_norm

__all__ = ["ResNet34", "resnet34"]

CHECKPOINT = "https://download.pytorch.org/models/resnet34-b627a593.pth"
"""URL of the standard ImageNet weights; the name ends with a prefix of the file's SHA-256."""

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Number of blocks and channels of each stage (He et al. 2016, table 1, "34-layer")."""


def resnet34(
    weights: str | Path | None = "imagenet", *, strides: Sequence[int] = (32,), progress: bool = False
) -> Backbone:
    """Return the paper's frozen backbone: images (B, 3, H, W) -> features (B, 512, H / 32, W / 32), rounded up.

    Args:
        weights: ``"imagenet"`` downloads the standard checkpoint once, into the folder that torch.hub and torchvision
            use. A path loads such a checkpoint, ``.pth`` or ``.safetensors``. None leaves the weights random, for
            tests and benchmarks.
        strides: Strides of the map: 8, 16 or 32, with 128, 256 and 512 channels, or several of them.
        progress: Whether to show a progress bar for the download.

    Example:
        >>> backbone = resnet34(weights=None)
        >>> backbone(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 512, 2, 2])
    """
    trunk = ResNet34(strides)
    if weights is not None:
        load_weights(trunk, _download(progress) if weights == "imagenet" else weights, ignore="fc.")
    return Backbone(trunk, name="resnet34", channels=trunk.channels, mean=trunk.mean, std=trunk.std)


class ResNet34(Trunk):
    """The convolutional part of ResNet-34 (He et al. 2016), without average pooling and classifier.

    Batch norms always use their fixed statistics and are computed as part of the convolutions.
    """

    mean, std = IMAGENET_MEAN, IMAGENET_STD
    stages_below = {8: 2, 16: 3, 32: 4}  # noqa: RUF012
    taps = {8: (3, 128), 16: (4, 256), 32: (5, 512)}  # noqa: RUF012

    def __init__(self, strides: Sequence[int] = (32,)) -> None:
        super().__init__(strides)
        self.used()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, (depth, width) in enumerate(STAGES, start=1):
            first = _Block(channels, width, stride=1 if stage == 1 else 2)
            rest = [_Block(width, width, stride=1) for _ in range(depth - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
            channels = width

    def stages(self) -> Sequence[nn.Module]:
        """Return the stem and the four stages of blocks."""
        return [_Stem(self.conv1, self.bn1), *(self.get_submodule(f"layer{i + 1}") for i in range(len(STAGES)))]


class _Stem(nn.Module):
    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 64 i j"]:
        return nn.functional.max_pool2d(
            conv_norm(x, self.conv, self.norm, padding=(3, 3)).relu(), 3, stride=2, padding=1
        )


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.downsample is not None:
            conv, norm = self.downsample
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            shortcut = conv_norm(x, conv, norm, padding=(0, 0))
        x = conv_norm(x, self.conv1, self.bn1, padding=(1, 1)).relu()
        x = conv_norm(x, self.conv2, self.bn2, padding=(1, 1)) + shortcut
        return x.relu()


def _download(progress: bool) -> Path:
    name = CHECKPOINT.rsplit("/", 1)[-1]
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if path.exists():  # its hash is checked on loading
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = name.removesuffix(".pth").rsplit("-", 1)[-1]
    try:
        torch.hub.download_url_to_file(CHECKPOINT, str(path), hash_prefix=prefix, progress=progress)
    except URLError as error:
        raise ConnectionError(
            f"could not download {CHECKPOINT}: {error}. Download it by other means and save it as {path}"
        ) from error
    except RuntimeError as error:  # torch.hub raises it for a wrong hash
        raise ValueError(f"the download of {CHECKPOINT} is damaged: {error}. Nothing was saved; try again") from error
    return path
