"""The multiset loss for lists that a language model generates token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check_float
from torchmultiset._precision import full_precision
from torchmultiset.lm._oracle import NextTokens, list_oracle
from torchmultiset.losses._common import Reduction, reduce
from torchmultiset.losses._cross_entropy import oracle_cross_entropy

__all__ = ["OrderAndContent", "list_loss", "order_and_content"]


class OrderAndContent(NamedTuple):
    """The two parts of the loss of each example."""

    order: Float[Tensor, " b"]
    """Entropy of the oracle (B,): the irreducible part of the loss, because any missing label may come next."""
    content: Float[Tensor, " b"]
    """Kullback-Leibler divergence (B,) from oracle to model: 0 for a model that lists exactly what is missing."""


def list_loss(
    logits: Float[Tensor, "b t v"],
    tokens: Int64[Tensor, "b t"],
    starts: Bool[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    labels: Int64[Tensor, "c l"],
    *,
    end: int,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""Compute the multiset loss of a list of labels that consist of several tokens.

    .. math::
        \mathcal{L}(x, \mathcal{Y}, \theta) = -\sum_{t=1}^{T} \sum_v \pi_*(v \mid v_{<t}, \mathcal{Y})
        \log \pi_\theta(v \mid v_{<t}, x)

    where the oracle :math:`\pi_*` continues the labels that are still missing (`list_oracle`). Its gradient with
    respect to the logits of a step is :math:`\pi_\theta - \pi_*`, and 0 at steps without oracle. If each label is one
    token, this is ``losses.multiset_loss`` with END.

    Args:
        logits: Scores (B, T, V) of a language model before each token; ``logits[:, t]`` predicts ``tokens[:, t]``.
        tokens: Tokens (B, T) of a reference list or a sample. Negative: not part of the list (prompt, padding); these
            steps contribute nothing.
        starts: Mask (B, T) of the steps at which a label or the end token may start.
        target: Counts (B, C) of the labels.
        labels: Tokens (C, L) of each label with its separator, padded with -1 at the end.
        end: End token.
        reduction: Reduction over the batch of the sums over steps.

    Returns:
        Scalar, or (B,) for ``reduction="none"``.

    Example:
        >>> labels = torch.tensor([[5, 6, 1], [5, 7, 1]])  # "red apple,", "red pepper,"
        >>> tokens = torch.tensor([[5, 7, 1, 5, 6, 1, 0]])  # one of each, then the end
        >>> starts = torch.tensor([[True, False, False, True, False, False, True]])
        >>> list_loss(torch.zeros(1, 7, 8), tokens, starts, torch.tensor([[1, 1]]), labels, end=0)  # 7 ln 8
        tensor(14.5561)
    """
    return reduce(_compare(logits, tokens, starts, target, labels, end)[0], reduction)


def order_and_content(
    logits: Float[Tensor, "b t v"],
    tokens: Int64[Tensor, "b t"],
    starts: Bool[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    labels: Int64[Tensor, "c l"],
    *,
    end: int,
) -> OrderAndContent:
    r"""Split `list_loss` into order and content.

    .. math::
        -\sum_v \pi_*(v) \log \pi_\theta(v) = \mathcal{H}(\pi_*) + D_{\text{KL}}(\pi_* \,\|\, \pi_\theta)

    Averaged over all orders of the reference list, the first part is the logarithm of the number of distinct orders of
    the target, :math:`\log (|\mathcal{Y}|! / \prod_c \mu(c)!)`. The arguments are those of `list_loss`.

    Returns:
        Order and content (B,), summed over the steps; their sum is ``list_loss(..., reduction="none")``.

    Example:
        >>> labels, target = torch.tensor([[5, 6, 1], [5, 7, 1]]), torch.tensor([[1, 1]])
        >>> tokens = torch.tensor([[5, 7, 1, 5, 6, 1, 0]])
        >>> starts = torch.tensor([[True, False, False, True, False, False, True]])
        >>> order_and_content(torch.zeros(1, 7, 8), tokens, starts, target, labels, end=0).order  # ln 2!
        tensor([0.6931])
    """
    loss, oracle, rows = _compare(logits, tokens, starts, target, labels, end)
    order = _to_examples(_entropy(oracle, rows, loss.dtype), rows)
    return OrderAndContent(order, loss - order)


def _compare(
    logits: Tensor, tokens: Tensor, starts: Tensor, target: Tensor, labels: Tensor, end: int
) -> tuple[Tensor, NextTokens, Tensor]:
    """Return the loss of each example (B,), the oracle, and the mask (B, T) of the steps that have one."""
    check_float("logits", logits, "(B, T, V)", like=(*tokens.shape, None))
    oracle = list_oracle(tokens, starts, target, labels, end=end)
    rows = oracle.weights.any(-1)
    # Prompt and padding are left out before the softmax, unless there are none.
    scores = full_precision(logits.flatten(0, 1) if bool(rows.all()) else logits[rows])
    weights = oracle.weights[rows].to(scores.dtype)
    each = oracle_cross_entropy(scores[:, None], weights[:, None], oracle.tokens[rows], "sum", "none")
    return _to_examples(each, rows), oracle, rows


def _entropy(oracle: NextTokens, rows: Tensor, dtype: torch.dtype) -> Tensor:
    tokens, weights = oracle.tokens[rows], oracle.weights[rows].to(dtype)
    shares = weights / weights.sum(-1, keepdim=True)
    # Probability of the token of each entry: the sum over the entries with the same token.
    same = tokens[:, :, None] == tokens[:, None, :]
    of_token = (same * shares[:, None]).sum(-1)
    return -(shares * of_token.masked_fill(weights == 0, 1).log()).sum(-1)


def _to_examples(per_row: Tensor, rows: Tensor) -> Tensor:
    return per_row.new_zeros(rows.shape).masked_scatter(rows, per_row).sum(-1)
