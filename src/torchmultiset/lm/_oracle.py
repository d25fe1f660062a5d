"""The oracle of a list of labels that consist of several tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check, check_counts, check_integers, check_mask
from torchmultiset.multiset import count_earlier, distinct_classes

__all__ = ["NextTokens", "list_oracle"]


class NextTokens(NamedTuple):
    """Next-token distributions of the oracle, with K entries per step instead of one per token of the vocabulary."""

    tokens: Int64[Tensor, "b t k"]
    """Tokens that continue the list. A token occurs once for each label that it continues; add up their weights."""
    weights: Int64[Tensor, "b t k"]
    """Number of missing labels for each token; the oracle's probability is its share of the sum over K. All are 0 at a
    step without an oracle: outside of the list, inside of a label that is not missing, and after the end."""


def list_oracle(
    tokens: Int64[Tensor, "b t"],
    starts: Bool[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    labels: Int64[Tensor, "c l"],
    *,
    end: int,
) -> NextTokens:
    r"""Compute the oracle's next-token distribution at each step of a list.

    Let :math:`\mathcal{Y}_t` be the labels that are missing when the current label starts (Definition 1 of the paper,
    one label at a time), and :math:`u` the tokens of the current label so far. The oracle continues each missing label
    that starts with :math:`u`, in proportion to how often it is missing:

    .. math::
        \pi_*(v \mid u, \mathcal{Y}_t) = \frac
        {|\{y \in \mathcal{Y}_t : y \text{ starts with } u v\}|}
        {|\{y \in \mathcal{Y}_t : y \text{ starts with } u\}|}

    so that the product over the tokens of a label is the paper's :math:`\mu_t(y) / |\mathcal{Y}_t|`. Once nothing is
    missing, it emits the end token. A complete label that is not missing is a mistake and consumes nothing; neither
    does an early end token. Inside of a label that is not missing, no missing label starts with :math:`u`: the oracle
    is undefined (0/0), and its weights are 0, until the next label starts.

    No label may be a prefix of another one, so each has to end with a separator: `LabelVocabulary` checks this.

    Args:
        tokens: Tokens (B, T) of a reference list or a sample. Negative: not part of the list (prompt, padding).
        starts: Mask (B, T) of the steps at which a label or the end token may start: ``LabelVocabulary.read``. If the
            separator is always a separate token, these are the steps after it and the first step.
        target: Counts (B, C) of the labels.
        labels: Tokens (C, L) of each label with its separator, padded with -1 at the end.
        end: End token.

    Returns:
        Tokens and weights (B, T, K), where K - 1 is the largest number of distinct labels in a target.

    Example:
        The labels "red apple," and "red pepper," share their first token. Two apples and one pepper are missing:

        >>> labels = torch.tensor([[5, 6, 1], [5, 7, 1]])
        >>> target, tokens = torch.tensor([[2, 1]]), torch.tensor([[5, 7, 1, 5]])
        >>> starts = torch.tensor([[True, False, False, True]])
        >>> oracle = list_oracle(tokens, starts, target, labels, end=0)
        >>> oracle.tokens[0, :2], oracle.weights[0, :2]  # red: 3 of 3; then apple: 2 of 3, pepper: 1 of 3
        (tensor([[5, 5, 0],
                [6, 7, 0]]), tensor([[2, 1, 0],
                [2, 1, 0]]))
        >>> oracle.tokens[0, 2:], oracle.weights[0, 2:]  # separator: 1 of 1; then red: 2 of 2, for the two apples
        (tensor([[1, 1, 0],
                [5, 5, 0]]), tensor([[0, 1, 0],
                [2, 0, 0]]))
    """
    check_counts("target", target)
    check_integers("tokens", tokens, "(B, T)")
    check(tokens.ndim == 2 and len(tokens) == len(target), "tokens", "(B, T) with a row for each target", tokens)
    check_mask("starts", starts, "(B, T)", like=tuple(tokens.shape))
    check_integers("labels", labels, f"(C, L) with a row for each of the {target.shape[1]} columns of target")
    check(labels.ndim == 2 and len(labels) == target.shape[1], "labels", "(C, L) with a row for each class", labels)
    classes = distinct_classes(target)  # (B, K)
    counts = target.gather(1, classes)
    pieces = labels[classes]  # (B, K, L)
    listed = tokens >= 0
    starts = starts & listed

    # Depth of each step within its label, and where that label started.
    steps = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    start = torch.where(starts, steps, -1).cummax(1).values if tokens.shape[1] else steps
    begun = listed & (start >= 0)
    start = start.clamp(min=0)
    depth = (steps - start).clamp(max=labels.shape[1])

    # The next token of each label at this depth, -1 beyond its last one: (B, T, K).
    index = depth[:, :, None].expand(-1, -1, classes.shape[1])
    following = pad(pieces, (0, 1), value=-1).transpose(1, 2).gather(1, index)
    beyond = pad(pieces, (0, 2), value=-1).transpose(1, 2).gather(1, index + 1) < 0
    differs = following != tokens[:, :, None]
    earlier = count_earlier(differs)
    fits = earlier == earlier.gather(1, start[:, :, None].expand_as(index))
    fits = fits & begun[:, :, None] & (following >= 0)
    complete = fits & ~differs & beyond
    missing = (counts[:, None] - count_earlier(complete)).clamp(min=0)

    done = starts & ~missing.any(-1)
    may_end = done & (count_earlier(done & (tokens == end)) == 0)
    ends = torch.full_like(tokens, end)[:, :, None]
    return NextTokens(
        torch.cat([following.clamp(min=0), ends], -1),
        torch.cat([missing * fits, may_end[:, :, None].long()], -1),
    )
