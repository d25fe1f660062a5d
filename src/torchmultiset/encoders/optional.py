"""Optional attributes of encoders, and the defaults for encoders that do not have them.

Any `nn.Module` is an encoder, so there is no base class with these defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from torchmultiset.encoders.backbone import Backbone

__all__ = ["FeatureEncoder", "feature_encoder", "missing_cells", "parameter_groups"]


@runtime_checkable
class FeatureEncoder(Protocol):
    """Encoder that sets `reads_features`: it reads images, or their features from a frozen backbone."""

    reads_features: bool
    """Whether it is such an encoder."""
    name: str
    """Name of the backbone."""
    fingerprint: str | None
    """Fingerprint of the backbone's weights; None if they have not been loaded yet."""

    def backbone(self) -> Backbone:
        """Return the backbone, which is not a submodule of the encoder."""


def feature_encoder(encoder: nn.Module) -> FeatureEncoder | None:
    """Return the encoder if it reads features of a frozen backbone, else None.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder, PretrainedEncoder
        >>> feature_encoder(PretrainedEncoder("resnet34")).name, feature_encoder(MLPEncoder(7))
        ('resnet34', None)
    """
    return cast("FeatureEncoder", encoder) if getattr(encoder, "reads_features", False) else None


def missing_cells(encoder: nn.Module, shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return how many cells the encoder's map lacks at the left, right, top and bottom of its inputs.

    Default: none; the map covers the whole input.

    Args:
        encoder: The encoder.
        shape: Shape of a batch of inputs; an encoder with the method ``missing_cells(height, width)`` reads images
            (B, channels, H, W).
    """
    method = getattr(encoder, "missing_cells", None)
    return (0, 0, 0, 0) if method is None else method(shape[2], shape[3])


def parameter_groups(encoder: nn.Module, lr: float) -> list[dict[str, Any]]:
    """Return groups of parameters with their own learning rates, in the form that PyTorch optimisers take.

    Default: no groups; all parameters have the learning rate of the run.
    """
    method = getattr(encoder, "parameter_groups", None)
    return [] if method is None else method(lr)
