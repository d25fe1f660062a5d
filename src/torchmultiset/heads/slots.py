"""Parallel slots, as in DETR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory, MemoryReader, MemorySpec
from torchmultiset.distributions import IndependentCounts, cell_log_probabilities, poisson_binomial
from torchmultiset.heads._base import OneShotHead
from torchmultiset.multiset import from_labels

__all__ = ["Slots"]


@recorded
class Slots(MemoryReader, OneShotHead):
    """A transformer decoder with a learned query per slot; each slot predicts a class or "nothing", in parallel.

    Slots attend to each other and to the memory. The prediction is the most probable class of each slot, as in DETR; if
    the resulting size cannot be predicted, the slots closest to "nothing" are dropped or added. Probabilities treat the
    counts of the classes as independent. For `losses.hungarian_loss`.

    Args:
        num_classes: Number of classes, C.
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        slots: Number of slots S, the maximum number of labels.
        places: Maximum number of positions, each with a learned embedding: h w for maps, 1 for vectors. 0: no
            embeddings, so that the number of positions is unlimited and their order does not matter, as for sets.
        width: Width of a slot; a multiple of `heads`.
        heads: Number of attention heads.
        layers: Number of layers.
        dropout: Dropout probability of the memory's channels.

    Example:
        >>> model = Slots(num_classes=10, memory=32, slots=4, places=81)
        >>> model(torch.rand(2, 32, 9, 9)).shape
        torch.Size([2, 4, 11])
    """

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        slots: int,
        places: int = 1,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check(slots >= 1, "slots", "at least 1", slots)
        self._add_memory(num_classes, memory, places, width, heads, layers, dropout)
        self.queries = nn.Parameter(torch.randn(slots, width))
        layer = nn.TransformerDecoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers, nn.LayerNorm(width))
        self.classifier = nn.Linear(width, num_classes + 1)

    @classmethod
    def for_memory(
        cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int, sizes: tuple[int, int]
    ) -> Slots:
        """Create a head for a memory from the settings of a model (`hidden`, `layers`, `dropout`)."""
        return cls(
            num_classes,
            memory.features,
            slots=sizes[1],
            places=memory.positions,
            width=2 * settings["hidden"],
            layers=settings["layers"] + 1,
            dropout=settings["dropout"],
        )

    def forward(self, memory: Memory) -> Float[Tensor, "b s k"]:
        """Compute scores (B, S, C + 1) of each slot; the last class is "nothing"."""
        seen, mask = self._read(memory)
        padding = None if mask is None else ~mask
        queries = self.queries.expand(seen.shape[0], -1, -1)
        scores: Tensor = self.classifier(self.decoder(queries, seen, memory_key_padding_mask=padding))
        return scores

    def believe(self, scores: Float[Tensor, "b s k"], least: int, most: int) -> IndependentCounts:
        """Return the distribution of the number of slots that predict each class."""
        return IndependentCounts(poisson_binomial(*cell_log_probabilities(scores), most), least, most)

    def counts(self, scores: Float[Tensor, "b s k"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """Return the most probable class of each slot, with `least` to `most` labels in total."""
        score, labels = scores[..., :-1].max(-1)
        margin = score - scores[..., -1]  # over "nothing"
        size = (margin >= 0).sum(-1, keepdim=True).clamp(least, most)
        place = margin.argsort(-1, descending=True).argsort(-1)
        return from_labels(labels, self.num_classes, where=place < size)
