"""Losses that match a distribution over classes, or the count of each class, instead of single labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_counts, check_float, check_mask
from torchmultiset._precision import full_precision
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.multiset import cardinality
from torchmultiset.oracle import oracle

__all__ = ["count_regression_loss", "distribution_matching_loss", "one_step_loss"]


def distribution_matching_loss(
    logits: Float[Tensor, "b t c"],
    target: Int64[Tensor, "b c"],
    *,
    divergence: Literal["kl", "l1"] | float = "kl",
    where: Bool[Tensor, "b t"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the aggregated distribution matching loss (Appendix F) between mean policy and class frequencies.

    .. math::
        \mathcal{L}_{\text{dm}}^{p} = \| q_* - q_\theta \|_p, \qquad
        \mathcal{L}_{\text{dm}}^{\text{KL}} = -\sum_{c} q_*(c) \log q_\theta(c)

    with :math:`q_*(c) = \mu(c) / |\mathcal{Y}|` and :math:`q_\theta` the mean of the policy's distributions over
    the first :math:`|\mathcal{Y}|` steps. The loss of an empty target is 0. The logarithm of the mean is computed in
    log space: for a target class with vanishing probability, the loss is finite and its gradient does not vanish.

    Args:
        logits: Scores (B, T, C) of a policy, from a rollout with `sample`.
        target: Counts (B, C).
        divergence: ``"kl"``, ``"l1"``, or the p of a p-norm, at least 1 (including ``math.inf``).
        where: Mask (B, T) of the steps to average over; the first :math:`|\mathcal{Y}|` if None.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> target = torch.tensor([[1, 1, 0, 0]])
        >>> distribution_matching_loss(torch.zeros(1, 2, 4), target, divergence="l1")
        tensor(1.)
        >>> distribution_matching_loss(torch.zeros(1, 2, 4), target)  # ln 4
        tensor(1.3863)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.3 and Appendix F.
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, T, C)", like=(target.shape[0], None, target.shape[1]))
    p = None if divergence == "kl" else 1.0 if divergence == "l1" else divergence
    ok = p is None or (not isinstance(p, str) and p >= 1)
    check(ok, "divergence", "'kl', 'l1' or a number of at least 1", divergence)
    steps = logits.shape[1]
    size = cardinality(target)[:, None]
    if where is None:
        where = torch.arange(steps, device=logits.device) < size
    else:
        check_mask("where", where, "(B, T)", like=(logits.shape[0], steps))
    # A row with no step to average over (an empty target) averages over all; its loss is masked below.
    counted = where & (size > 0)
    nothing = ~counted.any(-1, keepdim=True)
    counted = counted | nothing
    log_pi = log_policy(logits)
    q_star = oracle(target, dtype=log_pi.dtype)
    if p is None:
        log_pi = log_pi.masked_fill(q_star[:, None] == 0, 0).masked_fill(~counted[..., None], -math.inf)
        log_q = log_pi.logsumexp(1) - counted.sum(-1, keepdim=True).to(log_pi.dtype).log()
        per_example = -weighted(q_star, log_q).sum(-1)
    else:
        q = (log_pi.exp() * counted[..., None]).sum(1) / counted.sum(-1, keepdim=True)
        per_example = torch.linalg.vector_norm(q_star - q, ord=p, dim=-1)
    return reduce(per_example.masked_fill(nothing.squeeze(-1), 0), reduction)


def one_step_loss(
    logits: Float[Tensor, "b c"],
    size: Float[Tensor, " b"],
    target: Int64[Tensor, "b c"],
    *,
    size_weight: float = 1.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the one-step distribution matching loss (Appendix F) of class frequencies and size.

    .. math::
        \mathcal{L}_{\text{1-step}} = -\sum_{c} q_*(c) \log q_\theta(c)
        + \lambda \big(\hat l_\theta(x) - |\mathcal{Y}|\big)^2

    For an empty target, only the size term counts.

    Args:
        logits: Scores (B, C); their softmax is :math:`q_\theta`.
        size: Predicted sizes (B,).
        target: Counts (B, C).
        size_weight: :math:`\lambda`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> one_step_loss(torch.zeros(1, 4), torch.tensor([2.5]), torch.tensor([[1, 1, 0, 0]]))  # ln 4 + 0.25
        tensor(1.6363)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.2 and Appendix F.
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, C)", like=(target.shape[0], target.shape[1]))
    check_float("size", size, "(B,)", like=(target.shape[0],))
    log_q = log_policy(logits)
    shares = -weighted(oracle(target, dtype=log_q.dtype), log_q).sum(-1)
    off = full_precision(size) - cardinality(target)
    return reduce(shares + size_weight * off**2, reduction)


def count_regression_loss(
    rates: Float[Tensor, "b c"], target: Int64[Tensor, "b c"], *, reduction: Reduction = "mean"
) -> Float[Tensor, "*r"]:
    r"""Compute the squared error of the counts, the un-normalised variant of one-step matching (section 3.2).

    .. math:: \sum_{c} \big(\hat\mu_\theta(c) - \mu(c)\big)^2

    Args:
        rates: Predicted counts (B, C) as real numbers.
        target: Counts (B, C).
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> count_regression_loss(torch.tensor([[0.5, 2.0]]), torch.tensor([[1, 2]]))
        tensor(0.2500)

    Reference:
        Welleck et al., "Loss Functions for Multiset Prediction", NeurIPS 2018, section 3.2.
    """
    check_counts("target", target)
    check_float("rates", rates, "(B, C)", like=(target.shape[0], target.shape[1]))
    return reduce(((full_precision(rates) - target) ** 2).sum(-1), reduction)
