"""Ridge regression of counts in closed form: a one-shot head, and the solver behind it."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_counts, check_float
from torchmultiset._memory import Memory
from torchmultiset._pooling import PoolKind
from torchmultiset.heads.counts import RegressedCounts

__all__ = ["Ridge", "RidgeCounts", "fit_ridge"]


class Ridge(NamedTuple):
    """A linear map from features to expected counts."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]
    penalty: float
    """Chosen penalty, relative to the mean squared singular value of the features."""
    error: float
    """Mean squared leave-one-out error with that penalty."""


def fit_ridge(features: Float[Tensor, "n d"], counts: Int64[Tensor, "n c"]) -> Ridge:
    r"""Fit a linear regression of counts on features, with an L2 penalty chosen by leave-one-out error.

    .. math::
        \min_{W, b} \sum_{i=1}^{n} \lVert W x_i + b - \mu_i \rVert^2 + \lambda \lVert W \rVert^2

    Features are standardised; b is not penalised. One eigendecomposition, of whichever is smaller of
    :math:`X^\top X` and :math:`X X^\top`, serves all penalties, and the leave-one-out errors follow from the diagonal
    of the hat matrix without fitting again:
    :math:`e_i = (\mu_i - \hat\mu_i) / (1 - h_{ii})`.

    Returns:
        Weights, penalty and error. The weights apply to features that are not standardised.

    Example:
        >>> x = torch.arange(8.0)[:, None]
        >>> ridge = fit_ridge(x, (2 * x + 1).long())
        >>> (torch.tensor([[10.0]]) @ ridge.weight.T + ridge.bias).round()
        tensor([[21.]])

    Reference:
        Hoerl and Kennard, "Ridge Regression", Technometrics 1970; leave-one-out: Allen, "The Relationship Between
        Variable Selection and Data Augmentation", Technometrics 1974.
    """
    check_float("features", features, "(N, D)", like=(None, None))
    check_counts("counts", counts, like=(len(features), None))
    number, width = features.shape
    check(number >= 1, "features", "features of at least one example", features)
    x, y = features.double(), counts.double()
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > 1e-12 * (1 + mean.abs()), scale, 1.0)
    x, offset = (x - mean) / scale, y.mean(0)
    y = y - offset
    # X = U diag(s) V^T, from the eigenvectors of the smaller of the two products.
    if width <= number:
        squares, v = torch.linalg.eigh(x.T @ x)
    else:
        squares, u = torch.linalg.eigh(x @ x.T)
        v = x.T @ u / squares.clamp(min=1e-12 * squares.max().clamp(min=1e-300)).sqrt()
    squares = squares.clamp(min=0)
    kept = squares > 1e-10 * squares.max().clamp(min=1e-300)
    squares, v = squares[kept], v[:, kept]
    projected = x @ v  # U diag(s)
    target = projected.T @ y
    unit = squares.mean() if len(squares) else torch.tensor(1.0, dtype=torch.float64)

    def fitted(penalty: float) -> tuple[float, float, Tensor]:
        shrunk = 1 / (squares + penalty * unit)
        solution = shrunk[:, None] * target
        leverage = (projected.square() * shrunk).sum(1) + 1 / number
        left_out = (y - projected @ solution) / (1 - leverage).clamp(min=1e-6)[:, None]
        return left_out.square().mean().item(), penalty, solution

    penalties = [10.0**power for power in torch.arange(-4, 4.5, 0.5).tolist()]
    error, penalty, solution = min(map(fitted, penalties), key=itemgetter(0))
    weight = (v @ solution).T / scale
    bias = offset - weight @ mean
    return Ridge(weight.to(features.dtype), bias.to(features.dtype), penalty, error)


@recorded
class RidgeCounts(RegressedCounts):
    """Ridge regression of counts on the pooled memory: fitted in closed form by `fit`, not by gradients.

    The prediction is the nearest multiset of a size that can be predicted. It assigns no probabilities to multisets.
    The arguments are those of `PooledHead`; with ``pool="attention"``, which is not trained, positions are averaged.

    Example:
        >>> head = RidgeCounts(num_classes=2, memory=3)
        >>> memory = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 5.0], [1.0, 1.0, 5.0], [3.0, 2.0, 5.0]])
        >>> _ = head.fit(memory, memory[:, :2].long())
        >>> head.counts(head(memory), 1, 5)
        tensor([[0, 1],
                [2, 0],
                [1, 1],
                [3, 2]])
    """

    reads: ClassVar[tuple[str, ...]] = ("pool",)

    def __init__(self, num_classes: int, memory: int, *, pool: PoolKind = "mean") -> None:
        super().__init__(num_classes, memory, pool=pool)

    @torch.no_grad()
    def fit(self, memory: Memory, counts: Int64[Tensor, "n c"]) -> Ridge:
        """Fit the weights to examples, all at once, with the penalty that `fit_ridge` chooses."""
        return self.take(fit_ridge(self.pooled(memory), counts))

    @torch.no_grad()
    def solve(self, memories: Iterable[Memory], counts: Int64[Tensor, "n c"]) -> float:
        """Fit the weights to examples whose memory is computed in batches; return the leave-one-out error.

        Only the pooled features of each memory are kept.
        """
        pooled = torch.cat([self.pooled(memory) for memory in memories])
        return self.take(fit_ridge(pooled.float(), counts)).error

    @torch.no_grad()
    def take(self, ridge: Ridge) -> Ridge:
        """Copy the weights of a regression that `fit_ridge` fitted to pooled features."""
        self.classifier.weight.copy_(ridge.weight)
        self.classifier.bias.copy_(ridge.bias)
        return ridge
