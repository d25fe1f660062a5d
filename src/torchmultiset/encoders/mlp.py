"""An encoder for inputs that are vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
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

    Inputs are standardised first, by the mean and spread that `standardise` was shown; as they are until then.

    Example:
        >>> MLPEncoder(7, hidden=(64, 32))(torch.rand(2, 7)).shape
        torch.Size([2, 32])
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, features: int, hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__()
        check(len(hidden) >= 1, "hidden", "at least one number", hidden)
        self.features = features
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))
        self.layers = nn.Sequential(
            *[part for a, b in pairwise([features, *hidden]) for part in (nn.Linear(a, b), nn.ReLU())]
        )

    def forward(self, x: Float[Tensor, "b features"]) -> Float[Tensor, "b d"]:
        """A vector (B, D) from vectors (B, features)."""
        check_float("x", x, "(B, features)", like=(None, self.features))
        out: Tensor = self.layers((x - self.mean) / self.spread)
        return out

    @torch.no_grad()
    def standardise(self, x: Float[Tensor, "n features"]) -> None:
        """From now on take each feature relative to its mean and spread here, whatever it is measured in.

        Args:
            x: Inputs (N, features) to learn from.
        """
        check_float("x", x, "(N, features)", like=(None, self.features))
        spread, mean = torch.std_mean(x.double(), 0, correction=0)
        self.mean.copy_(mean)
        # One that does not vary, but for rounding, says nothing.
        self.spread.copy_(torch.where(spread > 1e-6 * mean.abs(), spread, 1.0))
