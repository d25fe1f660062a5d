"""Objectives for readouts, which say the whole multiset at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmultiset._checks import given
from torchmultiset.data import Batch
from torchmultiset.heads import CellCounts, CountTable, OneStep, PoissonCounts, RegressedCounts
from torchmultiset.losses import (
    cell_count_loss,
    count_regression_loss,
    count_table_loss,
    hungarian_loss,
    one_step_loss,
    poisson_count_loss,
    power_loss,
)
from torchmultiset.losses._hungarian import need_scipy
from torchmultiset.model.objectives._plan import Plan
from torchmultiset.model.predictor import Output
from torchmultiset.rollout import greedy

__all__ = ["CountsObjective", "HungarianObjective", "OneStepObjective", "PowerObjective"]


_COUNT_LOSSES: Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    CellCounts: cell_count_loss,
    CountTable: count_table_loss,
    PoissonCounts: lambda scores, target: poisson_count_loss(scores.squeeze(-1), target),
    RegressedCounts: lambda scores, target: count_regression_loss(scores.squeeze(-1), target),
}
"""What each count head learns from."""


class _AtOnce:
    """No rollout at all: a loss of what a readout says, and of the target."""

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:  # noqa: ARG002
        """What to do with this batch."""

        def loss(output: Output) -> Tensor:
            if output.features.shape[-1]:  # readouts have none
                raise ValueError(
                    f"{type(self).__name__} needs a readout, but this model names labels one after another"
                )
            return self.loss(output, batch.target)

        return Plan(greedy, loss)

    def loss(self, output: Output, target: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class OneStepObjective(_AtOnce):
    """One-step distribution matching, for `readouts.OneStep`."""

    size_weight: float = 1.0

    def loss(self, output: Output, target: Tensor) -> Tensor:
        """Of the shares, and of the size."""
        return one_step_loss(*OneStep.split(output.logits), target, size_weight=self.size_weight)


@dataclass(frozen=True)
class CountsObjective(_AtOnce):
    """The likelihood of the counts, for a count head."""

    of: Callable[[Tensor, Tensor], Tensor]
    """Its loss of scores and target; `for_head` knows those of the library's own heads."""

    @classmethod
    def for_head(cls, head: nn.Module) -> CountsObjective:
        """What this count head learns from."""
        for kind, loss in _COUNT_LOSSES.items():
            if isinstance(head, kind):
                return cls(loss)
        kinds = ", ".join(kind.__name__ for kind in _COUNT_LOSSES)
        raise ValueError(f"the policy must be a count head ({kinds}) for objective 'counts', but is {given(head)}")

    def loss(self, output: Output, target: Tensor) -> Tensor:
        """Of the counts."""
        return self.of(output.logits, target)


@dataclass(frozen=True)
class HungarianObjective(_AtOnce):
    """Slots matched with labels, for `readouts.Slots`."""

    nothing_weight: float = 0.1

    def __post_init__(self) -> None:
        need_scipy()  # better said now than at the first step

    def loss(self, output: Output, target: Tensor) -> Tensor:
        """Of the best matching."""
        return hungarian_loss(output.logits, target, nothing_weight=self.nothing_weight)


@dataclass(frozen=True)
class PowerObjective(_AtOnce):
    """Cross-entropy over all multisets, for `readouts.PowerMultiset`."""

    max_size: int
    min_size: int = 0

    def loss(self, output: Output, target: Tensor) -> Tensor:
        """Of the multiset's own class."""
        return power_loss(output.logits[:, 0], target, max_size=self.max_size, min_size=self.min_size)
