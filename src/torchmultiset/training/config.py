"""Settings of the optimiser and of the training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = ["FEWEST_EPOCHS", "MOST_EPOCHS", "STEPS", "OptimConfig", "Precision", "Selection"]

STEPS = 1_200
"""About as many as a first model takes, as a rule; epochs follow from it, where they are open."""
FEWEST_EPOCHS, MOST_EPOCHS = 8, 100

Selection: TypeAlias = Literal["em", "score", "last"]
Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class OptimConfig:
    """Optimiser settings."""

    epochs: int = 0
    """How often the training data is seen; 0: the fewer examples, the more often."""
    batch_size: int = 0
    """Examples of a step, over all devices together; 0: fewer if there are few examples."""
    lr: float = 3e-3
    """Learning rate of Adam; its peak with the one-cycle schedule."""
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    """Learning-rate schedule: rise for the first tenth and then fall (one-cycle), or stay (constant, the paper's)."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: not clipped, as in the paper."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW) of weight matrices and kernels; biases and normalisation have none."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights, which is then what is validated and saved; 0: the
    weights themselves."""
    select: Selection = "em"
    """Which epoch is kept: the best exact match on the validation data (em, the paper's), the best mean of exact match
    and F1 (score, for few validation examples), or the last one."""
    patience: int = 0
    """Epochs without improvement on the validation data after which training stops; 0: never."""
    augment: Literal["none", "shift", "affine"] = "none"
    """How training images are changed at each step: moved by up to a twelfth of their sides (shift), or also turned by
    up to 10 degrees and scaled by 0.9 to 1.1 (affine). What leaves the picture still counts."""

    precision: Literal["auto", Precision] = "auto"
    """Numerical precision of training, as Lightning Fabric names it. auto: bf16-mixed for images and their features on
    a processor with bfloat16 instructions, else 32-true. Predictions are always computed in single precision."""

    def settled(self, examples: int) -> OptimConfig:
        """The same with a batch size and epochs that suit the data, where they are 0.

        Few examples need small steps, and many of them: batches of 16, of 32 from 500 examples on, of 64 from 4,000 on;
        epochs that come to about 1,200 steps, but 8 at least and 100 at most.

        Args:
            examples: Number of training examples.

        Example:
            >>> OptimConfig().settled(210).epochs, OptimConfig().settled(60_000).epochs
            (91, 8)
        """
        size = self.batch_size or (16 if examples < 500 else 32 if examples < 4_000 else 64)
        epochs = self.epochs or min(max(round(STEPS * size / examples), FEWEST_EPOCHS), MOST_EPOCHS)
        return replace(self, batch_size=size, epochs=epochs)
