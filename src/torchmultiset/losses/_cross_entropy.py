"""The cross-entropy from the oracle to the policy, with its gradient in closed form."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchmultiset.losses._common import Reduction, reduce

__all__ = ["oracle_cross_entropy"]

SCALE = 2.0**20
"""More items than a multiset has. A power of 2, so that nothing is rounded."""


def oracle_cross_entropy(
    logits: Tensor,
    free: Tensor,
    classes: Tensor | None,
    over_steps: Literal["sum", "mean"],
    reduction: Reduction,
) -> Tensor:
    """Minus the expected log-probability of an item that is free, over the steps and then over the batch.

    Args:
        logits: (B, T, C), at least float32.
        free: Counts of the items that are free (B, T, K), in the dtype of the logits. Its memory is used again.
        classes: The classes (B, K) that are counted, distinct in each row, or None for all C.
        over_steps: The sum, or the mean over the steps at which something is free.
        reduction: Over the batch.

    Returns:
        Scalar, or (B,) for ``reduction="none"``. It can be differentiated once.
    """
    loss: Tensor = _OracleCrossEntropy.apply(logits, free, classes, over_steps, reduction)  # type: ignore[no-untyped-call]
    return loss


class _OracleCrossEntropy(torch.autograd.Function):
    """By hand: half the passes over the logits that autograd makes, and one tensor of their size kept."""

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
        # Minus infinity times a share of 0 must be 0, so the lowest number stands for it. Scaled up, any share of that
        # number is minus infinity again.
        picked.clamp_(min=torch.finfo(picked.dtype).min)
        halves = zip(picked.chunk(2), pi_star.chunk(2), strict=True)  # to hold half as much at a time
        loss = torch.cat([(a * b).sum((1, 2)) for a, b in halves]).mul_(SCALE).mul_(-1 / SCALE)
        weight = count.clamp(
            max=1 / max(len(count), 1) if reduction == "mean" else 1
        )  # of a step: 0 if nothing is free
        if over_steps == "mean":
            unfinished = (count > 0).sum(1, keepdim=True).clamp(min=1)
            loss, weight = loss / unfinished.flatten(), weight / unfinished
        if ctx.needs_input_grad[0]:
            pi = log_pi.exp_()
            gradient = pi.sub_(pi_star) if index is None else pi.scatter_add_(2, index, pi_star.neg_())
            ctx.save_for_backward(gradient, weight)
        return reduce(loss, reduction)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient, weight = ctx.saved_tensors
        if of_loss.ndim:
            of_loss = of_loss[:, None, None]
        return gradient * (weight * of_loss), None, None, None, None
