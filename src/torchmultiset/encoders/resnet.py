"""ResNet-34, the paper's image encoder, with the key names of the standard ImageNet checkpoint."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset.encoders.backbone import Backbone, load_weights

__all__ = ["ResNet34", "resnet34"]

CHECKPOINT = "https://download.pytorch.org/models/resnet34-b627a593.pth"
"""URL of the standard ImageNet weights; the name ends with a prefix of the file's SHA-256."""

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Number of blocks and channels of each stage (He et al. 2016, table 1, "34-layer")."""


def resnet34(weights: str | Path | None = "imagenet", *, progress: bool = False) -> Backbone:
    """Return the paper's frozen backbone: images (B, 3, H, W) -> features (B, 512, H / 32, W / 32), rounded up.

    Args:
        weights: ``"imagenet"`` downloads the standard checkpoint once, into the folder that torch.hub and torchvision
            use. A path loads such a checkpoint, ``.pth`` or ``.safetensors``. None leaves the weights random, for
            tests and benchmarks.
        progress: Whether to show a progress bar for the download.

    Example:
        >>> backbone = resnet34(weights=None)
        >>> backbone(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 512, 2, 2])
    """
    trunk = ResNet34()
    if weights is not None:
        load_weights(trunk, _download(progress) if weights == "imagenet" else weights, ignore="fc.")
    return Backbone(trunk, name="resnet34", channels=512, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class ResNet34(nn.Module):
    """The convolutional part of ResNet-34 (He et al. 2016), without average pooling and classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, (depth, width) in enumerate(STAGES, start=1):
            first = _Block(channels, width, stride=1 if stage == 1 else 2)
            rest = [_Block(width, width, stride=1) for _ in range(depth - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
            channels = width

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 512 i j"]:
        """Compute feature maps of normalised images."""
        x = self.bn1(self.conv1(x)).relu()
        x = nn.functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return x


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)) + shortcut
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
