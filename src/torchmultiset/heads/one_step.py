"""The one-step model (section 3.2, Appendix E): class frequencies and a size."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._checks import check_float
from torchmultiset._memory import Memory
from torchmultiset.distributions import IndependentCounts
from torchmultiset.heads._base import PooledHead
from torchmultiset.heads._scalar import SizeHead
from torchmultiset.multiset import cardinality

__all__ = ["OneStep", "nearest_counts", "round_counts"]


class OneStep(PooledHead):
    r"""The frequency of each class and the size, from the pooled memory.

    Scores (B, 1, C + 1) are those of the classes and the size :math:`\hat l_\theta`. The prediction is
    :math:`\text{round}(q_\theta(c)\, \hat l_\theta)`, separately for each class as in the paper, or the nearest
    multiset of an allowed size if the rounded counts have another size. It assigns no probabilities to multisets. For
    `losses.one_step_loss`. The arguments are those of `PooledHead`.

    Example:
        >>> model = OneStep(num_classes=10, memory=32)
        >>> shares, size = model.split(model(torch.rand(2, 32, 9, 9)))
        >>> shares.shape, size.shape
        (torch.Size([2, 10]), torch.Size([2]))
    """

    probabilistic = False

    def __init__(self, num_classes: int, memory: int, **pooling: Any) -> None:
        super().__init__(num_classes, memory, **pooling)
        self.classifier = nn.Linear(self.pooled.width, num_classes)
        self.size = SizeHead(self.pooled.width)

    def forward(self, memory: Memory) -> Float[Tensor, "b 1 k"]:
        """Compute the scores of the classes and the size."""
        features = self.pooled(memory)
        return torch.cat([self.classifier(features), self.size(features)[:, None]], -1)[:, None]

    @staticmethod
    def split(scores: Float[Tensor, "b 1 k"]) -> tuple[Float[Tensor, "b c"], Float[Tensor, " b"]]:
        """Split scores into those of the classes (B, C) and sizes (B,)."""
        return scores[:, 0, :-1], scores[:, 0, -1]

    def counts(self, scores: Float[Tensor, "b 1 k"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """Return the class frequencies times the size, rounded to `least` to `most` labels in total."""
        shares, size = self.split(scores)
        return nearest_counts(shares.softmax(-1) * size[:, None], least, most)

    def probabilities(self, scores: Float[Tensor, "b 1 k"], least: int, most: int) -> Float[Tensor, "b 1 c"]:  # noqa: ARG002
        """Return the class frequencies."""
        return scores[..., :-1].softmax(-1)


def round_counts(rates: Float[Tensor, "b c"]) -> Int64[Tensor, "b c"]:
    r"""Round real numbers to the nearest counts, at least 0: :math:`\text{round}(q_\theta(c)\, \hat l_\theta)`.

    Example:
        >>> round_counts(torch.tensor([[0.4, 1.7, -0.8]]))
        tensor([[0, 2, 0]])
    """
    check_float("rates", rates, "(B, C)", like=(None, None))
    return rates.round().clamp(min=0).to(torch.int64)


def nearest_counts(rates: Float[Tensor, "b c"], least: int, most: int) -> Int64[Tensor, "b c"]:
    r"""Round real numbers to the nearest multiset of `least` to `most` labels.

    .. math::
        \arg\min_{\mu} \sum_c (\mu(c) - r_c)^2, \qquad \text{least} \le \sum_c \mu(c) \le \text{most}

    Example:
        >>> nearest_counts(torch.tensor([[0.4, 0.3, 0.0], [1.6, 0.7, 1.2]]), least=1, most=3)
        tensor([[1, 0, 0],
                [1, 1, 1]])
    """
    counts = round_counts(rates)
    size = cardinality(counts)
    fits = (size >= least) & (size <= most)
    if not torch.compiler.is_compiling() and bool(fits.all()):
        return counts
    n = torch.arange(most + 1, dtype=torch.float64, device=rates.device)
    allowed = IndependentCounts(-((n - rates.double()[..., None]) ** 2), least, most)
    return torch.where(fits[:, None], counts, allowed.best())
