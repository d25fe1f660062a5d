"""The sequence loss, with a rank function that orders the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import at_least, one_of
from torchmultiset.data import Batch
from torchmultiset.data.ranks import area_rank, class_permutation, random_rank, spatial_rank
from torchmultiset.losses import sequence_loss
from torchmultiset.model.objectives._base import Objective, with_stop
from torchmultiset.model.predictor import Predictor
from torchmultiset.rollout import append_end, forced

__all__ = ["SequenceObjective"]

Rank: TypeAlias = Literal["random", "random-per-batch", "area", "spatial"]
_BANDS = 4
"""Number of horizontal bands of an image for the spatial rank function."""


@dataclass(frozen=True)
class SequenceObjective(Objective):
    """L_seq: cross-entropy along the target's labels in the order of a rank function (section 3.3)."""

    rank: Rank = one_of(Rank, default="random")
    """Order of the target labels: a random permutation of the classes, a new permutation in each batch, by decreasing
    area, or in reading order."""
    stop_weight: float = at_least(0, default=1.0)
    """Weight of the stop loss, where a stop head is trained."""
    seed: int = 0
    """Seed of the permutation of the classes."""
    height: int | float | None = None
    """Height in pixels of the images that boxes refer to; None if the inputs are these images, not their features."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute the cross-entropy of the labels in their order, with teacher forcing."""
        labels = self.order(batch, generator, num_classes=len(predictor.classes))
        _check_sizes(labels, predictor.max_size)
        sequence = append_end(labels, len(predictor.classes)) if predictor.end else labels
        sequence = pad(sequence, (0, predictor.steps - sequence.shape[1]), value=-1)  # or cut off padding
        output = predictor.rollout(batch.x, forced(sequence))
        loss = sequence_loss(output.logits, sequence)
        return with_stop(loss, output, batch.target, self.stop_weight)

    def order(self, batch: Batch, generator: torch.Generator, *, num_classes: int) -> Tensor:
        """Return the target's labels (B, M) in the order of the rank function, padded with -1.

        Args:
            batch: Labels, and boxes or areas if the rank function needs them.
            generator: Source of the permutation, with ``rank="random-per-batch"``.
            num_classes: Number of classes.
        """
        if self.rank in ("random", "random-per-batch"):
            once = torch.Generator().manual_seed(self.seed)
            permutation = class_permutation(num_classes, once if self.rank == "random" else generator)
            return random_rank(batch.labels, permutation.to(batch.labels.device))
        if self.rank == "area":
            if batch.areas is None:
                raise ValueError("rank 'area' needs areas, which this data does not have: use 'random'")
            return area_rank(batch.labels, batch.areas)
        if batch.boxes is None:
            raise ValueError("rank 'spatial' needs boxes, which this data does not have: use 'random'")
        if self.height is None and batch.x.ndim != 4:
            raise ValueError("rank 'spatial' needs the image height if the inputs are not images: pass `height`")
        height = batch.x.shape[-2] if self.height is None else self.height
        return spatial_rank(batch.labels, batch.boxes, bands=_BANDS, height=float(height))


def _check_sizes(labels: Tensor, max_size: int) -> None:
    beyond = labels[:, max_size:] >= 0
    if beyond.numel() and beyond.any():
        largest = max_size + int(beyond.sum(-1).max())
        raise ValueError(
            f"a multiset of this batch has {largest} labels, but the predictor emits at most {max_size}: build it with"
            f" max_size={largest}"
        )
