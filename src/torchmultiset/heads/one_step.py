"""The one-step model (section 3.2, Appendix E): shares of the classes, and a size."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float
from torchmultiset._memory import places
from torchmultiset.heads._base import OneShotHead
from torchmultiset.heads._scalar import SizeHead

__all__ = ["OneStep", "round_counts"]


@recorded
class OneStep(OneShotHead):
    r"""What share each class has and how many labels there are, from the memory's mean over its places.

    Scores (B, 1, C + 1): those of the classes, and the size :math:`\hat l_\theta`. The prediction is
    :math:`\text{round}(q_\theta(c)\, \hat l_\theta)`, each class by itself as in the paper, so it may have more
    labels than any multiset that was learned from. It gives no probabilities of multisets. For `losses.one_step_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).

    Example:
        >>> model = OneStep(num_classes=10, memory=32)
        >>> shares, size = model.split(model(torch.rand(2, 32, 9, 9)))
        >>> shares.shape, size.shape
        (torch.Size([2, 10]), torch.Size([2]))
    """

    probabilistic = False

    def __init__(self, num_classes: int, memory: int) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        self.num_classes = num_classes
        self.memory = memory
        self.classifier = nn.Linear(memory, num_classes)
        self.size = SizeHead(memory)

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b 1 k"]:
        """Scores of the classes, and the size."""
        features = places(memory, self.memory).mean(1)
        return torch.cat([self.classifier(features), self.size(features)[:, None]], -1)[:, None]

    @staticmethod
    def split(scores: Float[Tensor, "b 1 k"]) -> tuple[Float[Tensor, "b c"], Float[Tensor, " b"]]:
        """Scores of the classes (B, C), and sizes (B,)."""
        return scores[:, 0, :-1], scores[:, 0, -1]

    def counts(self, scores: Float[Tensor, "b 1 k"], least: int, most: int) -> Int64[Tensor, "b c"]:  # noqa: ARG002
        """The shares times the size, rounded."""
        shares, size = self.split(scores)
        return round_counts(shares.softmax(-1) * size[:, None])

    def probabilities(self, scores: Float[Tensor, "b 1 k"], least: int, most: int) -> Float[Tensor, "b 1 c"]:  # noqa: ARG002
        """The shares."""
        return scores[..., :-1].softmax(-1)


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
