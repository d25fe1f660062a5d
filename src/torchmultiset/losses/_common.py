"""What all losses share."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from torchmultiset._checks import check_one_of
from torchmultiset._precision import full_precision

__all__ = ["Reduction", "log_policy", "reduce", "weighted"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def log_policy(logits: Tensor) -> Tensor:
    """Log-probabilities of the softmax policy, in at least float32."""
    return full_precision(logits).log_softmax(-1)


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """`weights * values`, and 0 where the weight is 0, however infinite the value: in the gradient too."""
    return weights * values.masked_fill(weights == 0, 0)


def reduce(per_example: Tensor, reduction: Reduction) -> Tensor:
    """Mean or sum over the batch (B,), or as it is."""
    check_one_of("reduction", reduction, ("mean", "sum", "none"))
    if reduction == "none":
        return per_example
    return per_example.mean() if reduction == "mean" else per_example.sum()
