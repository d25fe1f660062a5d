"""The paper's multiset loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from torchmultiset._checks import at_least, one_of
from torchmultiset.data import Batch
from torchmultiset.losses import multiset_loss
from torchmultiset.model.objectives._base import Objective, with_stop
from torchmultiset.model.predictor import Predictor
from torchmultiset.rollout import Choose, follow_oracle, greedy, sample

__all__ = ["MultisetObjective"]

Strategy: TypeAlias = Literal["greedy", "stochastic", "oracle"]


@dataclass(frozen=True)
class MultisetObjective(Objective):
    """L_multi: the divergence from the oracle to the policy, summed over the steps of a rollout (section 4)."""

    strategy: Strategy = one_of(Strategy, default="greedy")
    """Choice of labels in training rollouts: the most probable one (greedy), a sample of the policy or the oracle."""
    divergence: Literal["kl", "js", "tv"] = "kl"
    """Divergence from the oracle to the policy: Kullback-Leibler (the paper's), Jensen-Shannon or total variation."""
    stop_weight: float = at_least(0, default=1.0)
    """Weight of the stop loss, where a stop head is trained."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Roll out with the strategy, and compare the policy with the oracle at each step."""
        target, end = batch.target, predictor.end
        output = predictor.rollout(batch.x, self._choose(target, generator, end=end))
        loss = multiset_loss(output.logits, output.labels, target, divergence=self.divergence, end=end)
        return with_stop(loss, output, target, self.stop_weight)

    def _choose(self, target: Tensor, generator: torch.Generator, *, end: bool) -> Choose:
        if self.strategy == "oracle":
            return follow_oracle(target, generator, end=end)
        return sample(generator) if self.strategy == "stochastic" else greedy
