"""Loss for parallel slots that are matched with the labels of the target."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_counts, check_float
from torchmultiset._install import pip_install
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.multiset import to_labels

__all__ = ["hungarian_loss", "match", "need_scipy"]


def hungarian_loss(
    logits: Float[Tensor, "b s k"],
    target: Int64[Tensor, "b c"],
    *,
    nothing_weight: float = 0.1,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute DETR's loss without boxes: match each label with one slot, and the other slots with "nothing".

    .. math::
        \hat\sigma = \operatorname*{arg\,max}_{\sigma} \sum_{i=1}^{|\mathcal{Y}|} p_{\sigma(i)}(y_i), \qquad
        \mathcal{L} = -\sum_{i=1}^{|\mathcal{Y}|} \log p_{\hat\sigma(i)}(y_i)
        - w \sum_{s \notin \hat\sigma} \log p_s(\varnothing)

    where :math:`p_s` is the softmax of slot s and :math:`\sigma` assigns each label a different slot. As in DETR, the
    matching uses probabilities instead of their logarithms and ignores "nothing"; no gradient flows through it. With an
    empty target, all slots are matched with "nothing".

    DETR's code divides by the sum of the weights in the batch (1 for a label, w for "nothing"). Its paper does not, and
    neither does this loss: gradients differ by that one factor, and an example's loss does not depend on the rest of
    its batch.

    Args:
        logits: Scores (B, S, C + 1) of S slots; the last class is "nothing".
        target: Counts (B, C) of at most S labels.
        nothing_weight: Weight w of "nothing", less than 1 because most slots of a detector are unmatched.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> logits = torch.tensor([[[0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]).log()
        >>> target = torch.tensor([[1, 1]])
        >>> hungarian_loss(logits, target)  # -ln 0.6 - ln 0.5 - 0.1 ln 0.8
        tensor(1.2263)

    Reference:
        Carion et al., "End-to-End Object Detection with Transformers", ECCV 2020, section 3.1.
    """
    check_counts("target", target)
    num_classes = target.shape[1]
    check_float("logits", logits, "(B, S, C + 1)", like=(target.shape[0], None, num_classes + 1))
    check(0 <= nothing_weight < math.inf, "nothing_weight", "a number of at least 0", nothing_weight)
    labels, slots = to_labels(target), logits.shape[1]
    if labels.shape[1] > slots:
        raise ValueError(f"target must have at most {slots} labels, one per slot, but one has {labels.shape[1]}")
    log_pi = log_policy(logits)
    matched = match(log_pi.detach(), labels)
    nothing = matched < 0
    chosen = log_pi.gather(2, matched.masked_fill(nothing, num_classes)[..., None]).squeeze(2)
    weights = torch.ones_like(chosen).masked_fill(nothing, nothing_weight)
    return reduce(-weighted(weights, chosen).sum(-1), reduction)


def match(log_pi: Float[Tensor, "b s k"], labels: Int64[Tensor, "b m"]) -> Int64[Tensor, "b s"]:
    """Assign the labels, at most S and padded with -1, to slots so that the sum of their probabilities is maximal.

    Returns:
        Label of each slot (B, S), or -1 if it has none.
    """
    linear_sum_assignment = need_scipy()
    index = labels.clamp(min=0)[:, None].expand(-1, log_pi.shape[1], -1)
    # SciPy rejects NaN; the loss is NaN regardless.
    gains = log_pi.gather(2, index).exp().nan_to_num(0).cpu().numpy()
    sizes = (labels >= 0).sum(-1).tolist()
    matched = np.full(log_pi.shape[:2], -1, dtype=np.int64)
    for row, gain, label, size in zip(matched, gains, labels.cpu().numpy(), sizes, strict=True):
        slots, items = linear_sum_assignment(gain[:, :size], maximize=True)
        row[slots] = label[items]
    return torch.from_numpy(matched).to(log_pi.device)


def need_scipy() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return SciPy's `linear_sum_assignment`, or raise an ImportError with installation instructions."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ImportError(f"hungarian_loss needs SciPy: {pip_install('hungarian')}") from error
    matching: Callable[..., tuple[np.ndarray, np.ndarray]] = linear_sum_assignment
    return matching
