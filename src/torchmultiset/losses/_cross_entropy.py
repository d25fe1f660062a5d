"""Cross-entropy from the oracle to the policy, with a closed-form gradient."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, threshold_

from torchmultiset.losses._common import Reduction

__all__ = ["oracle_cross_entropy"]

MOST_ITEMS = 2**20
"""Upper bound on the size of a multiset: the oracle's probabilities are 0 or at least 1 / MOST_ITEMS."""


def oracle_cross_entropy(
    logits: Tensor,
    free: Tensor,
    classes: Tensor | None,
    over_steps: Literal["sum", "mean"],
    reduction: Reduction,
) -> Tensor:
    """Compute the negative expected log-probability of a free item, reduced over steps and then over the batch.

    Args:
        logits: Scores (B, T, C), at least float32.
        free: Counts (B, T, K) of the free items, in the dtype of the logits. Overwritten.
        classes: Classes (B, K) of these counts, distinct in each row, or None for all C.
        over_steps: Sum over all steps, or mean over those at which something is free.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Returns:
        Scalar, or (B,) for ``reduction="none"``. It can be differentiated once.
    """
    if not torch.is_grad_enabled():
        logits = logits.detach()
    loss: Tensor = _OracleCrossEntropy.apply(logits, free, classes, over_steps, reduction)  # type: ignore[no-untyped-call]
    return loss


class _OracleCrossEntropy(torch.autograd.Function):
    """Manual gradient that overwrites the log-probabilities, so that no other tensor of their size is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        free: Tensor,
        classes: Tensor | None,
        over_steps: Literal["sum", "mean"],
        reduction: Reduction,
    ) -> Tensor:
        count = free.sum(-1, keepdim=True)
        pi_star = free.div_(count.clamp(min=1))
        log_pi = logits.log_softmax(-1)
        index = None if classes is None else classes[:, None].expand_as(pi_star)
        picked = log_pi if index is None else log_pi.gather(2, index)
        # Clamped, so that 0 times minus infinity is 0 and the product can be divided again.
        limits = torch.finfo(picked.dtype)
        picked.clamp_(min=limits.min, max=-limits.tiny * MOST_ITEMS)
        loss = pi_star.mul_(picked).sum((1, 2))
        threshold_(loss, limits.min / MOST_ITEMS, -torch.inf)
        share = 1 / (len(logits) or math.nan) if reduction == "mean" else 1.0
        unfinished = (count > 0).sum(1, keepdim=True).clamp(min=1) if over_steps == "mean" else None
        if unfinished is not None:
            loss /= unfinished.flatten()
        if ctx.needs_input_grad[0]:
            pi_star.div_(picked)
            pi = log_pi.exp_()
            gradient = pi.sub_(pi_star) if index is None else pi.scatter_add_(2, index, pi_star.neg_())
            weight = count.clamp_(max=share)  # 0 where nothing is free
            if unfinished is not None:
                weight /= unfinished
            ctx.save_for_backward(gradient, weight)
        return (loss if reduction == "none" else loss.sum()).mul_(-share)

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, None, None, None, None]:
        # `once_differentiable` would not raise: the incoming gradient of a final loss is a constant.
        if torch.is_grad_enabled():
            raise RuntimeError("the multiset loss can be differentiated only once: leave out create_graph=True")
        gradient, weight = ctx.saved_tensors
        if of_loss.ndim:
            of_loss = of_loss[:, None, None]
        return gradient * (weight * of_loss), None, None, None, None
