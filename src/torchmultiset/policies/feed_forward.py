"""The paper's feed-forward policy (Appendix E): the counts of the labels so far are part of the input."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory, MemorySpec, Tokens, drop_channels, places
from torchmultiset._pooling import Pool, PoolKind
from torchmultiset.rollout import Step

__all__ = ["CountState", "FeedForwardPolicy"]


class CountState(NamedTuple):
    """State of a policy that sees the counts of the labels so far, but not their order."""

    memory: tuple[Float[Tensor, "b n _"], ...]
    """Features of the memory, computed once; the same at every step."""
    named: Int64[Tensor, "b c"]
    """Counts (B, C) of the labels emitted so far."""
    mask: Bool[Tensor, "b n"] | None = None
    """False at the padding of the memory, if there is any."""

    def add(self, previous: Int64[Tensor, " b"] | None) -> CountState:
        """Add the previous label to the counts, unless it is None."""
        if previous is None:
            return self
        return self._replace(named=self.named.scatter_add(1, previous[:, None], torch.ones_like(previous[:, None])))


class CountPolicy(nn.Module):
    """Base class of the policies whose state is a `CountState`."""

    counts_only = True

    def select(self, state: CountState, index: Int64[Tensor, " n"]) -> CountState:
        """Return the state of the examples at these indices, in this order; indices may repeat."""
        mask = None if state.mask is None else state.mask[index]
        return CountState(tuple(part[index] for part in state.memory), state.named[index], mask)


@recorded
class FeedForwardPolicy(CountPolicy):
    """A small network that reads the memory and the counts so far at each position, pooled over positions.

    The first layer is linear in memory and counts, so the memory's contribution is computed once per rollout.

    Args:
        num_classes: Number of classes, C, including END if there is one.
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        hidden: Units of each layer.
        layers: Number of hidden layers.
        pool: How positions are pooled: ``"mean"``, ``"max"``, ``"mean-max"`` (both), ``"attention"`` or ``"sum"``.
        dropout: Dropout probability of the memory's channels, drawn once per rollout.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = FeedForwardPolicy(num_classes=10, memory=16)
        >>> rollout(policy, torch.rand(2, 16), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        hidden: int = 128,
        layers: int = 2,
        pool: PoolKind = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        self.num_classes = num_classes
        self.memory = memory
        self.dropout = dropout
        self.pool = Pool(hidden, pool)
        self.features = self.pool.width
        self.from_memory = nn.Linear(memory, hidden)
        self.from_counts = nn.Linear(num_classes, hidden, bias=False)
        self.deeper = nn.Sequential(
            *[part for a, b in pairwise([hidden] * layers) for part in (nn.ReLU(), nn.Linear(a, b))], nn.ReLU()
        )
        self.classifier = nn.Linear(self.features, num_classes)

    @classmethod
    def for_memory(cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int) -> FeedForwardPolicy:
        """Create a policy for a memory from the settings of a model (`hidden`, `layers`, `pool`, `dropout`)."""
        chosen = {name: settings[name] for name in ("hidden", "layers", "pool", "dropout")}
        return cls(num_classes, memory.features, **chosen)

    def start(self, memory: Memory) -> CountState:
        """Compute the contribution of the memory, which is the same at every step."""
        values, mask = drop_channels(places(memory, self.memory), self.dropout, training=self.training)
        seen = self.from_memory(values)
        return CountState((seen,), seen.new_zeros(seen.shape[0], self.num_classes, dtype=torch.int64), mask)

    def step(self, state: CountState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, CountState]:
        """Count the previous label and score the next one."""
        state = state.add(previous)
        (seen,) = state.memory
        each = self.deeper(seen + self.from_counts(state.named.to(seen.dtype))[:, None])
        features = self.pool(Tokens(each, state.mask))
        return Step(self.classifier(features), features), state
