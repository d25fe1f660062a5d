"""The likelihood of counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from torchmultiset._checks import given
from torchmultiset.data import Batch
from torchmultiset.heads import CellCounts, CountTable, PoissonCounts, RegressedCounts
from torchmultiset.losses import cell_count_loss, count_regression_loss, count_table_loss, poisson_count_loss
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import COUNT_HEADS

__all__ = ["CountsObjective"]

if TYPE_CHECKING:
    CountHead: TypeAlias = str
else:
    CountHead = Literal[("auto", *COUNT_HEADS)]

_LOSSES: Mapping[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    CellCounts: lambda head, scores, target: cell_count_loss(
        scores, target, sizes=head.sizes, size_scores=head.size_scores
    ),
    CountTable: lambda head, scores, target: count_table_loss(
        scores, target, min_size=head.sizes and head.sizes[0], size_scores=head.size_scores
    ),
    PoissonCounts: lambda _, scores, target: poisson_count_loss(scores.squeeze(-1), target),
    RegressedCounts: lambda _, scores, target: count_regression_loss(scores.squeeze(-1), target),
}
"""The loss of each count head: (head, scores, target) -> mean over the batch."""


@dataclass(frozen=True)
class CountsObjective(Objective):
    """Negative log-likelihood of the count of each class, for a count head.

    If the head was built with `sizes`, the likelihood is normalised over these sizes.
    """

    one_shot = True

    count_head: CountHead = "auto"
    """Head that models the counts. auto: the cells of a map, or a table of counts for vectors."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Score the target's counts."""
        scores = predictor.scores(batch.x)
        for kind, loss in _LOSSES.items():
            if isinstance(predictor.module, kind):
                return loss(predictor.module, scores, batch.target)
        kinds = ", ".join(kind.__name__ for kind in _LOSSES)
        head = given(predictor.module)
        raise ValueError(f"the head must be a count head ({kinds}) for objective 'counts', but is {head}")
