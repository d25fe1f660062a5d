"""One-step distribution matching."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmultiset._checks import at_least
from torchmultiset.data import Batch
from torchmultiset.heads import OneStep
from torchmultiset.losses import one_step_loss
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor

__all__ = ["OneStepObjective"]


@dataclass(frozen=True)
class OneStepObjective(Objective):
    """L_1-step: distribution matching in one step, with a regression of the size (section 3.2)."""

    one_shot = True
    head = "one-step"

    size_weight: float = at_least(0, default=1.0)
    """Weight of the regression of the size."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Compare the predicted class shares and size with those of the target."""
        shares, size = OneStep.split(predictor.scores(batch.x))
        return one_step_loss(shares, size, batch.target, size_weight=self.size_weight)
