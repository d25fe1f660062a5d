"""The exact likelihood of a multiset under a policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset.data import Batch
from torchmultiset.losses import marginal_loss, parts_of
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import cardinality

__all__ = ["MarginalObjective"]


@dataclass(frozen=True)
class MarginalObjective(Objective):
    """Negative log-likelihood of the multiset, summed over all orders of its labels."""

    counts_only = True

    marginal_bound: int = 8
    """Largest size of a multiset; each label more doubles the work."""

    def check_size(self, max_size: int) -> None:
        """Raise a ValueError if a multiset of so many labels is too large."""
        if max_size > self.marginal_bound:
            raise ValueError(
                f"objective 'marginal' goes through all {2**max_size:,} parts of a multiset of {max_size} labels, and"
                f" the largest size allowed is {self.marginal_bound} (marginal_bound): raise the bound, or use"
                " objective 'multi'"
            )

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Score the policy after every part of the target."""
        target = batch.target
        self.check_size(int(cardinality(target).max()))
        parts = parts_of(target)
        output = predictor.at(batch.x, pad(parts, (0, 1)) if predictor.end else parts)
        return marginal_loss(output.logits, target, output.stop, end=predictor.end, max_size=predictor.max_size)
