"""Bipartite matching of slots and labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmultiset._checks import at_least
from torchmultiset.data import Batch
from torchmultiset.losses import hungarian_loss
from torchmultiset.losses._hungarian import need_scipy
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor

__all__ = ["HungarianObjective"]


@dataclass(frozen=True)
class HungarianObjective(Objective):
    """Cross-entropy of slots, each matched to a label or to "nothing", as in DETR."""

    one_shot = True
    head = "slots"

    nothing_weight: float = at_least(0, default=0.1)
    """Weight of the slots matched to "nothing"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        need_scipy()  # fails here rather than at the first step

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Find the best matching, and compute its cross-entropy."""
        return hungarian_loss(predictor.scores(batch.x), batch.target, nothing_weight=self.nothing_weight)
