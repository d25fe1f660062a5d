"""Small modules that read a policy's features: when to stop, how good things look, how many there are.

They run once, on the features of all steps, after the rollout: labels before a stop cannot depend on it.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["SizeHead", "StopHead", "ValueHead"]


class _StepHead(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """One number for each feature vector (..., D)."""
        out: Tensor = self.linear(features)
        return out.squeeze(-1)


class StopHead(_StepHead):
    r"""The termination policy :math:`\pi_s`: scores (B, T) of stopping, from features (B, T, D).

    Args:
        features: D.
    """


class ValueHead(_StepHead):
    """The learned baseline of REINFORCE: expected reward-to-go (B, T), from features (B, T, D).

    Args:
        features: D.
    """


class SizeHead(_StepHead):
    r"""The size :math:`\hat l_\theta(x) > 0` of the one-step model: (B,), from features (B, D).

    Args:
        features: D.
    """

    def forward(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """A positive number for each feature vector (..., D)."""
        return nn.functional.softplus(super().forward(features))
