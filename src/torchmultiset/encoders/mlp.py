"""An encoder for inputs that are vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float

__all__ = ["MLPEncoder"]


@recorded
class MLPEncoder(nn.Module):
    """Linear layers with ReLU after each.

    Args:
        features: Features of the input.
        hidden: Units of each layer; the last is the memory's D.

    Example:
        >>> import torch
        >>> MLPEncoder(7, hidden=(64, 32))(torch.rand(2, 7)).shape
        torch.Size([2, 32])
    """

    def __init__(self, features: int, hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__()
        check(len(hidden) >= 1, "hidden", "at least one number", hidden)
        self.features = features
        self.layers = nn.Sequential(
            *[part for a, b in pairwise([features, *hidden]) for part in (nn.Linear(a, b), nn.ReLU())]
        )

    def forward(self, x: Float[Tensor, "b features"]) -> Float[Tensor, "b d"]:
        """A vector (B, D) from vectors (B, features)."""
        check_float("x", x, "(B, features)", like=(None, self.features))
        out: Tensor = self.layers(x)
        return out
