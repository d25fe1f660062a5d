"""Baselines that every model has to beat: the majority multiset, the nearest neighbour and ridge regression.

Each is fitted to features (N, D), such as a pooled memory or the columns of a table, and has no hyperparameters to set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_counts, check_float
from torchmultiset.heads.one_step import nearest_counts
from torchmultiset.heads.ridge import Ridge, fit_ridge
from torchmultiset.multiset import cardinality

__all__ = ["Baseline", "MajorityBaseline", "NeighbourBaseline", "RidgeBaseline", "best_constant", "fit_baselines"]

_ROWS = 1024
"""Examples whose distances to all training examples are computed at a time."""


@runtime_checkable
class Baseline(Protocol):
    """A fitted baseline."""

    def predict(self, features: Float[Tensor, "b d"]) -> Int64[Tensor, "b c"]:
        """Predict counts (B, C) from features (B, D)."""
        ...


def best_constant(target: Int64[Tensor, "n c"]) -> Int64[Tensor, " c"]:
    """Return the most frequent multiset (C,): the constant prediction with the highest exact match.

    Example:
        >>> best_constant(torch.tensor([[1, 0], [0, 2], [0, 2]]))
        tensor([0, 2])
    """
    rows, times = torch.unique(target, dim=0, return_counts=True)
    best: Tensor = rows[times.argmax()]
    return best


@dataclass(frozen=True)
class MajorityBaseline:
    """Predicts the multiset that is most frequent in the training data, regardless of the input."""

    counts: Int64[Tensor, " c"]

    def predict(self, features: Float[Tensor, "b d"]) -> Int64[Tensor, "b c"]:
        """Predict the same counts for each input."""
        return self.counts.expand(len(features), -1).clone()


@dataclass(frozen=True)
class NeighbourBaseline:
    """Predicts the multiset of the nearest training example, by Euclidean distance of standardised features."""

    features: Float[Tensor, "n d"]
    """Standardised features of the training examples."""
    counts: Int64[Tensor, "n c"]
    mean: Float[Tensor, " d"]
    """Mean of the features before they were standardised."""
    scale: Float[Tensor, " d"]
    """Their standard deviation."""

    def predict(self, features: Float[Tensor, "b d"]) -> Int64[Tensor, "b c"]:
        """Predict the counts of the nearest training example, the first one in case of a tie."""
        check_float("features", features, "(B, D)", like=(None, self.features.shape[1]))
        rows = torch.split((features - self.mean) / self.scale, _ROWS)
        nearest = torch.cat([torch.cdist(some, self.features).argmin(1) for some in rows])
        return self.counts[nearest]


@dataclass(frozen=True)
class RidgeBaseline:
    """Predicts the multiset nearest to a ridge regression of the counts, within the sizes of the training data."""

    ridge: Ridge
    sizes: tuple[int, int]
    """Sizes of the smallest and of the largest multiset."""

    def predict(self, features: Float[Tensor, "b d"]) -> Int64[Tensor, "b c"]:
        """Predict the nearest counts of an allowed size."""
        check_float("features", features, "(B, D)", like=(None, self.ridge.weight.shape[1]))
        return nearest_counts(features @ self.ridge.weight.T + self.ridge.bias, *self.sizes)


def fit_baselines(
    features: Float[Tensor, "n d"], counts: Int64[Tensor, "n c"], *, sizes: tuple[int, int] | None = None
) -> Mapping[str, Baseline]:
    """Fit all baselines.

    Args:
        features: Features (N, D) of the training examples, such as a pooled memory or columns.
        counts: Their counts (N, C).
        sizes: Sizes of the smallest and of the largest multiset that may be predicted; None: those of `counts`.

    Returns:
        The baselines by name: ``"majority"``, ``"neighbour"`` and ``"ridge"``.

    Example:
        >>> features = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> counts = torch.tensor([[0, 1], [1, 1], [2, 1], [2, 1]])
        >>> {name: fitted.predict(torch.tensor([[0.9]])).tolist() for name, fitted in
        ...  fit_baselines(features, counts).items()}
        {'majority': [[2, 1]], 'neighbour': [[1, 1]], 'ridge': [[1, 1]]}
    """
    check_float("features", features, "(N, D)", like=(None, None))
    check_counts("counts", counts, like=(len(features), None))
    check(len(features) >= 1, "features", "features of at least one example", features)
    size = cardinality(counts)
    allowed = (int(size.min()), int(size.max())) if sizes is None else sizes
    mean, scale = features.mean(0), features.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return {
        "majority": MajorityBaseline(best_constant(counts)),
        "neighbour": NeighbourBaseline((features - mean) / scale, counts, mean, scale),
        "ridge": RidgeBaseline(fit_ridge(features, counts), allowed),
    }
