"""Classification over all multisets."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.losses import power_loss
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor

__all__ = ["PowerObjective"]


class PowerObjective(Objective):
    """Cross-entropy over all possible multisets, each of them a class (section 3.2)."""

    one_shot = True
    head = "power"

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Compute the cross-entropy of the target's class."""
        least, most = predictor.sizes
        return power_loss(predictor.scores(batch.x)[:, 0], batch.target, max_size=most, min_size=least)
