"""Negative log-likelihoods of the count of each class."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import can_look, check, check_counts, check_float
from torchmultiset._numbering import check_sizes
from torchmultiset._precision import full_precision
from torchmultiset.distributions import (
    cell_joint_log_probability,
    cell_log_probabilities,
    cell_size_log_probabilities,
    largest_joint_size,
    poisson_binomial,
    size_log_probabilities,
)
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.multiset import cardinality

__all__ = [
    "cell_count_loss",
    "cell_joint_loss",
    "count_mixture_loss",
    "count_table_loss",
    "poisson_count_loss",
    "sized_count_loss",
]


def cell_count_loss(
    logits: Float[Tensor, "b n k"],
    target: Int64[Tensor, "b c"],
    *,
    sizes: tuple[int, int] | None = None,
    size_scores: Float[Tensor, "*b m"] | None = None,
    reduction: Reduction = "mean",
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
        sizes: Sizes of the smallest and of the largest multiset that can occur. If given, the likelihood is normalised
            over multisets of these sizes, see `sized_count_loss`.
        size_scores: As for `sized_count_loss`; only with `sizes`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

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
    check(sizes is not None or size_scores is None, "size_scores", "None without sizes", size_scores)
    log_p, log_not = cell_log_probabilities(logits)
    if sizes is not None:
        log_count = poisson_binomial(log_p, log_not, sizes[1])
        return sized_count_loss(log_count, target, min_size=sizes[0], size_scores=size_scores, reduction=reduction)
    # For an absent class, a sum over cells suffices; with many classes, most are absent.
    absent = log_not.sum(1).masked_fill(target > 0, 0).sum(-1)
    row, label = target.nonzero(as_tuple=True)
    log_count = poisson_binomial(log_p[row, :, label].T, log_not[row, :, label].T, most)
    present = log_count.gather(1, target[row, label][:, None]).squeeze(1)
    return reduce(-absent.index_add(0, row, present), reduction)


def cell_joint_loss(
    logits: Float[Tensor, "b n k"],
    target: Int64[Tensor, "b c"],
    *,
    states: int = 1024,
    sizes: tuple[int, int] | None = None,
    size_scores: Float[Tensor, "*b m"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the negative log-likelihood of a multiset if each cell predicts one class or "nothing".

    .. math::
        -\log \sum_{a:\ \text{counts of } a = \mu} \ \prod_{n=1}^{N} p_n(a_n)

    Unlike in `cell_count_loss`, two classes compete for a cell: the sum is over assignments a of all cells, by
    `distributions.cell_joint_log_probability`. Only sizes of which all multisets have at most `states` sub-multisets
    have this likelihood. That of a larger size k is the exact P(k), times the likelihood of independent counts given
    the size, so that the probabilities of all multisets sum to 1; see `distributions.CellJoint`.

    Args:
        logits: Scores (B, N, C + 1) of N cells; the last class is "nothing".
        target: Counts (B, C) of at most N labels.
        states: Maximum number of sub-multisets for the exact likelihood, see `distributions.largest_joint_size`.
        sizes: Sizes of the smallest and of the largest multiset that can occur. If given, the likelihood is normalised
            over multisets of these sizes.
        size_scores: Size potential s, (M + 1,) or (B, M + 1) for ``sizes[1]`` = M; only with `sizes`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> target = torch.tensor([[1, 1]])
        >>> cell_joint_loss(torch.zeros(1, 2, 3), target)  # two of nine assignments of two cells: ln(9/2)
        tensor(1.5041)
    """
    check_counts("target", target)
    check_float("logits", logits, "(B, N, C + 1)", like=(target.shape[0], None, target.shape[1] + 1))
    check(logits.shape[1] >= 1, "logits", "scores of at least one cell", logits)
    check(sizes is not None or size_scores is None, "size_scores", "None without sizes", size_scores)
    if sizes is not None:
        check_sizes("target", target, max_size=sizes[1], min_size=sizes[0])
    size = cardinality(target)
    large = size > largest_joint_size(target.shape[1], states)
    log_joint = cell_joint_log_probability(logits, target.masked_fill(large[:, None], 0))
    if bool(large.any()):
        log_joint = log_joint.masked_fill(large, 0).index_add(
            0, large.nonzero()[:, 0], _log_independent_given_size(logits[large], target[large])
        )
    if sizes is not None:
        log_sizes = cell_size_log_probabilities(logits, sizes[1])
        if size_scores is not None:
            scores = full_precision(size_scores).expand_as(log_sizes)
            log_sizes = log_sizes + scores
            log_joint = log_joint + scores.gather(1, size[:, None]).squeeze(1)
        log_joint = log_joint - log_sizes[:, sizes[0] :].logsumexp(-1)
    return reduce(-log_joint, reduction)


