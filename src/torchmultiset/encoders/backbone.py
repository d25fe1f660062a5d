"""Frozen pretrained backbones, which map images to feature maps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from torchmultiset._checks import can_look, check, some
from torchmultiset._files import file_sha256

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Backbone", "check_images", "load_weights", "normalised"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue values, which most networks subtract from images."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's red, green and blue values, by which most networks divide images."""


@final
class Backbone(nn.Module):
    """A frozen trunk together with the input normalisation it was trained with.

    It is always in evaluation mode (batch norm keeps its statistics even when the surrounding model is in training
    mode) and has no gradients.

    Args:
        trunk: Module that maps normalised images (B, 3, H, W) to feature maps (B, channels, h, w).
        name: Name of the backbone, also used in file names and messages.
        channels: Number of channels of the feature maps.
        mean: Mean subtracted from red, green and blue values in [0, 1].
        std: Standard deviation by which they are then divided.
        fingerprint: Identifies the backbone. None: computed from its weights, see `fingerprint`.

    Example:
        >>> backbone = Backbone(nn.MaxPool2d(4), name="pool", channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> backbone(torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)).flatten()
        tensor([1., 1., 1.])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        *,
        name: str,
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        fingerprint: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.channels = channels
        self._fingerprint = fingerprint
        self.trunk = trunk.requires_grad_(False)
        self.strides: tuple[int, ...] | None = getattr(trunk, "strides", None)
        """Strides of the joined map; None for a trunk that declares none."""
        # Not persistent: a checkpoint must not change the normalisation.
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.eval()

    def forward(self, images: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Compute feature maps (B, channels, h, w), on the device of the weights.

        Args:
            images: Images (B, 3, H, W), or (B, 1, H, W) if grey: uint8, or floating-point in [0, 1].
        """
        check_images(images)
        # no_grad instead of inference_mode: a layer trained on the features must be able to save them.
        with torch.no_grad():
            features: Tensor = self.trunk(normalised(images, self.mean, self.std))
        return features

    def train(self, mode: bool = True) -> Backbone:  # noqa: ARG002
        """Stay in evaluation mode, regardless of `mode`."""
        return super().train(False)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything the features depend on: name, normalisation, strides and weights.

        Example:
            >>> a = Backbone(nn.Identity(), name="a", channels=3, mean=[0.0] * 3, std=[1.0] * 3)
            >>> b = Backbone(nn.Identity(), name="a", channels=3, mean=[0.5] * 3, std=[1.0] * 3)
            >>> a.fingerprint() == b.fingerprint()
            False
        """
        if self._fingerprint is not None:
            return self._fingerprint
        digest = hashlib.sha256(self.name.encode())
        if self.strides not in (None, (32,)):
            digest.update(f" strides {self.strides}".encode())
        weights = {"mean": self.mean, "std": self.std, **self.trunk.state_dict(prefix="trunk.")}
        for name, value in sorted(weights.items()):
            # The number of training batches does not affect the features, and old checkpoints lack it.
            if not name.endswith("num_batches_tracked"):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def extra_repr(self) -> str:
        """Return the name and the number of channels, for printing."""
        return f"name={self.name!r}, channels={self.channels}"


def load_weights(trunk: nn.Module, path: str | Path, *, ignore: str) -> None:
    """Load a checkpoint file into a trunk, checking all keys and shapes and without running code from the file.

    Args:
        trunk: Module whose weights are replaced.
        path: File written by ``torch.save(state_dict)``, or ``.safetensors``. If its name contains a prefix of its
            SHA-256, as in ``resnet34-b627a593.pth``, the file is checked against it.
        ignore: Prefix of keys to skip, such as those of the classifier.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, is not a checkpoint, or belongs to another network.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    _check_hash(path)
    weights = {key: value for key, value in _read(path).items() if not key.startswith(ignore)}
    expected = trunk.state_dict()
    needed = {key for key in expected if not key.endswith("num_batches_tracked")}
    problems = {
        "missing": needed - weights.keys(),
        "unknown": weights.keys() - expected.keys(),
        "wrong shape": {key for key in needed & weights.keys() if weights[key].shape != expected[key].shape},
    }
    if any(problems.values()):
        details = "; ".join(f"{what}: {some(sorted(keys))}" for what, keys in problems.items() if keys)
        raise ValueError(f"{path} is not a checkpoint of {type(trunk).__name__}: {details}")
    # Not strict only because of num_batches_tracked: all other keys were checked above.
    trunk.load_state_dict(weights, strict=False)


def normalised(
    images: Shaped[Tensor, "b c h w"], mean: Float[Tensor, "3 1 1"], std: Float[Tensor, "3 1 1"]
) -> Float[Tensor, "b 3 h w"]:
    """Convert images, uint8 or floating-point in [0, 1], to normalised RGB on the device of `mean`."""
    x = images.to(mean.device).to(mean.dtype)
    if images.dtype == torch.uint8:
        x = x / 255
    return (x.expand(-1, 3, -1, -1) - mean) / std


def check_images(images: Tensor) -> None:
    """Raise a ValueError unless `images` is a batch of images (B, 3, H, W) or (B, 1, H, W)."""
    ok = images.ndim == 4 and images.shape[1] in (1, 3)
    ok = ok and (images.dtype == torch.uint8 or images.is_floating_point())
    check(ok, "images", "a uint8 or floating-point tensor of shape (B, 3, H, W) or (B, 1, H, W)", images)
    # On the CPU this check is cheap compared with the trunk; elsewhere it would synchronise with the device.
    if images.is_floating_point() and can_look(images):
        lowest, highest = (float(bound) for bound in images.aminmax())
        if not (lowest >= 0 and highest <= 1):
            raise ValueError(
                f"images must hold values from 0 to 1 if floating-point, but these range from {lowest:g} to"
                f" {highest:g}; do not normalise them, since the backbone does"
            )


def _check_hash(path: Path) -> None:
    named = re.search(r"-([0-9a-f]{8,64})\.", path.name)
    if named:
        actual = file_sha256(path)
        if not actual.startswith(named[1]):
            raise ValueError(
                f"{path} is damaged or a different file: its SHA-256 begins with {actual[: len(named[1])]}, not"
                f" with {named[1]} as in its name. Download it again, or rename it if it is meant to differ"
            )


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}") from error
    try:
        # weights_only rejects pickles that contain anything but tensors in plain containers.
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise exceptions of many types
        raise ValueError(f"{path} is damaged, or contains more than plain tensors, and was not loaded") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path} must hold a state dict: save it with torch.save(model.state_dict(), path)")
    return weights
