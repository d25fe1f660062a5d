"""Inputs with their predictions, as figures show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.model.outputs import Prediction

__all__ = ["BLUE", "ORANGE", "PALE", "PLAIN", "RIGHT", "WRONG", "Panel", "panels", "shorten", "shown_classes"]

RIGHT, WRONG, PLAIN, BLUE, PALE = "#1a7f37", "#cf222e", "#57606a", "#0969da", "#afb8c1"
ORANGE = "#fb8500"
_VISIBLE = 0.005  # smallest visible probability
_CLASSES = 12  # maximum number of bars of a step


@dataclass(frozen=True, eq=False)
class Panel:
    """One input and its prediction."""

    image: Shaped[np.ndarray, "*input"]
    counts: Int64[np.ndarray, " c"]
    sequence: Sequence[int]
    """Labels in the order in which they were emitted."""
    probabilities: Float[np.ndarray, "t k"]
    """Distribution over the labels at each step; K is C, or C + 1 with END."""
    truth: Int64[np.ndarray, " c"] | None = None
    at_once: bool = False
    """Whether a one-shot head predicted it; row t is then the probability of more than t of each class."""
    places: Float[np.ndarray, "h w"] | None = None
    """Probability that each place of a map was counted, if the head counts places."""
    shares: bool = False
    """Whether the head has no probabilities; its only row is then the share of each class among the labels."""

    def chosen(self, t: int) -> set[int]:
        """Return the labels predicted at row t: the emitted one or, of a one-shot head, all with a count above t."""
        if self.at_once:
            return set(np.flatnonzero(self.counts > t).tolist())
        labels = [*self.sequence, len(self.counts)]  # after the last label, END if there is one
        return {labels[t]} if t < len(labels) else set()

    @property
    def right(self) -> bool | None:
        """Whether the prediction is correct; None if the truth is unknown."""
        return None if self.truth is None else bool((self.counts == self.truth).all())


def panels(
    images: Sequence[Shaped[np.ndarray, "*input"]],
    prediction: Prediction,
    truth: Int64[Tensor, "b c"] | None = None,
    places: Float[Tensor, "b c h w"] | None = None,
    *,
    end: bool = False,
) -> list[Panel]:
    """Create one panel per image of a batch.

    Args:
        images: The B inputs, (H, W), (1, H, W) or (3, H, W) each.
        prediction: Result of `Predictor.explain`.
        truth: Their true counts (B, C), if known.
        places: Result of `Predictor.places`, if the model has it.
        end: Whether the model emits END; see `Predictor.end`.
    """
    check(len(images) == len(prediction.counts), "images", f"{len(prediction.counts)} of them", len(images))
    found = []
    at_once = prediction.sequence is None
    for i, image in enumerate(images):
        sequence = []
        if prediction.sequence is not None:
            sequence = [label for label in prediction.sequence[i].tolist() if label >= 0]
        distributions = prediction.probabilities[i].float().numpy()
        # With END there is one more step, which emits END.
        rows = int(prediction.counts[i].max()) if at_once else len(sequence) + end
        # A one-shot head gets one more row if its probabilities are large enough to be visible.
        rows += at_once and bool((distributions[rows:] >= _VISIBLE).any())
        steps = min(max(rows, 1), len(distributions))
        found.append(
            Panel(
                image,
                prediction.counts[i].numpy(),
                sequence,
                distributions[:steps],
                None if truth is None else truth[i].numpy(),
                at_once,
                None if places is None else places[i].sum(0).float().numpy(),
                prediction.rows == "shares",
            )
        )
    return found


def shown_classes(steps: Float[np.ndarray, "t k"], num_classes: int) -> list[int]:
    """Return the classes that get a bar, in their order: all if they are few, else the most probable."""
    if steps.shape[1] <= _CLASSES:
        return [*range(steps.shape[1])]
    most = steps.max(0)
    best = [int(i) for i in np.argsort(-most)[:_CLASSES] if most[i] >= _VISIBLE or i == num_classes]
    return sorted(best)


def shorten(text: str, most: int) -> str:
    """Return a text on one line, cut off after some characters.

    Example:
        >>> shorten("red  circle", 8), shorten("cat", 8)
        ('red cir…', 'cat')
    """
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
