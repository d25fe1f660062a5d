"""The paper's feed-forward alternative (Appendix E): what was named so far is part of the input."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import places
from torchmultiset.rollout import Step

__all__ = ["CountState", "FeedForwardPolicy"]


class CountState(NamedTuple):
    """What a policy carries that sees only how often each label was named: no order."""

    memory: tuple[Float[Tensor, "b n _"], ...]
    """What was made of the memory once; the same at every step."""
    named: Int64[Tensor, "b c"]


@recorded
class FeedForwardPolicy(nn.Module):
    """At each place of the memory, a small network of the memory there and of the counts so far; then the mean.

    The first layer is linear in memory and counts, so the memory's share is computed once per rollout.

    Args:
        num_classes: C; with END, count it too.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).
        hidden: Units of each layer.
        layers: Number of hidden layers.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = FeedForwardPolicy(num_classes=10, memory=16)
        >>> rollout(policy, torch.rand(2, 16), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    counts_only = True

    def __init__(self, num_classes: int, memory: int, *, hidden: int = 128, layers: int = 2) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        self.num_classes = num_classes
        self.memory = memory
        self.features = hidden
        self.from_memory = nn.Linear(memory, hidden)
        self.from_counts = nn.Linear(num_classes, hidden, bias=False)
        self.deeper = nn.Sequential(
            *[part for a, b in pairwise([hidden] * layers) for part in (nn.ReLU(), nn.Linear(a, b))], nn.ReLU()
        )
        self.classifier = nn.Linear(hidden, num_classes)

    def start(self, memory: Float[Tensor, "b d *hw"]) -> CountState:
        """Compute what will not change with the steps."""
        seen = self.from_memory(places(memory, self.memory))
        return CountState((seen,), seen.new_zeros(seen.shape[0], self.num_classes, dtype=torch.int64))

    def step(self, state: CountState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, CountState]:
        """Count the label named last and score the next."""
        state = count(state, previous)
        (seen,) = state.memory
        features = self.deeper(seen + self.from_counts(state.named.to(seen.dtype))[:, None]).mean(1)
        return Step(self.classifier(features), features), state

    def select(self, state: CountState, index: Int64[Tensor, " n"]) -> CountState:
        """The state of the examples at these positions, in this order; one may be named several times."""
        return select(state, index)


def count(state: CountState, previous: Int64[Tensor, " b"] | None) -> CountState:
    """Add the label named last to the counts; there is none at the start."""
    if previous is None:
        return state
    return state._replace(named=state.named.scatter_add(1, previous[:, None], torch.ones_like(previous[:, None])))


def select(state: CountState, index: Int64[Tensor, " n"]) -> CountState:
    """The state of the examples at these positions."""
    return CountState(tuple(part[index] for part in state.memory), state.named[index])
