"""Base classes of the one-shot heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory, MemorySpec
from torchmultiset._pooling import PooledFeatures, PoolKind
from torchmultiset.distributions import Belief

__all__ = ["OneShotHead", "PooledHead", "probability_of_at_least", "without_autocast"]


class OneShotHead(nn.Module, ABC):
    """Predicts the whole multiset from a memory in one pass, without a rollout.

    A user-defined head implements `forward`, which returns scores of the shape (B, N, K) that its loss expects, and
    `believe`, which converts them to a distribution. A head without a distribution over multisets sets `probabilistic`
    to False and overrides `counts` and `probabilities` instead.
    """

    num_classes: int
    """Number of classes, C."""
    probabilistic = True
    """Whether the head assigns probabilities to multisets."""
    count_loss: ClassVar[str] = ""
    """Name of the loss with which the objective `counts` trains the head; empty: it cannot."""
    joint_states: int = 0
    """Maximum number of sub-multisets up to which classes compete for positions; 0: they do not."""
    reads: ClassVar[tuple[str, ...] | None] = None
    """Settings that `for_memory` passes to the constructor, including `sizes`; None: the head overrides it, or has
    none."""

    @classmethod
    def for_memory(
        cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int, sizes: tuple[int, int]
    ) -> OneShotHead:
        """Create a head for a memory from the settings of a model; registered heads set `reads` or override this.

        Args:
            memory: Shape of the memory of one example.
            settings: Settings of the model by name, such as `pool` and `dropout`.
            num_classes: Number of classes, C.
            sizes: Sizes of the smallest and of the largest multiset that can occur.
        """
        if cls.reads is None:
            raise NotImplementedError(f"{cls.__name__} has no `for_memory`: create it with its constructor")
        known = {**settings, "sizes": sizes, "most": sizes[1]}
        head: OneShotHead = cls(num_classes, memory.features, **{name: known[name] for name in cls.reads})
        return head

    @abstractmethod
    def forward(self, memory: Memory) -> Float[Tensor, "b n k"]:
        """Compute scores from a memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D)."""

    def believe(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Belief:
        """Return the distribution over the multisets of `least` to `most` labels."""
        raise NotImplementedError

    def counts(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """Return the predicted multisets: the most probable ones."""
        return self.believe(scores, least, most).best()

    def counted_places(self, scores: Float[Tensor, "b n k"]) -> Float[Tensor, "b n c"] | None:  # noqa: ARG002
        """Return the probability that each position counts as each class; None if the head does not count positions."""
        return None

    def probabilities(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Float[Tensor, "b t c"]:
        """Return the probabilities of at least 1, 2, ..., `most` labels of each class, one row each, for display."""
        return probability_of_at_least(self.believe(scores, least, most).count_probabilities()).to(scores.dtype)


def probability_of_at_least(exactly: Float[Tensor, "b c m"]) -> Float[Tensor, "b t c"]:
    """Return the probabilities of at least 1, 2, ... labels of each class, from those of exactly 0, 1, 2, ..."""
    return exactly.flip(-1).cumsum(-1).flip(-1)[..., 1:].transpose(1, 2)


@recorded
class PooledHead(OneShotHead):
    """Base class of the heads that read the pooled memory.

    Args:
        num_classes: Number of classes, C.
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        pool: How positions are pooled: ``"mean"``, ``"max"``, ``"mean-max"`` (both), ``"attention"`` or ``"sum"``.
        hidden: Features of a projection with ReLU at each position, before pooling; None: no projection.
        dropout: Dropout probability of the pooled features.
    """

    reads: ClassVar[tuple[str, ...] | None] = ("pool", "dropout")

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        pool: PoolKind = "mean",
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        self.num_classes = num_classes
        self.pooled = PooledFeatures(memory, pool, hidden=hidden, dropout=dropout)


def without_autocast(layer: nn.Linear, x: Float[Tensor, "b d"]) -> Float[Tensor, "b c"]:
    """Apply a layer that regresses counts in the precision of its weights: bfloat16 would round 20.06 to 20."""
    if not torch.is_autocast_enabled(x.device.type):
        return layer(x)  # type: ignore[no-any-return]
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(layer.weight.dtype))  # type: ignore[no-any-return]
