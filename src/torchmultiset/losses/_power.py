"""Loss of a classifier with one class per multiset."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check_counts, check_float
from torchmultiset._numbering import check_sizes
from torchmultiset.losses._common import Reduction, log_policy, reduce
from torchmultiset.multiset import how_many, index_of

__all__ = ["power_loss"]


def power_loss(
    logits: Float[Tensor, "b p"],
    target: Int64[Tensor, "b c"],
    *,
    max_size: int,
    min_size: int = 0,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the power multiset loss (section 3.2): cross-entropy with one class per multiset.

    .. math::
        -\log \pi_\theta(\mathcal{Y} \mid x), \qquad
        \pi_\theta(\cdot \mid x) = \operatorname{softmax} \text{ over } M(\mathcal{C})

    This is the exact negative log-likelihood of the multiset. The empty multiset is a class like any other.

    Args:
        logits: Scores (B, P) of all multisets of `min_size` to `max_size` labels, in the order of
            `multiset.index_of`; P is ``how_many(C, max_size, min_size=min_size)``.
        target: Counts (B, C).
        max_size: Maximum number of labels of a target.
        min_size: Minimum number of labels of a target.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> import torch
        >>> power_loss(torch.zeros(1, 715), torch.tensor([[2, 0, 0, 1, 0, 0, 0, 0, 0, 1]]), max_size=4, min_size=4)
        tensor(6.5723)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.2.
    """
    check_counts("target", target)
    num_classes = target.shape[1]
    many = how_many(num_classes, max_size, min_size=min_size)
    shape = f"(B, how_many({num_classes}, {max_size}, min_size={min_size}))"
    check_float("logits", logits, shape, like=(target.shape[0], many))
    check_sizes("target", target, max_size=max_size, min_size=min_size)
    index = index_of(target, max_size=max_size, min_size=min_size)
    return reduce(-log_policy(logits).gather(1, index[:, None]).squeeze(1), reduction)
