"""What predictors return: a rollout for losses, and predictions for people."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from torchmultiset.distributions import Ranked

__all__ = ["Prediction", "Rows", "SequentialOutput"]

Rows: TypeAlias = Literal["steps", "at least", "shares"]
"""What a row of `Prediction.probabilities` is: the distribution over labels at a step; how probable at least 1, 2, ...
of each class are; or, for a model without probabilities, the share of each class among the labels."""


class SequentialOutput(NamedTuple):
    """A rollout with what the heads make of it; B examples, T steps, C classes (C + 1 with END), D features."""

    logits: Float[Tensor, "b t c"]
    """Scores, each before its label was chosen."""
    features: Float[Tensor, "b t d"]
    """What the scores were computed from."""
    labels: Int64[Tensor, "b t"]
    """Labels that were emitted."""
    stop: Float[Tensor, "b t"] | None = None
    """Scores of stopping before each label, with ``stop="policy"``."""
    value: Float[Tensor, "b t"] | None = None
    """Expected reward-to-go, if the predictor has a baseline."""


class Prediction(NamedTuple):
    """Predicted multisets of B inputs, and how they came about; C classes, T steps."""

    counts: Int64[Tensor, "b c"]
    probabilities: Float[Tensor, "b t k"]
    """A distribution for each step of a policy, over C classes or, with END, C + 1; for heads, see `rows`."""
    rows: Rows
    entropy: Float[Tensor, "b t"]
    """Entropy in nats of each row of `probabilities`; of rows "at least", that of the counts of all classes."""
    sequence: Int64[Tensor, "b t"] | None = None
    """Labels in the order in which greedy decoding emitted them, -1 after the last; None for a head, which has none."""
    stop: Float[Tensor, "b t"] | None = None
    """Probability of stopping before each label, if there is a stop head."""
    confidence: Float64[Tensor, " b"] | None = None
    """Probability of the predicted multiset, over all orders of its labels; NaN for a model without probabilities, and
    for a policy of one's own without `select`. None if it was not asked for."""
    best: Ranked | None = None
    """The most probable multisets, if they were asked for; `counts` are then the first of them."""

    def accepted(self, min_confidence: float) -> Bool[Tensor, " b"]:
        """Which predictions to answer with: those that are at least so probable. The model abstains from the others."""
        assert self.confidence is not None
        return self.confidence >= min_confidence

    def to(self, device: torch.device | str) -> Prediction:
        """The same on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Ranked):
                return Ranked(*(part.to(device) for part in value))
            return value.to(device) if isinstance(value, Tensor) else value

        return Prediction(*map(moved, self))
