"""Likelihood of the counts, for count heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from torchmultiset._checks import given
from torchmultiset.data import Batch
from torchmultiset.distributions import largest_joint_size
from torchmultiset.heads import CellCounts, CountMixture
from torchmultiset.losses import (
    cell_count_loss,
    cell_joint_loss,
    count_mixture_loss,
    count_regression_loss,
    count_table_loss,
    poisson_count_loss,
)
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import COUNT_HEADS
from torchmultiset.multiset import cardinality

__all__ = ["CountsObjective", "joint_fallback"]

if TYPE_CHECKING:
    CountHead: TypeAlias = str
else:
    CountHead = Literal[tuple(COUNT_HEADS)]


def _cell_loss(head: CellCounts, scores: Tensor, target: Tensor) -> Tensor:
    scores, size_scores = head.split(scores)
    if head.joint_states:
        return cell_joint_loss(scores, target, states=head.joint_states, sizes=head.sizes, size_scores=size_scores)
    return cell_count_loss(scores, target, sizes=head.sizes, size_scores=size_scores)


def _mixture_loss(head: CountMixture, scores: Tensor, target: Tensor) -> Tensor:
    tables, gates = head.split(scores)
    return count_mixture_loss(tables, gates, target, min_size=head.sizes[0], size_scores=head.size_scores)


_LOSSES: Mapping[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "cells": _cell_loss,
    "table": lambda head, scores, target: count_table_loss(
        scores, target, min_size=head.sizes and head.sizes[0], size_scores=head.size_scores
    ),
    "mixture": _mixture_loss,
    "poisson": lambda head, scores, target: poisson_count_loss(scores.squeeze(-1), target, sizes=head.sizes),
    "regression": lambda _, scores, target: count_regression_loss(scores.squeeze(-1), target),
}
"""Losses by the name that a head has as `count_loss`: (head, scores, target) -> mean over the batch."""


@dataclass(frozen=True)
class CountsObjective(Objective):
    """Negative log-likelihood of the count of each class, for a count head.

    If the head was built with `sizes`, the likelihood is normalised over these sizes.
    """

    one_shot = True

    count_head: CountHead | None = None
    """Head that models the counts. auto: cells for feature maps, table for vectors."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Compute the negative log-likelihood of the target's counts."""
        scores, head = predictor.scores(batch.x), predictor.module
        loss = _LOSSES.get(getattr(head, "count_loss", ""))
        if loss is None:
            kinds = ", ".join(COUNT_HEADS.classes)
            raise ValueError(f"the head must be a count head ({kinds}) for objective 'counts', but is {given(head)}")
        return loss(head, scores, batch.target)


def joint_fallback(head: nn.Module, counts: Int64[Tensor, "n c"]) -> str:
    """Return a message about the multisets that are too large for the joint distribution over cells.

    Args:
        head: Head to train.
        counts: Counts (N, C) of the training data.

    Returns:
        The message; empty if there are no such multisets, or if the head has no joint distribution.

    Example:
        >>> joint_fallback(CellCounts(2, 8, joint_states=4), torch.tensor([[1, 1], [3, 1]]))
        'Counts of different classes are treated as independent for 1 of 2 multisets, those with more than 2 labels: of such sizes, some multisets have more than 4 sub-multisets (joint_states).'
    """  # noqa: E501
    limit = getattr(head, "joint_states", 0)
    if not limit:
        return ""
    size = largest_joint_size(counts.shape[1], limit)
    many = int((cardinality(counts) > size).sum())
    if not many:
        return ""
    return (
        f"Counts of different classes are treated as independent for {many:,} of {len(counts):,} multisets, those with"
        f" more than {size} labels: of such sizes, some multisets have more than {limit:,} sub-multisets"
        " (joint_states)."
    )
