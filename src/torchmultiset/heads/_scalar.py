"""Scalar heads on a policy's features: when to stop, the expected reward, the size.

They run once, on the features of all steps, after the rollout: labels before a stop do not depend on it.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["SizeHead", "StopHead", "ValueHead"]


class _StepHead(nn.Module):
    """A linear map of D features to one number."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Compute one number for each feature vector (..., D)."""
        out: Tensor = self.linear(features)
        return out.squeeze(-1)


class StopHead(_StepHead):
    r"""The termination policy :math:`\pi_s`: scores (B, T) of stopping, from features (B, T, D)."""


class ValueHead(_StepHead):
    """The learned baseline of REINFORCE: expected reward-to-go (B, T), from features (B, T, D)."""


class SizeHead(_StepHead):
    r"""The size :math:`\hat l_\theta(x) > 0` of the one-step model: (B,), from features (B, D)."""

    def forward(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Compute a positive number for each feature vector (..., D)."""
        return nn.functional.softplus(super().forward(features))
