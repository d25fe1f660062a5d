"""Likelihood of a multiset under a policy, summed over all orders of its labels: exact, and by importance sampling."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from torchmultiset._checks import check, check_counts, check_float
from torchmultiset._precision import full_precision
from torchmultiset.losses._common import Reduction, log_policy, reduce
from torchmultiset.multiset import cardinality, to_labels

__all__ = ["marginal_estimate_loss", "marginal_loss", "parts_of"]


def parts_of(target: Int64[Tensor, "b c"]) -> Int64[Tensor, "b s c"]:
    r"""Return all sub-multisets of each multiset: the states for which `marginal_loss` needs scores.

    The M labels of the largest multiset are treated as distinct, so that there are :math:`S = 2^M` parts: part s
    contains the labels, in ascending order, whose bits are set in s. Parts of smaller multisets repeat.

    Example:
        >>> parts_of(torch.tensor([[1, 1]]))
        tensor([[[0, 0],
                 [1, 0],
                 [0, 1],
                 [1, 1]]])
    """
    check_counts("target", target)
    labels = to_labels(target)
    there = one_hot(labels.clamp(min=0), target.shape[1]) * (labels >= 0)[..., None]
    return (_bits(labels.shape[1]).to(target.device).double() @ there.double()).long()


def marginal_loss(
    logits: Float[Tensor, "b s k"],
    target: Int64[Tensor, "b c"],
    stop_logits: Float[Tensor, "b s"] | None = None,
    *,
    end: bool = False,
    max_size: int | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the negative log-likelihood of the multiset itself, summed over all orders of its labels.

    .. math::
        -\log \sum_{y \in \text{orders of } \mathcal{Y}} \prod_{t=1}^{|\mathcal{Y}|}
        \pi_\theta(y_t \mid \{y_1, \ldots, y_{t-1}\}, x)

    times the probability of continuing after each label but the last and of stopping after the last. A policy that sees
    only counts has one state per part of the multiset, so the sum over :math:`|\mathcal{Y}|!` orders needs
    :math:`2^{|\mathcal{Y}|}` states: a dynamic program over the parts, from the empty one upwards.

    Args:
        logits: Scores (B, S, C), or (B, S, C + 1) with END, of the policy after emitting each of `parts_of`.
        target: Counts (B, C).
        stop_logits: Scores (B, S) of stopping there, from a stop head if there is one.
        end: Whether the last class is END, which follows the last label.
        max_size: Size of the largest multiset that can be predicted, after which stopping is certain; None if
            unbounded.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> marginal_loss(torch.zeros(1, 4, 3), torch.tensor([[1, 1, 0]]))  # two orders of probability 1/9
        tensor(1.5041)

    Reference:
        The dynamic program sums over all orders, as for set partitions; for sets instead of multisets see
        Vinyals, Bengio, Kudlur, "Order Matters: Sequence to sequence for sets", ICLR 2016, section 5.
    """
    check_counts("target", target)
    labels = to_labels(target)
    most = labels.shape[1]
    batch, classes = target.shape
    check_float("logits", logits, "(B, S, C)", like=(batch, 2**most, classes + end))
    check(not end or stop_logits is None, "stop_logits", "None with END, which decides when to stop", stop_logits)
    log_pi = log_policy(logits)
    log_end = log_pi[..., -1] if end else torch.zeros_like(log_pi[..., 0])
    if stop_logits is not None:
        check_float("stop_logits", stop_logits, "(B, S)", like=(batch, 2**most))
        score = full_precision(stop_logits)
        log_pi, log_end = log_pi + logsigmoid(-score)[..., None], logsigmoid(score)
    size = cardinality(target)
    if max_size is not None:
        log_end = log_end.masked_fill((size == max_size)[:, None], 0)
    # Log-probability of label i after part s; a smaller multiset is complete before its padding matters.
    log_label = log_pi.gather(2, labels.clamp(min=0)[:, None].expand(-1, 2**most, -1))
    log_label = log_label.masked_fill((labels < 0)[:, None], 0)
    reached = _reached(log_label, most)
    whole = (2**size - 1)[:, None]
    # Labels of one class were treated as distinct: each order was counted once per permutation of them.
    repeats = torch.lgamma(target.to(log_label.dtype) + 1).sum(-1)
    per_example = repeats - reached.gather(1, whole).squeeze(1) - log_end.gather(1, whole).squeeze(1)
    return reduce(per_example, reduction)


