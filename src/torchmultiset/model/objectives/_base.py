"""The interface of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.losses import stop_loss
from torchmultiset.model.outputs import SequentialOutput
from torchmultiset.model.predictor import Predictor

__all__ = ["CONTEXT", "Objective", "with_stop"]

CONTEXT = ("seed", "height")
"""Fields of an objective that are no settings of its own: the run's seed, and the height of its pictures."""


class Objective(ABC):
    """How a model is trained: which labels are emitted in training, if any, and which loss is minimised.

    A subclass is a frozen dataclass whose fields are its settings; config and command line have a setting for each,
    with the docstring of the field as its help.
    """

    one_shot: ClassVar[bool] = False
    """Whether it trains a one-shot head; otherwise, a policy."""
    baseline: ClassVar[bool] = False
    """Whether the policy needs a value head."""
    closed_form: ClassVar[bool] = False
    """Whether the minimum of its loss is computed, rather than approached by steps."""
    counts_only: ClassVar[bool] = False
    """Whether the policy must see counts only, and no order."""
    no_end: ClassVar[str] = ""
    """Why it cannot be used with an END class; empty if it can."""

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], *, seed: int = 0, height: int | float | None = None) -> Objective:
        """Make an objective from settings, of which only its own are read.

        Args:
            values: Settings by name.
            seed: The run's.
            height: Height of the pictures in pixels; None if the inputs are those pictures.
        """
        known = {**values, "seed": seed, "height": height}
        return cls(**{field.name: known[field.name] for field in fields(cls) if field.name in known})  # type: ignore[arg-type]

    def check_size(self, max_size: int) -> None:  # noqa: B027  (most have no limit)
        """Raise a ValueError if multisets of up to so many labels are too large for it."""

    @abstractmethod
    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean loss of a batch.

        Args:
            predictor: The model that is trained.
            batch: Inputs and targets.
            generator: Where all randomness comes from.
        """


def with_stop(loss: Tensor, output: SequentialOutput, target: Tensor, weight: float) -> Tensor:
    """Add the loss of the stop head, if the model has one."""
    return loss if output.stop is None else loss + weight * stop_loss(output.stop, target)
