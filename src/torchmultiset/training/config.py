"""Settings of the optimiser and of the training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torchmultiset._checks import Settings, at_least, bounded, filled, one_of

__all__ = ["FEWEST_EPOCHS", "MOST_EPOCHS", "STEPS", "OptimConfig", "PrecisionName", "ResolvedOptim", "Selection"]

STEPS = 1_200
"""Default number of optimisation steps, which determines the number of epochs if that is not set."""
FEWEST_EPOCHS, MOST_EPOCHS = 8, 100
"""Limits of the number of epochs, if it is not set."""

Augmentation: TypeAlias = Literal["none", "shift", "affine", "photo", "photo-flip", "photo-turn"]
Schedule: TypeAlias = Literal["one-cycle", "constant"]
Selection: TypeAlias = Literal["em", "score", "loss", "last"]
PrecisionName: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class OptimConfig(Settings):
    """Optimiser settings."""

    epochs: int | None = at_least(1, default=None)
    """Passes over the training data. auto: about 1,200 steps in total, but at least 8 and at most 100 epochs."""
    batch_size: int | None = at_least(1, default=None)
    """Examples per step, over all devices together. auto: 16; 32 from 500 training examples; 64 from 4,000."""
    lr: float | None = bounded(lambda lr: 0 < lr < math.inf, "more than 0", default=None)
    """Learning rate of Adam; its peak with the one-cycle schedule. auto: 0.003, or 0.002 for pooled frozen features."""
    schedule: Schedule = one_of(Schedule, default="one-cycle")
    """Learning-rate schedule: one-cycle (rise over the first tenth, then fall), or constant, as in the paper."""
    clip: float = at_least(0, default=1.0)
    """Maximum norm of the gradient; 0: not clipped, as in the paper."""
    weight_decay: float | None = at_least(0, default=None)
    """Decoupled weight decay (AdamW) of weight matrices and kernels; biases and normalisation have none. auto: 0, or
    0.05 for frozen features."""
    ema: float | None = bounded(lambda ema: 0 <= ema < 1, "at least 0 and below 1", default=None)
    """Decay of the exponential moving average of the weights, which is validated and saved instead of them; 0: none.
    auto: 0, or 0.99 for frozen features."""
    select: Selection | None = one_of(Selection, default=None)
    """Criterion for the epoch to keep: the best exact match on the validation data (em, the paper's), the best mean of
    exact match and F1 (score, for few validation examples), the lowest loss on them, which for most objectives is the
    negative log-likelihood (loss), or the last one. auto: score for your own data, else em."""
    until: float = bounded(lambda share: 0 < share <= 1, "above 0 and at most 1", default=1.0)
    """Fraction of the epochs to run; the learning-rate schedule still spans all of them."""
    patience: int | None = at_least(0, default=None)
    """Epochs without improvement on the validation data after which training stops; 0: never. auto: 0, or 25 for
    models that are compared and keep their best epoch."""
    augment: Augmentation | None = one_of(Augmentation, default=None)
    """Augmentation of training images: moved by up to a twelfth of their sides (shift), also rotated by up to 10
    degrees and scaled by 0.9 to 1.1 (affine); for photographs: small changes of rotation, scale, position and colour
    (photo), also mirrored (photo-flip), or rotated by any angle (photo-turn, for objects seen from above). auto:
    none."""
    mosaic: float | None = bounded(lambda share: 0 <= share <= 1, "a probability", default=None)
    """Probability that a training image becomes a mosaic: two or four images joined, with all their labels; for text,
    sets and sequences: that an input is joined with another one, which follows it. auto: 0."""
    label_smoothing: float | None = bounded(lambda share: 0 <= share < 1, "at least 0 and below 1", default=None)
    """Probability of replacing the labels of a training example by those of a random example of its batch. auto: 0."""
    precision: PrecisionName | None = None
    """Numerical precision of training, in Lightning Fabric's notation. auto: bf16-mixed for images and their features
    on a processor with bfloat16 instructions, else 32-true. Predictions are always computed in single precision."""

    def resolved(
        self, examples: int, *, precision: PrecisionName = "32-true", select: Selection = "em"
    ) -> ResolvedOptim:
        """Return the settings with a value for everything that is unset.

        Small data sets get small batches and many epochs; see `epochs` and `batch_size`.

        Args:
            examples: Number of training examples.
            precision: Numerical precision, if it is not set.
            select: Which epoch is kept, if it is not set.

        Example:
            >>> OptimConfig().resolved(210).epochs, OptimConfig().resolved(60_000).epochs
            (91, 8)
        """
        size = self.batch_size
        if size is None:
            size = 16 if examples < 500 else 32 if examples < 4_000 else 64
        epochs = self.epochs
        if epochs is None:
            epochs = min(max(round(STEPS * size / examples), FEWEST_EPOCHS), MOST_EPOCHS)
        chosen = {"precision": self.precision or precision, "select": self.select or select}
        return filled(self, ResolvedOptim, batch_size=size, epochs=epochs, **chosen)


@dataclass(frozen=True)
class ResolvedOptim(OptimConfig):
    """Optimiser settings of a run, in which everything is set."""

    epochs: int = FEWEST_EPOCHS
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.0
    ema: float = 0.0
    select: Selection = "em"
    patience: int = 0
    augment: Augmentation = "none"
    mosaic: float = 0.0
    label_smoothing: float = 0.0
    precision: PrecisionName = "32-true"

    @property
    def last_epoch(self) -> int:
        """Number of epochs after which training ends, by `until`.

        Example:
            >>> OptimConfig(epochs=80, until=0.5).resolved(210).last_epoch
            40
        """
        return max(1, round(self.until * self.epochs))
