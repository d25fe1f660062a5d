"""Aggregated distribution matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torchmultiset._checks import at_least
from torchmultiset.data import Batch
from torchmultiset.losses import distribution_matching_loss
from torchmultiset.model.objectives._base import Objective, with_stop
from torchmultiset.model.predictor import Predictor
from torchmultiset.rollout import sample

__all__ = ["KLMatchingObjective", "L1MatchingObjective"]


@dataclass(frozen=True)
class _MatchingObjective(Objective):
    no_end = (
        "distribution matching compares class shares, and it is unclear what share END should have (section 5.2 of the"
        " paper)"
    )
    divergence: ClassVar[Literal["kl", "l1"]]

    stop_weight: float = at_least(0, default=1.0)
    """Weight of the stop loss, where a stop head is trained."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Sample a rollout, and compare its mean distribution with the class shares of the target."""
        output = predictor.rollout(batch.x, sample(generator))
        loss = distribution_matching_loss(output.logits, batch.target, divergence=self.divergence)
        return with_stop(loss, output, batch.target, self.stop_weight)


class KLMatchingObjective(_MatchingObjective):
    """L_dm^KL: the divergence from the target's class shares to those of the policy (section 3.3)."""

    divergence = "kl"


class L1MatchingObjective(_MatchingObjective):
    """L_dm^1: the L1 distance between the target's class shares and those of the policy (section 3.3)."""

    divergence = "l1"
