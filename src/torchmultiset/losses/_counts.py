"""Negative log-likelihoods of the count of each class."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import can_look, check, check_counts, check_float
from torchmultiset._precision import full_precision
from torchmultiset.distributions import cell_log_probabilities, poisson_binomial
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted

__all__ = ["cell_count_loss", "count_table_loss", "poisson_count_loss"]


def cell_count_loss(
    logits: Float[Tensor, "b n k"], target: Int64[Tensor, "b c"], *, reduction: Reduction = "mean"
) -> Float[Tensor, "*r"]:
    r"""Compute the exact negative log-likelihood of counts if each cell of a map predicts one class or "nothing".

    .. math::
        -\sum_{c} \log P(N_c = \mu(c)), \qquad N_c = \sum_{i=1}^{N} \mathbb{1}[\text{cell } i \text{ predicts } c]

    Each cell predicts class c with its probability in a softmax over C + 1, independently of the other cells, so that
    :math:`N_c` is Poisson binomial. Any cells may predict c. The distribution of each count is exact; the sum over
    classes ignores that two classes compete for a cell.

    Args:
        logits: Scores (B, N, C + 1) of N cells; the last class is "nothing".
        target: Counts (B, C), none above N.
        reduction: Reduction over the batch.

    Returns:
        Scalar, or (B,) for ``reduction="none"``.

    Example:
        >>> target = torch.tensor([[1, 0]])
        >>> cell_count_loss(torch.zeros(1, 2, 3), target)  # 1 and 0 of 2 cells at 1/3: -ln(4/9) - ln(4/9)
        tensor(1.6219)

    Reference:
        Wang, "On the Number of Successes in Independent Trials", Statistica Sinica 1993. Counts as the only
        supervision: Chattopadhyay et al., "Counting Everyday Objects in Everyday Scenes", CVPR 2017.
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, N, C + 1)", like=(target.shape[0], None, target.shape[1] + 1))
    cells = logits.shape[1]
    check(cells >= 1, "logits", "scores of at least one cell", logits)
    most = _check_most(target, cells, f"there are {cells} cells")
    log_p, log_not = cell_log_probabilities(logits)
    # For an absent class, a sum over cells suffices; with many classes, most are absent.
    absent = log_not.sum(1).masked_fill(target > 0, 0).sum(-1)
    row, label = target.nonzero(as_tuple=True)
    log_count = poisson_binomial(log_p[row, :, label].T, log_not[row, :, label].T, most)
    present = log_count.gather(1, target[row, label][:, None]).squeeze(1)
    return reduce(-absent.index_add(0, row, present), reduction)


def count_table_loss(
    logits: Float[Tensor, "b c m"], target: Int64[Tensor, "b c"], *, reduction: Reduction = "mean"
) -> Float[Tensor, "*r"]:
    r"""Compute the cross-entropy of the counts, with a softmax over the counts 0 to M - 1 for each class.

    .. math:: -\sum_{c} \log \frac{e^{x_{c,\mu(c)}}}{\sum_{k=0}^{M-1} e^{x_{ck}}}

    Args:
        logits: Scores (B, C, M); entry (c, k) is the score of k labels of class c.
        target: Counts (B, C), none above M - 1.
        reduction: Reduction over the batch.

    Returns:
        Scalar, or (B,) for ``reduction="none"``.

    Example:
        >>> count_table_loss(torch.zeros(1, 2, 5), torch.tensor([[4, 0]]))  # 2 ln 5
        tensor(3.2189)
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, C, M)", like=(target.shape[0], target.shape[1], None))
    counts = logits.shape[2]
    check(counts >= 1, "logits", "scores of at least one count", logits)
    if can_look(target):
        _check_most(target, counts - 1, f"logits hold scores of the counts 0 to {counts - 1}")
    log_count = log_policy(logits).gather(2, target[..., None]).squeeze(2)
    return reduce(-log_count.sum(-1), reduction)


def poisson_count_loss(
    log_rates: Float[Tensor, "b c"], target: Int64[Tensor, "b c"], *, reduction: Reduction = "mean"
) -> Float[Tensor, "*r"]:
    r"""Compute the Poisson regression loss: each count is Poisson-distributed with its own rate.

    .. math:: \sum_{c} \big(e^{r_c} - \mu(c)\, r_c + \log \mu(c)!\big)

    Args:
        log_rates: Logarithms r (B, C) of the expected counts.
        target: Counts (B, C).
        reduction: Reduction over the batch.

    Returns:
        Scalar, or (B,) for ``reduction="none"``: the full negative log-likelihood, comparable with the other count
        losses.

    Example:
        >>> poisson_count_loss(torch.zeros(1, 2), torch.tensor([[3, 0]]))  # 1 + ln 3! + 1
        tensor(3.7918)

    Reference:
        Cameron and Trivedi, "Regression Analysis of Count Data", 1998.
    """
    check_counts("target", target)
    check_float("log_rates", log_rates, "(B, C)", like=(target.shape[0], target.shape[1]))
    scores = full_precision(log_rates)
    counts = target.to(scores.dtype)
    return reduce((scores.exp() - weighted(counts, scores) + torch.lgamma(counts + 1)).sum(-1), reduction)


def _check_most(target: Tensor, most: int, because: str) -> int:
    """Return the largest count; raise a ValueError if it exceeds `most`."""
    largest = int(target.max()) if target.numel() else 0
    if largest > most:
        raise ValueError(f"target must hold counts of at most {most}, since {because}, but its largest is {largest}")
    return largest
