"""The interface of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from torchmultiset._checks import Settings
from torchmultiset.data import Batch
from torchmultiset.losses import stop_loss
from torchmultiset.model.outputs import SequentialOutput
from torchmultiset.model.predictor import Predictor

__all__ = ["CONTEXT", "Objective", "with_stop"]

CONTEXT = ("seed", "height")
"""Fields of an objective that are not settings: the seed of the run, and the height of its images."""


class Objective(Settings, ABC):
    """Training objective: how labels are chosen in training rollouts, if any, and the loss to minimise.

    A subclass is a frozen dataclass whose fields are its settings. Each becomes a setting of the config and a flag of
    the command line, with the docstring of the field as its help text.
    """

    one_shot: ClassVar[bool] = False
    """Whether it trains a one-shot head; otherwise, a policy."""
    head: ClassVar[str] = ""
    """Name of that head in the registry; empty if the setting `count_head` has it."""
    baseline: ClassVar[bool] = False
    """Whether the policy needs a value head."""
    closed_form: ClassVar[bool] = False
    """Whether its loss is minimised in closed form, without gradient steps."""
    counts_only: ClassVar[bool] = False
    """Whether the policy must see only counts, not the order of the labels."""
    no_end: ClassVar[str] = ""
    """Reason why it cannot be used with an END class; empty if it can."""

    @abstractmethod
    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute the mean loss of a batch.

        Args:
            predictor: Model to train.
            batch: Inputs and targets.
            generator: Source of all random numbers.
        """


def with_stop(loss: Tensor, output: SequentialOutput, target: Tensor, weight: float) -> Tensor:
    """Add the loss of the stop head, if the model has one."""
    return loss if output.stop is None else loss + weight * stop_loss(output.stop, target)