def marginal_estimate_loss(
    logits: Float[Tensor, "b n t k"],
    labels: Int64[Tensor, "b n t"],
    target: Int64[Tensor, "b c"],
    stop_logits: Float[Tensor, "b n t"] | None = None,
    *,
    end: bool = False,
    max_size: int | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Estimate the negative log-likelihood of the multiset from n orders of its labels, by importance sampling.

    .. math::
        -\log \frac{1}{n} \sum_{i=1}^{n} \frac{p_\theta(y^{(i)}, \text{stop})}{q(y^{(i)})}, \qquad
        q(y) = \prod_t \frac{\pi_\theta(y_t \mid y_{<t})}{\sum_{c \in \mathcal{Y}_t} \pi_\theta(c \mid y_{<t})}

    The orders are drawn from q, the policy restricted to the remaining labels (`rollout.sample_order`), so that a
    weight p / q is the probability of staying within the multiset at every step. The mean of the weights is an unbiased
    estimate of the likelihood of `marginal_loss`, for any policy and any number of labels. Its negative logarithm is at
    least :math:`-\log p(\mathcal{Y})` on average (Jensen's inequality); the bias is about
    :math:`\operatorname{Var}(w) / (2 n\, p(\mathcal{Y})^2)`, and vanishes if the remaining labels have the same total
    probability in every order. The gradient is that of the orders' log-likelihoods, weighted by their shares of the sum
    of weights; q is treated as a constant.

    Args:
        logits: Scores (B, n, T, C), or (B, n, T, C + 1) with END, of n rollouts; T is at least the size of the largest
            target, and one more with END or `stop_logits`, unless it has `max_size` labels.
        labels: Emitted labels (B, n, T): the target's labels in some order, then arbitrary ones.
        target: Counts (B, C).
        stop_logits: Scores (B, n, T) of stopping before each label, from a stop head if there is one.
        end: Whether the last class is END, which follows the last label.
        max_size: Size of the largest multiset that can be predicted, after which stopping is certain; None if
            unbounded.
        reduction: ``"mean"`` or ``"sum"`` over the batch, or ``"none"`` for one loss per example, (B,).

    Example:
        >>> labels = torch.tensor([[[0, 1]]])  # one order of {0, 1}; the other one is as probable
        >>> marginal_estimate_loss(torch.zeros(1, 1, 2, 3), labels, torch.tensor([[1, 1, 0]]))  # -ln(2/3 * 1/3)
        tensor(1.5041)

    Reference:
        Kloek and van Dijk, "Bayesian Estimates of Equation System Parameters", Econometrica 1978 (importance sampling);
        Burda, Grosse and Salakhutdinov, "Importance Weighted Autoencoders", ICLR 2016 (the logarithm of the mean).
    """
    check_counts("target", target)
    batch, classes = target.shape
    size = cardinality(target)
    most = int(size.max()) if batch else 0
    n, steps = logits.shape[1:3]
    check_float("logits", logits, "(B, n, T, C)", like=(batch, None, None, classes + end))
    check(n >= 1, "logits", "scores of at least one order", logits)
    check(labels.shape == (batch, n, steps), "labels", f"of shape {(batch, n, steps)}, one for each score", labels)
    check(not end or stop_logits is None, "stop_logits", "None with END, which decides when to stop", stop_logits)
    decides = end or stop_logits is not None
    needed = most + (decides and most != max_size)
    check(steps >= needed, "logits", f"scores of at least {needed} steps, for {most} labels", logits)
    inside = torch.arange(steps, device=target.device) < size[:, None]  # (B, T)
    emitted = one_hot(labels.clamp(min=0, max=classes - 1), classes) * inside[:, None, :, None]
    check(bool((emitted.sum(2) == target[:, None]).all()), "labels", "the target's labels in some order", labels)
    log_pi = log_policy(logits)
    log_end = log_pi[..., -1] if end else torch.zeros_like(log_pi[..., 0])
    log_label = log_pi.gather(3, labels.clamp(min=0, max=classes - 1)[..., None]).squeeze(3)
    # The proposal: the same scores, normalised over the remaining labels.
    left = (target[:, None, None] - emitted.cumsum(2) + emitted) > 0
    within = log_pi[..., :classes].detach().masked_fill(~left, -torch.inf).logsumexp(-1)
    log_proposal = log_label.detach() - within
    if stop_logits is not None:
        check_float("stop_logits", stop_logits, "(B, n, T)", like=(batch, n, steps))
        score = full_precision(stop_logits)
        log_label, log_end = log_label + logsigmoid(-score), logsigmoid(score)
    log_weight = (log_label - log_proposal).masked_fill(~inside[:, None], 0).sum(-1)
    if decides:
        last = size.clamp(max=steps - 1)[:, None, None].expand(-1, n, -1)
        stopping = log_end.gather(2, last).squeeze(2)
        certain = torch.zeros_like(size, dtype=torch.bool) if max_size is None else size == max_size
        log_weight = log_weight + stopping.masked_fill(certain[:, None], 0)
    return reduce(math.log(n) - log_weight.logsumexp(-1), reduction)


def _reached(log_label: Float[Tensor, "b s m"], most: int) -> Float[Tensor, "b s"]:
    """Compute the log-probability of reaching each part, in any order."""
    levels = [log_label.new_zeros(len(log_label), 1)]
    steps, back = _ways(most)
    for ways in steps:
        last, before, at = (each.to(log_label.device) for each in ways)
        levels.append((levels[-1][:, at] + log_label[:, before, last]).logsumexp(-1))
    return torch.cat(levels, 1)[:, back.to(log_label.device)]


@lru_cache
@torch.inference_mode(False)  # otherwise, what is cached in inference mode could not be used in training
def _ways(most: int) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Int64[Tensor, " s"]]:
    """Return the transitions to the parts of each size, smallest first, and the index of each part sorted by size.

    The transitions are three tensors (parts, size): the label that was emitted last, the part before it, and the index
    of that part among those of its size.
    """
    steps, order = [], [torch.tensor([0])]
    place = torch.zeros(2**most, dtype=torch.int64)
    for size in range(1, most + 1):
        last = torch.tensor([*combinations(range(most), size)])
        parts = (2**last).sum(1)
        before = parts[:, None] - 2**last
        steps.append((last, before, place[before]))
        place[parts] = torch.arange(len(parts))
        order.append(parts)
    return steps, torch.cat(order).argsort()


@lru_cache
def _bits(number: int) -> Int64[Tensor, "s m"]:
    return torch.arange(2**number)[:, None] >> torch.arange(number) & 1
