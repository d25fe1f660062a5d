"""Outputs of predictors: rollouts for training, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from torchmultiset.distributions import Belief, Ranked

__all__ = ["Decoding", "Prediction", "Rows", "SequentialOutput", "StepScores", "by_name"]

Decoding: TypeAlias = Literal["greedy", "search", "f1"]
"""How a model predicts multisets.

- greedy: a policy emits the most probable label at each step; a head predicts by its own rule, such as the most
  probable class of each slot.
- search: the most probable multiset, exact for a head and found by beam search for a policy.
- f1: the multiset with the highest expected F1, approximately (`distributions.best_by_f1`), for heads with
  probabilities. It has more labels where many are uncertain.
"""
Rows: TypeAlias = Literal["steps", "at least", "shares"]
"""Meaning of the rows of `Prediction.probabilities`: the distribution over labels at each step; the probability that at
least 1, 2, ... of each class occur; or, for a model without probabilities, the share of each class among the labels."""


def by_name(counts: Sequence[int], classes: Sequence[str]) -> dict[str, int]:
    """Return a multiset as a dictionary from class name to count, without the classes that do not occur.

    Example:
        >>> by_name([2, 0, 1], ["cat", "dog", "owl"])
        {'cat': 2, 'owl': 1}
    """
    return {name: count for name, count in zip(classes, counts, strict=True) if count}


class StepScores(NamedTuple):
    """Scores of a policy after S multisets of emitted labels per input; B examples, C classes (C + 1 with END)."""

    logits: Float[Tensor, "b s c"]
    """Scores of the classes."""
    stop: Float[Tensor, "b s"] | None
    """Logits of stopping, with ``stop="policy"``."""


class SequentialOutput(NamedTuple):
    """Rollout and outputs of stop and value heads; B examples, T steps, C classes (C + 1 with END), D features."""

    logits: Float[Tensor, "b t c"]
    """Scores of the classes before each label."""
    features: Float[Tensor, "b t d"]
    """Features from which the scores are computed."""
    labels: Int64[Tensor, "b t"]
    """Emitted labels."""
    stop: Float[Tensor, "b t"] | None = None
    """Logits of stopping before each label, with ``stop="policy"``."""
    value: Float[Tensor, "b t"] | None = None
    """Expected reward-to-go, if the predictor has a baseline."""


class Prediction(NamedTuple):
    """Predicted multisets of B inputs, with the distributions behind them; C classes, T steps."""

    counts: Int64[Tensor, "b c"]
    """Predicted counts."""
    probabilities: Float[Tensor, "b t k"]
    """Distributions of a policy at each step, over C classes or, with END, C + 1; for a head, see `rows`."""
    rows: Rows
    """Meaning of the rows of `probabilities`."""
    entropy: Float[Tensor, "b t"]
    """Entropy in nats of each row of `probabilities`; for rows "at least", entropy of the counts of all classes."""
    sequence: Int64[Tensor, "b t"] | None = None
    """Labels in the order in which greedy decoding emitted them, -1 after the last; None for a head."""
    stop: Float[Tensor, "b t"] | None = None
    """Probability of stopping before each label, if the model has a stop head."""
    confidence: Float64[Tensor, " b"] | None = None
    """Probability of the predicted multiset, summed over all orders of its labels; NaN for a model without
    probabilities and for a custom policy without `select`. None if it was not requested."""
    best: Ranked | None = None
    """Most probable multisets, if they were requested; the first of them is then predicted."""
    belief: Belief | None = None
    """Distribution over multisets of a head that has one, on the device of the model."""
    places: Float[Tensor, "b c h w"] | None = None
    """What `Predictor.places` returns, if confidence was requested."""

    def accepted(self, min_confidence: float) -> Bool[Tensor, " b"]:
        """Return the mask of predictions with at least this confidence; the model abstains from the others."""
        assert self.confidence is not None
        return self.confidence >= min_confidence

    def to(self, device: torch.device | str) -> Prediction:
        """Return a copy on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Ranked):
                return Ranked(*(part.to(device) for part in value))
            return value.to(device) if isinstance(value, Tensor) else value

        return Prediction(*map(moved, self))
