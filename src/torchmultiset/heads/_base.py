"""What all models that answer at once have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset.distributions import Belief

__all__ = ["OneShotHead"]


class OneShotHead(nn.Module, ABC):
    """Reads a memory and says the whole multiset at once: no rollout, no order.

    Subclass it for one of your own: `forward` gives scores in whatever shape (B, N, K) its loss reads, and `believe`
    what they mean. One that has no distribution over multisets says so (`probabilistic`) and overrides `counts` and
    `probabilities` instead.
    """

    num_classes: int
    """C."""
    probabilistic = True
    """Whether it knows how probable a multiset is."""

    @abstractmethod
    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b n k"]:
        """Scores from a memory: a vector (B, D) or a map (B, D, h, w)."""

    def believe(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Belief:
        """The distribution over the multisets of `least` to `most` labels."""
        raise NotImplementedError

    def counts(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """The predicted multisets: the most probable ones."""
        return self.believe(scores, least, most).best()

    def probabilities(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> Float[Tensor, "b t c"]:
        """For the eye: how probable at least 1, 2, ..., `most` of each class are, a row for each number."""
        exactly = self.believe(scores, least, most).count_probabilities()
        at_least = exactly.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return at_least.transpose(1, 2).to(scores.dtype)
