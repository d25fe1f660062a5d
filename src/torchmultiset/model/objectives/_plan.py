"""What an objective is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.model.predictor import Output
from torchmultiset.rollout import Choose

__all__ = ["Objective", "Plan"]


class Plan(NamedTuple):
    """What an objective does with one batch."""

    choose: Choose
    """How labels are named in the rollout; a readout does not ask."""
    loss: Callable[[Output], Tensor]
    at: Tensor | None = None
    """Instead of a rollout: where to ask the policy, as multisets (B, S, C) that have been named."""


Objective: TypeAlias = Callable[[Batch, torch.Generator], Plan]
"""(batch, generator) -> plan"""
