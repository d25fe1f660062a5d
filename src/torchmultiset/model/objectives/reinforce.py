"""REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmultiset._checks import at_least
from torchmultiset.data import Batch
from torchmultiset.losses import reinforce_loss
from torchmultiset.model.objectives._base import Objective, with_stop
from torchmultiset.model.predictor import Predictor
from torchmultiset.rollout import sample

__all__ = ["ReinforceObjective"]


@dataclass(frozen=True)
class ReinforceObjective(Objective):
    """L_RL: policy gradient of sampled rollouts, with a learned baseline (section 3.3)."""

    baseline = True

    entropy_weight: float = at_least(0, default=0.01)
    """Weight of the entropy bonus."""
    value_weight: float = at_least(0, default=0.5)
    """Weight of the regression of the baseline."""
    stop_weight: float = at_least(0, default=1.0)
    """Weight of the stop loss, where a stop head is trained."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Sample a rollout, and compute the policy-gradient loss."""
        target = batch.target
        output = predictor.rollout(batch.x, sample(generator))
        loss = reinforce_loss(
            output.logits,
            output.labels,
            target,
            output.value,
            entropy_weight=self.entropy_weight,
            value_weight=self.value_weight,
            end=predictor.end,
        )
        return with_stop(loss, output, target, self.stop_weight)
