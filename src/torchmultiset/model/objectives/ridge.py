"""Ridge regression of counts, solved in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.losses import count_regression_loss
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor

__all__ = ["RidgeObjective"]


class RidgeObjective(Objective):
    """Squared error of a linear regression of counts on pooled inputs, minimised by `training.solve`."""

    one_shot = True
    head = "ridge"
    closed_form = True

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Compute the squared error of the predicted counts."""
        return count_regression_loss(predictor.scores(batch.x).squeeze(-1), batch.target)
