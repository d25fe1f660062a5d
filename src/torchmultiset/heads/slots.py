"""Parallel slots, in the manner of DETR."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import places
from torchmultiset.distributions import IndependentCounts, cell_log_probabilities, poisson_binomial
from torchmultiset.heads._base import OneShotHead
from torchmultiset.multiset import from_labels

__all__ = ["Slots"]


@recorded
class Slots(OneShotHead):
    """A transformer decoder with a learned query for each slot, all at once; each slot names a class, or "nothing".

    Slots look at each other and at the memory. The prediction is what each slot says most, as in DETR; where that is a
    multiset of a size that cannot be, slots are silenced or made to speak, those that mind it least. Probabilities take
    the counts of the classes for independent. For `losses.hungarian_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).
        slots: S, the most labels that can be predicted.
        places: The most places a map may have, h w: each has a learned position. 1 for vectors.
        width: Features of a slot; a multiple of `heads`.
        heads: Attention heads.
        layers: Number of layers.

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
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(slots >= 1, "slots", "at least 1", slots)
        check(layers >= 1, "layers", "at least 1", layers)
        check(heads >= 1 and width % heads == 0, "width", f"a multiple of heads = {heads}", width)
        self.num_classes = num_classes
        self.memory = memory
        self.places = places
        self.from_memory = nn.Linear(memory, width)
        self.position = nn.Parameter(0.02 * torch.randn(places, width))
        self.queries = nn.Parameter(torch.randn(slots, width))
        layer = nn.TransformerDecoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers, nn.LayerNorm(width))
        self.classifier = nn.Linear(width, num_classes + 1)

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b s k"]:
        """Scores (B, S, C + 1) of each slot; the last class is "nothing"."""
        tokens = places(memory, self.memory)
        n = tokens.shape[1]
        check(n <= self.places, "memory", f"a map of at most {self.places} places (the model's `places`)", memory)
        tokens = self.from_memory(tokens) + self.position[:n]
        scores: Tensor = self.classifier(self.decoder(self.queries.expand(tokens.shape[0], -1, -1), tokens))
        return scores

    def believe(self, scores: Float[Tensor, "b s k"], least: int, most: int) -> IndependentCounts:
        """How many slots say each class."""
        return IndependentCounts(poisson_binomial(*cell_log_probabilities(scores), most), least, most)

    def counts(self, scores: Float[Tensor, "b s k"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """What each slot says most, and from `least` to `most` of them."""
        score, labels = scores[..., :-1].max(-1)
        margin = score - scores[..., -1]  # over "nothing"
        size = (margin >= 0).sum(-1, keepdim=True).clamp(least, most)
        place = margin.argsort(-1, descending=True).argsort(-1)
        return from_labels(labels, self.num_classes, where=place < size)
