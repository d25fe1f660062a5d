"""Reinforcement learning loss."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check_counts, check_float, check_labels, check_mask
from torchmultiset._precision import full_precision
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.multiset import hits, unfinished

__all__ = ["reinforce_loss"]


def reinforce_loss(
    logits: Float[Tensor, "b t k"],
    labels: Int64[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    baseline: Float[Tensor, "b t"] | None = None,
    *,
    entropy_weight: float = 0.01,
    value_weight: float = 0.5,
    where: Bool[Tensor, "b t"] | None = None,
    end: bool = False,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the REINFORCE loss of the multiset reward (Appendix F), with a learned baseline and an entropy bonus.

    .. math::
        \mathcal{L}_{\text{RL}} = \sum_t \Big[
        -(R_t - b_t) \log \pi_\theta(\hat y_t \mid \hat y_{<t}, x)
        - \lambda\, \mathcal{H}(\pi_\theta^{(t)}) + \nu\, (R_t - b_t)^2 \Big],
        \qquad R_t = \sum_{s \ge t} r_s

    The reward :math:`r_t` is 1 if label t was free when it was emitted, and -1 otherwise. In the first term, the
    advantage :math:`R_t - b_t` is a constant. The paper prints the entropy with the opposite sign, which would penalise
    the exploration that its text calls for. The gradient is the REINFORCE estimate; the value has little meaning.

    Args:
        logits: Scores (B, T, C) of a policy, from a rollout with `sample`.
        labels: Sampled labels (B, T).
        target: Counts (B, C).
        baseline: Expected reward-to-go (B, T), from a `heads.ValueHead`; None for no baseline.
        entropy_weight: Weight :math:`\lambda` of the entropy bonus.
        value_weight: Weight :math:`\nu` of the baseline's regression; unused without a baseline.
        where: Mask (B, T) of the steps that count; if None, those at which something is free.
        end: Whether the last class is END; logits are then (B, T, C + 1). See `multiset.free_labels`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> target = torch.tensor([[1, 0]])
        >>> labels = torch.tensor([[1, 0]])  # wrong, then right: rewards -1, 1; reward-to-go 0, 1
        >>> reinforce_loss(torch.zeros(1, 2, 2), labels, target, entropy_weight=0.0)  # ln 2
        tensor(0.6931)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.3 and Appendix F; Williams,
        "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992.
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, T, C)", like=(target.shape[0], None, target.shape[1] + end))
    shape = (logits.shape[0], logits.shape[1])
    check_labels("labels", labels, logits.shape[2], like=shape)
    if where is None:
        where = unfinished(target, labels, end=end)
    else:
        check_mask("where", where, "(B, T)", like=shape)
    log_pi = log_policy(logits)
    counted = where.to(log_pi.dtype)
    reward = torch.where(hits(target, labels, end=end), 1.0, -1.0).to(log_pi.dtype) * counted
    to_go = reward.flip(1).cumsum(1).flip(1)
    advantage = to_go
    if baseline is not None:
        check_float("baseline", baseline, "(B, T)", like=shape)
        baseline = full_precision(baseline)
        advantage = to_go - baseline.detach()
    log_chosen = log_pi.gather(2, labels[..., None]).squeeze(-1)
    per_step = -weighted(advantage * counted, log_chosen)
    if entropy_weight:
        pi = log_pi.exp()
        per_step = per_step + entropy_weight * counted * weighted(pi, log_pi).sum(-1)
    if baseline is not None:
        per_step = per_step + value_weight * counted * (to_go - baseline) ** 2
    return reduce(per_step.sum(-1), reduction)
