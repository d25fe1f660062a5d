"""Losses that train a policy step by step: the multiset loss imitates the oracle, the sequence loss one order."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check_counts, check_float, check_labels, check_mask, check_one_of
from torchmultiset._precision import full_precision
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.losses._cross_entropy import oracle_cross_entropy
from torchmultiset.multiset import distinct_classes, free_counts, free_labels

__all__ = ["multiset_loss", "multiset_loss_as_defined", "sequence_loss"]

FEW_CLASSES = 128
"""Number of classes up to which using all of them is faster than finding those in each target."""


def multiset_loss_as_defined(
    logits: Float[Tensor, "b t c"], labels: Int64[Tensor, "b t"], target: Int64[Tensor, "b c"]
) -> Float[Tensor, ""]:
    """Compute the multiset loss as written in Definition 3: a readable reference implementation.

    `multiset_loss` computes the same value with fewer passes over memory, and has more options.

    Args:
        logits: Scores (B, T, C) of a policy, before each label was emitted.
        labels: Emitted labels (B, T).
        target: Counts (B, C).

    Example:
        >>> labels, target = torch.tensor([[0, 1, 0]]), torch.tensor([[2, 0, 1]])
        >>> multiset_loss_as_defined(torch.zeros(1, 3, 3), labels, target)
        tensor(3.2958)
    """
    free = free_labels(target, labels)  # labels that are still missing before each step, (B, T, C)
    oracle = free / free.sum(-1, keepdim=True).clamp(min=1)  # uniform over them; 0 once nothing is missing
    return -(oracle * logits.log_softmax(-1)).sum((1, 2)).mean()


def multiset_loss(
    logits: Float[Tensor, "b t k"],
    labels: Int64[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    *,
    divergence: Literal["kl", "js", "tv"] = "kl",
    over_steps: Literal["sum", "mean"] = "sum",
    end: bool = False,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the multiset loss (Definition 3): the divergence from oracle to policy, summed over a trajectory.

    .. math::
        \mathcal{L}_{\text{multi}}(x, \mathcal{Y}, \theta) = -\sum_{t=1}^{T} \frac{1}{|\mathcal{Y}_t|}
        \sum_{y \in \mathcal{Y}_t} \log \pi_\theta(y \mid \hat y_{<t}, x)

    where :math:`\mathcal{Y}_t` is what remains of the target after the labels emitted so far. A step at which nothing
    remains contributes exactly 0.

    Args:
        logits: Scores (B, T, C) of a policy, before each label was emitted.
        labels: Labels (B, T) of the trajectory, emitted by any strategy.
        target: Counts (B, C).
        divergence: Divergence from the oracle :math:`\pi_*` to the policy. ``"kl"``: forward Kullback-Leibler without
            the oracle's constant entropy, the cross-entropy above. ``"js"``: Jensen-Shannon, in
            :math:`[0, \ln 2]`. ``"tv"``: total variation, in :math:`[0, 1]`.
        over_steps: ``"sum"`` as in the paper, or ``"mean"`` over the unfinished steps.
        end: Whether the last class is END; logits are then (B, T, C + 1). See `multiset.free_labels`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> target = torch.tensor([[2, 0, 1]])  # {0, 0, 2}
        >>> labels = torch.tensor([[0, 1, 0]])  # 1 was a mistake
        >>> multiset_loss(torch.zeros(1, 3, 3), labels, target)  # 3 ln 3
        tensor(3.2958)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 4.
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, T, C)", like=(target.shape[0], None, target.shape[1] + end))
    check_labels("labels", labels, logits.shape[2], like=(logits.shape[0], logits.shape[1]))
    check_one_of("divergence", divergence, ("kl", "js", "tv"))
    check_one_of("over_steps", over_steps, ("sum", "mean"))
    check_one_of("reduction", reduction, ("mean", "sum", "none"))
    scores = full_precision(logits)
    classes = None if target.shape[1] <= FEW_CLASSES else distinct_classes(target, end=end)
    free = free_counts(target, labels, classes, end=end, dtype=scores.dtype)
    # All divergences need the policy only where the oracle is not 0: at the K classes of the target.
    if divergence == "kl":
        return oracle_cross_entropy(scores, free, classes, over_steps, reduction)
    log_pi = scores.log_softmax(-1)
    if classes is not None:
        log_pi = log_pi.gather(2, classes[:, None].expand_as(free))
    size = free.sum(-1)
    pi_star = free / size.clamp(min=1)[..., None]
    per_step = _jensen_shannon(pi_star, log_pi) if divergence == "js" else _total_variation(pi_star, log_pi)
    per_example = per_step.sum(-1)
    if over_steps == "mean":
        per_example = per_example / (size > 0).sum(-1).clamp(min=1)
    return reduce(per_example, reduction)


def sequence_loss(
    logits: Float[Tensor, "b t c"],
    sequence: Int64[Tensor, "b t"],
    *,
    where: Bool[Tensor, "b t"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the sequence loss (Appendix F): the negative log-likelihood of the target in one order.

    .. math::
        \mathcal{L}_{\text{seq}}(x, \mathcal{S}, \theta) = -\sum_{t=1}^{|\mathcal{S}|}
        \log \pi_\theta(s_t \mid s_{<t}, x)

    Args:
        logits: Scores (B, T, C) of a policy under teacher forcing: ``rollout`` with ``forced``.
        sequence: Labels (B, T) in the order of a rank function; negative labels are padding.
        where: Mask (B, T) of the steps that count; all if None. Padding never counts.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> sequence_loss(torch.zeros(1, 3, 4), torch.tensor([[2, 0, -1]]))  # 2 ln 4
        tensor(2.7726)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.3 and Appendix F.
    """
    check_float("logits", logits, "(B, T, C)", like=(None, None, None))
    shape = (logits.shape[0], logits.shape[1])
    check_labels("sequence", sequence, logits.shape[2], like=shape, padding=True)
    counted = sequence >= 0
    if where is not None:
        check_mask("where", where, "(B, T)", like=shape)
        counted = counted & where
    log_pi = log_policy(logits).gather(2, sequence.clamp(min=0)[..., None]).squeeze(-1)
    return reduce(-weighted(counted.to(log_pi.dtype), log_pi).sum(-1), reduction)


def _jensen_shannon(p: Tensor, log_q: Tensor) -> Tensor:
    # Where p is 0 the midpoint is q / 2, so each such class adds q log(q / (q / 2)) = q log 2.
    q = log_q.exp()
    on = p > 0
    log_p = p.masked_fill(~on, 1).log()
    log_q = log_q.masked_fill(~on, 0)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    inside = weighted(p, log_p - log_m) + weighted(q * on, log_q - log_m)
    outside = 1 - (q * on).sum(-1)
    return (0.5 * (inside.sum(-1) + math.log(2) * outside)) * on.any(-1)


def _total_variation(p: Tensor, log_q: Tensor) -> Tensor:
    return (p - log_q.exp()).clamp(min=0).sum(-1)
