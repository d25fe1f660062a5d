"""A classifier over all multisets there are."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import places
from torchmultiset.distributions import ListedMultisets
from torchmultiset.heads._base import OneShotHead
from torchmultiset.multiset import how_many

__all__ = ["MOST_MULTISETS", "PowerMultiset"]

MOST_MULTISETS = 20_000
"""Multisets up to which a class for each is thinkable."""


@recorded
class PowerMultiset(OneShotHead):
    """One class for each multiset (section 3.2, the power multiset), from the memory's mean over its places.

    It learns nothing about one multiset from another, so it is for a few hundred of them: four of ten digits make 715.
    For `losses.power_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).
        max_size: Size of the largest multiset.
        min_size: Size of the smallest.
        hidden: Units of the layer before the scores.

    Raises:
        ValueError: There are more than 20,000 such multisets.

    Example:
        >>> import torch
        >>> PowerMultiset(num_classes=10, memory=32, max_size=4, min_size=4)(torch.rand(2, 32, 9, 9)).shape
        torch.Size([2, 1, 715])
    """

    def __init__(self, num_classes: int, memory: int, *, max_size: int, min_size: int = 0, hidden: int = 128) -> None:
        super().__init__()
        number = how_many(num_classes, max_size, min_size=min_size)
        if number > MOST_MULTISETS:
            raise ValueError(
                f"{min_size} to {max_size} labels of {num_classes} classes make {number:,} multisets, too many for a"
                f" classifier over all of them (the most is {MOST_MULTISETS:,}): take another objective"
            )
        check(hidden >= 1, "hidden", "at least 1", hidden)
        self.num_classes = num_classes
        self.memory = memory
        self.max_size = max_size
        self.min_size = min_size
        self.from_memory = nn.Linear(memory, hidden)
        self.classifier = nn.Linear(hidden, number)

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b 1 p"]:
        """Scores (B, 1, P) of all multisets, in the order of `multiset.index_of`."""
        features = self.from_memory(places(memory, self.memory)).relu().mean(1)
        scores: Tensor = self.classifier(features)
        return scores[:, None]

    def believe(self, scores: Float[Tensor, "b 1 p"], least: int, most: int) -> ListedMultisets:
        """A probability for each."""
        made = (self.min_size, self.max_size)
        check((least, most) == made, "sizes", f"{made[0]} to {made[1]}, as the model was made for", (least, most))
        return ListedMultisets(scores[:, 0], self.num_classes, least, most)
