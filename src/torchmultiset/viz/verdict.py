"""Sentences on what scores mean: whether a model beats the baselines, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxtyping import Float64, Int64
from torch import Tensor

from torchmultiset.metrics import count_mae, exact_match, f1
from torchmultiset.multiset import cardinality

__all__ = ["example_scores", "explain_exact_match", "verdict"]

_HARDLY = 0.05
"""Exact match below which an explanation is given."""


def example_scores(counts: Int64[Tensor, "n c"], target: Int64[Tensor, "n c"]) -> Float64[Tensor, " n"]:
    """Return the score of each example by which models are compared: the mean of exact match and F1."""
    return (exact_match(counts, target).double() + f1(counts, target).double()) / 2


def verdict(
    counts: Int64[Tensor, "n c"], target: Int64[Tensor, "n c"], baselines: Mapping[str, Int64[Tensor, "n c"]]
) -> str:
    """Return a sentence if the model does not beat every baseline; empty if it does.

    The model beats a baseline if the 95% interval of the mean difference of their scores, paired by example, is above
    0. The score of an example is the mean of exact match and F1.

    Example:
        >>> import torch
        >>> target = torch.eye(3, dtype=torch.int64).repeat(9, 1)
        >>> verdict(target, target, {"ridge": target.flip(1)}), verdict(target.flip(1), target, {"ridge": target})
        ('', 'The ridge baseline scores 1.000, this model only 0.333 (mean of exact match and F1).')
    """
    mine = example_scores(counts, target)
    score, lost = float(mine.mean()), dict[str, float]()
    for name, predicted in baselines.items():
        theirs = example_scores(predicted, target)
        difference = mine - theirs
        error = float(difference.std(correction=0)) / math.sqrt(len(difference))
        if float(difference.mean()) - 1.96 * error <= 0:
            lost[name] = float(theirs.mean())
    if not lost:
        return ""
    best = max(lost, key=lambda name: lost[name])
    what = "(mean of exact match and F1)"
    if lost[best] > score:
        return f"The {best} baseline scores {lost[best]:.3f}, this model only {score:.3f} {what}."
    scores = f"This model scores {score:.3f} and the {best} baseline {lost[best]:.3f} {what}"
    return f"{scores}, a difference that can be chance on {len(target):,} example{'s' * (len(target) != 1)}."


def explain_exact_match(counts: Int64[Tensor, "n c"], target: Int64[Tensor, "n c"]) -> str:
    """Return a sentence on what an exact match near 0 means; empty if it is not near 0."""
    if float(exact_match(counts, target).double().mean()) >= _HARDLY:
        return ""
    size = float(cardinality(target).double().mean())
    error = float(count_mae(counts, target).double().mean())
    return (
        f"Exact match requires every label of an example to be right, {size:.1f} on average: read F1 and the count"
        f" error first. Counts are off by {error:.2f} per class on average."
    )
