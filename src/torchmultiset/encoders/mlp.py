"""An encoder for vector inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float
from torchmultiset._memory import MemorySpec
from torchmultiset.encoders._token_layers import Standardised

__all__ = ["MLPEncoder"]


@recorded
class MLPEncoder(Standardised):
    """Linear layers for vectors, each followed by ReLU; without layers, it only standardises.

    Args:
        features: Number of input features.
        hidden: Units of each layer; the last is the memory's D. If empty, D is the number of input features.

    Inputs are first standardised with the mean and standard deviation set by `standardise`, if it was called.

    Example:
        >>> MLPEncoder(7, hidden=(64, 32))(torch.rand(2, 7)).shape
        torch.Size([2, 32])
    """

    def __init__(self, features: int, hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__(features)
        self.features = features
        self.layers = nn.Sequential(
            *[part for a, b in pairwise([features, *hidden]) for part in (nn.Linear(a, b), nn.ReLU())]
        )

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[MLPEncoder, MemorySpec]:
        """Return an encoder for inputs of this shape, from the setting `units`, and the shape of its memory."""
        check(len(shape) == 1, "encoder", f"'conv' for inputs of shape {shape}", "mlp")
        units = settings["units"]
        return cls(shape[0], units), MemorySpec(units[-1] if units else shape[0])

    def forward(self, x: Float[Tensor, "b features"]) -> Float[Tensor, "b d"]:
        """Compute a vector (B, D) from vectors (B, features)."""
        check_float("x", x, "(B, features)", like=(None, self.features))
        out: Tensor = self.layers(super().forward(x))
        return out

    def fit_inputs(self, batches: Iterable[Float[Tensor, "_ features"]]) -> None:
        """Call `standardise` with all batches of training inputs."""
        self.standardise(torch.cat([*batches]))

    @torch.no_grad()
    def standardise(self, x: Float[Tensor, "n features"]) -> None:
        """Set the mean and standard deviation with which inputs are standardised to those of training inputs."""
        check_float("x", x, "(N, features)", like=(None, self.features))
        spread, mean = torch.std_mean(x.double(), 0, correction=0)
        self._set(mean, spread)
