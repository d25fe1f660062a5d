"""Helpers shared by all losses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from torchmultiset._checks import check_one_of
from torchmultiset._precision import full_precision

__all__ = ["Reduction", "log_policy", "reduce", "weighted"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def log_policy(logits: Tensor) -> Tensor:
    """Compute the log-probabilities of the softmax policy, in at least float32."""
    return full_precision(logits).log_softmax(-1)


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Compute `weights * values`; where a weight is 0, result and gradient are 0 even for infinite values."""
    return weights * values.masked_fill(weights == 0, 0)


def reduce(per_example: Tensor, reduction: Reduction) -> Tensor:
    """Reduce losses (B,) to their mean or sum, or return them unchanged."""
    check_one_of("reduction", reduction, ("mean", "sum", "none"))
    if reduction == "none":
        return per_example
    return per_example.mean() if reduction == "mean" else per_example.sum()