def _log_independent_given_size(logits: Float[Tensor, "b n k"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    """Compute log-probabilities (B,): of the size of each multiset, and of independent counts given this size."""
    size = cardinality(target)[:, None]
    most = int(size.max())
    log_counts = poisson_binomial(*cell_log_probabilities(logits), most)
    log_weight = log_counts.gather(2, target[..., None]).squeeze(2).sum(-1)
    implied = size_log_probabilities(log_counts).gather(1, size).squeeze(1)
    log_size = cell_size_log_probabilities(logits, most).gather(1, size).squeeze(1)
    return log_size + log_weight - implied.masked_fill(implied == -torch.inf, 0)


def count_table_loss(
    logits: Float[Tensor, "b c m"],
    target: Int64[Tensor, "b c"],
    *,
    min_size: int | None = None,
    size_scores: Float[Tensor, "*b m"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the cross-entropy of the counts, with a softmax over the counts 0 to M - 1 for each class.

    .. math:: -\sum_{c} \log \frac{e^{x_{c,\mu(c)}}}{\sum_{k=0}^{M-1} e^{x_{ck}}}

    Args:
        logits: Scores (B, C, M); entry (c, k) is the score of k labels of class c.
        target: Counts (B, C), none above M - 1.
        min_size: Size of the smallest multiset that can occur. If given, the likelihood is normalised over the
            multisets of `min_size` to M - 1 labels, see `sized_count_loss`.
        size_scores: As for `sized_count_loss`; only with `min_size`.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

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
    check(min_size is not None or size_scores is None, "size_scores", "None without min_size", size_scores)
    if min_size is not None:
        log_counts = log_policy(logits)
        return sized_count_loss(log_counts, target, min_size=min_size, size_scores=size_scores, reduction=reduction)
    log_count = log_policy(logits).gather(2, target[..., None]).squeeze(2)
    return reduce(-log_count.sum(-1), reduction)


def sized_count_loss(
    log_counts: Float[Tensor, "b c m"],
    target: Int64[Tensor, "b c"],
    *,
    min_size: int = 0,
    size_scores: Float[Tensor, "*b m"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the negative log-likelihood of independent counts, normalised over the sizes that can occur.

    .. math::
        -\log p(\mathcal{Y}), \qquad
        p(\mathcal{Y}) = \frac{1}{Z} e^{s(|\mathcal{Y}|)} \prod_c p_c(\mu(c)), \qquad
        Z = \sum_{k = \text{min\_size}}^{M} e^{s(k)} P\Big(\sum_c N_c = k\Big)

    Multisets that cannot occur have probability 0, and the size potential s corrects the distribution of sizes that
    independent counts imply. The distribution of :math:`\sum_c N_c` is a product of C polynomials, multiplied pairwise.
    The likelihood is that of `distributions.IndependentCounts`.

    Args:
        log_counts: Log-probabilities (B, C, M + 1) of 0 to M labels of each class; they need not be normalised.
        target: Counts (B, C) of `min_size` to M labels.
        min_size: Size of the smallest multiset that can occur; the largest has M labels.
        size_scores: Size potential s, (M + 1,) or (B, M + 1); None: 0.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> half = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]).log()  # two classes, at most one label in all
        >>> sized_count_loss(half, torch.tensor([[1, 0]]))  # one of three multisets: ln 3
        tensor(1.0986)
        >>> sized_count_loss(half, torch.tensor([[1, 0]]), min_size=1)  # one of two: ln 2
        tensor(0.6931)
    """
    check_counts("target", target)
    check_float("log_counts", log_counts, "(B, C, M + 1)", like=(*target.shape, None))
    most = log_counts.shape[2] - 1
    check(0 <= min_size <= most, "min_size", f"from 0 to M = {most}", min_size)
    check_sizes("target", target, max_size=most, min_size=min_size)
    log_counts = full_precision(log_counts)
    log_weight = log_counts.gather(2, target[..., None]).squeeze(2).sum(-1)
    log_sizes = size_log_probabilities(log_counts)
    if size_scores is not None:
        one_each = size_scores.ndim in (1, 2) and size_scores.shape[-1] == most + 1
        check(one_each, "size_scores", f"of shape (M + 1,) or (B, M + 1) with M = {most}", size_scores)
        scores = full_precision(size_scores).expand_as(log_sizes)
        log_sizes = log_sizes + scores
        log_weight = log_weight + scores.gather(1, cardinality(target)[:, None]).squeeze(1)
    return reduce(log_sizes[:, min_size:].logsumexp(-1) - log_weight, reduction)


def count_mixture_loss(
    tables: Float[Tensor, "b k c m"],
    gates: Float[Tensor, "b k"],
    target: Int64[Tensor, "b c"],
    *,
    min_size: int = 0,
    size_scores: Float[Tensor, "*b m"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the negative log-likelihood of a mixture of K tables of counts.

    .. math::
        -\log \sum_{k=1}^{K} g_k\, p_k(\mathcal{Y}), \qquad g = \operatorname{softmax}(\text{gates})

    with :math:`p_k` as in `sized_count_loss`, normalised over the sizes that can occur.

    Args:
        tables: Scores (B, K, C, M + 1) of the counts 0 to M of each class in each component.
        gates: Scores (B, K) of the components.
        target: Counts (B, C) of `min_size` to M labels.
        min_size: Size of the smallest multiset that can occur; the largest has M labels.
        size_scores: Size potential s, (M + 1,) or (B, M + 1), of all components; None: 0.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> count_mixture_loss(torch.zeros(1, 2, 3, 2), torch.zeros(1, 2), torch.tensor([[0, 1, 0]]))  # one of four
        tensor(1.3863)

    Reference:
        Li, Wang, Pavlu and Aslam, "Conditional Bernoulli Mixtures for Multi-label Classification", ICML 2016.
    """
    check_counts("target", target)
    check_float("tables", tables, "(B, K, C, M + 1)", like=(target.shape[0], None, target.shape[1], None))
    components = tables.shape[1]
    check_float("gates", gates, "(B, K)", like=(target.shape[0], components))
    if size_scores is not None and size_scores.ndim == 2:
        size_scores = size_scores.repeat_interleave(components, 0)
    each = sized_count_loss(
        log_policy(tables).flatten(0, 1),
        target.repeat_interleave(components, 0),
        min_size=min_size,
        size_scores=size_scores,
        reduction="none",
    )
    return reduce(-(log_policy(gates) - each.view(-1, components)).logsumexp(-1), reduction)


def poisson_count_loss(
    log_rates: Float[Tensor, "b c"],
    target: Int64[Tensor, "b c"],
    *,
    sizes: tuple[int, int] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the Poisson regression loss: each count is Poisson-distributed with its own rate.

    .. math:: \sum_{c} \big(e^{r_c} - \mu(c)\, r_c + \log \mu(c)!\big)

    This is the full negative log-likelihood, comparable with the other count losses. The size of the multiset is
    Poisson-distributed with the rate :math:`\lambda = \sum_c e^{r_c}`, so that the likelihood given a size of
    :math:`a` to :math:`b` labels is as cheap:

    .. math::
        -\log p(\mathcal{Y}) = \log \sum_{k=a}^{b} \frac{\lambda^k}{k!}
        - \sum_c \big(\mu(c)\, r_c - \log \mu(c)!\big)

    Args:
        log_rates: Logarithms r (B, C) of the rates: without sizes, of the expected counts.
        target: Counts (B, C).
        sizes: Sizes a and b of the smallest and of the largest multiset that can occur. If given, the likelihood is
            normalised over multisets of these sizes.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> poisson_count_loss(torch.zeros(1, 2), torch.tensor([[3, 0]]))  # 1 + ln 3! + 1
        tensor(3.7918)
        >>> poisson_count_loss(torch.zeros(1, 2), torch.tensor([[1, 0]]), sizes=(1, 1))  # one of two
        tensor(0.6931)

    Reference:
        Cameron and Trivedi, "Regression Analysis of Count Data", 1998.
    """
    check_counts("target", target)
    check_float("log_rates", log_rates, "(B, C)", like=(target.shape[0], target.shape[1]))
    scores = full_precision(log_rates)
    counts = target.to(scores.dtype)
    log_weight = (weighted(counts, scores) - torch.lgamma(counts + 1)).sum(-1)
    if sizes is None:
        return reduce(scores.exp().sum(-1) - log_weight, reduction)
    check_sizes("target", target, max_size=sizes[1], min_size=sizes[0])
    # The factor e^-lambda of all probabilities cancels, and with it all that could overflow. The bound is finite, since
    # a log-sum of infinities has no gradient.
    lowest = torch.finfo(scores.dtype).min / (4 * (sizes[1] + 1))
    size = torch.arange(sizes[0], sizes[1] + 1, dtype=scores.dtype, device=scores.device)
    log_sizes = size * scores.clamp(min=lowest).logsumexp(-1, keepdim=True) - torch.lgamma(size + 1)
    return reduce(log_sizes.logsumexp(-1) - log_weight, reduction)


def _check_most(target: Tensor, most: int, because: str) -> int:
    """Return the largest count; raise a ValueError if it exceeds `most`."""
    largest = int(target.max()) if target.numel() else 0
    if largest > most:
        raise ValueError(f"target must hold counts of at most {most}, since {because}, but its largest is {largest}")
    return largest
