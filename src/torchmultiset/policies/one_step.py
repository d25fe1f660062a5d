"""The one-step model (section 3.2, Appendix E): no recurrence, all classes at once."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float
from torchmultiset.policies._memory import places
from torchmultiset.rollout import Step

__all__ = ["OneStep", "round_counts"]


@recorded
class OneStep(nn.Module):
    """Scores of all classes from the memory's mean over its places.

    With `one_step_loss`, a `heads.SizeHead` reads the features, and ``round_counts(logits.softmax(-1) * size)`` is the
    prediction. With `count_regression_loss`, the logits are the counts themselves: ``round_counts(logits)``.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).

    Example:
        >>> model = OneStep(num_classes=10, memory=32)
        >>> logits, features = model(torch.rand(2, 32, 9, 9))
        >>> logits.shape, features.shape
        (torch.Size([2, 10]), torch.Size([2, 32]))
    """

    def __init__(self, num_classes: int, memory: int) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        self.num_classes = num_classes
        self.memory = memory
        self.features = memory
        self.classifier = nn.Linear(memory, num_classes)

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Step:
        """Scores (B, C), and the features (B, D) they were read from."""
        features = places(memory, self.memory).mean(1)
        return Step(self.classifier(features), features)


def round_counts(rates: Float[Tensor, "b c"]) -> Int64[Tensor, "b c"]:
    r"""The counts nearest to real numbers, none below 0: :math:`\text{round}(q_\theta(c)\, \hat l_\theta)`.

    Args:
        rates: Predicted counts (B, C) as real numbers.

    Example:
        >>> round_counts(torch.tensor([[0.4, 1.7, -0.8]]))
        tensor([[0, 2, 0]])
    """
    check_float("rates", rates, "(B, C)", like=(None, None))
    return rates.round().clamp(min=0).to(torch.int64)
