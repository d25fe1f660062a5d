"""Loss of the termination policy."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import softplus

from torchmultiset._checks import check_counts, check_float
from torchmultiset._precision import full_precision
from torchmultiset.losses._common import Reduction, reduce
from torchmultiset.multiset import cardinality

__all__ = ["stop_loss"]


def stop_loss(
    stop_logits: Float[Tensor, "b t"], target: Int64[Tensor, "b c"], *, reduction: Reduction = "mean"
) -> Float[Tensor, "*r"]:
    r"""Compute the binary cross-entropy of the termination policy :math:`\pi_s` (section 4).

    .. math::
        -\log \pi_s\big(|\mathcal{Y}|\big) - \sum_{t < |\mathcal{Y}|} \log\big(1 - \pi_s(t)\big)

    where :math:`\pi_s(t)` is the probability of stopping at slot t, which decides whether t labels are enough. Slots
    after the target's size are never reached and do not count.

    Args:
        stop_logits: Scores (B, T) of a `heads.StopHead`; T is the size of the largest multiset plus 1.
        target: Counts (B, C).
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> stop_loss(torch.zeros(1, 5), torch.tensor([[1, 1]]))  # slots 0, 1 and 2: 3 ln 2
        tensor(2.0794)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 4.
    """
    check_counts("target", target)
    check_float("stop_logits", stop_logits, "(B, T)", like=(target.shape[0], None))
    scores = full_precision(stop_logits)
    size = cardinality(target)[:, None]
    slot = torch.arange(scores.shape[1], device=scores.device)
    # -log sigmoid(x) = softplus(-x) at the slot to stop at, -log sigmoid(-x) = softplus(x) before it.
    wrong = torch.where(slot == size, -scores, scores).masked_fill(slot > size, -torch.inf)
    return reduce(softplus(wrong).sum(-1), reduction)
