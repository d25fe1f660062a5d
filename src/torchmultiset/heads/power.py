"""A classifier over all multisets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory, MemorySpec, places
from torchmultiset._pooling import Pool, PoolKind
from torchmultiset.distributions import ListedMultisets
from torchmultiset.heads._base import OneShotHead
from torchmultiset.heads._sizes import check_built_for
from torchmultiset.multiset import how_many

__all__ = ["MOST_MULTISETS", "PowerMultiset"]

MOST_MULTISETS = 20_000
"""Maximum number of multisets of a `PowerMultiset`."""


@recorded
class PowerMultiset(OneShotHead):
    """One class per multiset (section 3.2, the power multiset), from pooled features.

    It does not generalise between multisets, so it suits a few hundred of them: there are 715 of four digits.
    For `losses.power_loss`. The other arguments are those of `PooledHead`.

    Args:
        max_size: Size of the largest multiset.
        min_size: Size of the smallest multiset.
        hidden: Units of the hidden layer, which is computed at each position, before pooling.

    Raises:
        ValueError: If there are more than 20,000 such multisets.

    Example:
        >>> import torch
        >>> PowerMultiset(num_classes=10, memory=32, max_size=4, min_size=4)(torch.rand(2, 32, 9, 9)).shape
        torch.Size([2, 1, 715])
    """

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        max_size: int,
        min_size: int = 0,
        hidden: int = 128,
        pool: PoolKind = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        number = how_many(num_classes, max_size, min_size=min_size)
        if number > MOST_MULTISETS:
            raise ValueError(
                f"{min_size} to {max_size} labels of {num_classes} classes make {number:,} multisets, too many for a"
                f" classifier over all of them (at most {MOST_MULTISETS:,}): choose another objective"
            )
        check(hidden >= 1, "hidden", "at least 1", hidden)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        self.num_classes = num_classes
        self.memory = memory
        self.max_size = max_size
        self.min_size = min_size
        self.from_memory = nn.Linear(memory, hidden)
        self.pool = Pool(hidden, pool)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.pool.width, number)

    @classmethod
    def for_memory(
        cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int, sizes: tuple[int, int]
    ) -> PowerMultiset:
        """Create a head for a memory from the settings of a model (`hidden`, `pool`, `dropout`)."""
        chosen = {name: settings[name] for name in ("pool", "dropout")}
        least, most = sizes
        hidden = 4 * settings["hidden"]
        return cls(num_classes, memory.features, max_size=most, min_size=least, hidden=hidden, **chosen)

    def forward(self, memory: Memory) -> Float[Tensor, "b 1 p"]:
        """Compute scores (B, 1, P) of all multisets, in the order of `multiset.index_of`."""
        tokens = places(memory, self.memory)
        hidden = self.from_memory(tokens.values).relu()
        scores: Tensor = self.classifier(self.dropout(self.pool(tokens._replace(values=hidden))))
        return scores[:, None]

    def believe(self, scores: Float[Tensor, "b 1 p"], least: int, most: int) -> ListedMultisets:
        """Return the softmax over all multisets."""
        check_built_for((self.min_size, self.max_size), least, most)
        return ListedMultisets(scores[:, 0], self.num_classes, least, most)
