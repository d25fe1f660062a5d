"""Mixtures of distributions over multisets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.distributions._multisets import Belief, Ranked, rank

__all__ = ["MixtureBelief"]

_CANDIDATES = 4
"""Number of candidates of each component that are rescored, in addition to the k requested."""


@dataclass(frozen=True, eq=False)
class MixtureBelief:
    r"""A mixture of K distributions over multisets.

    .. math:: p(\mathcal{Y}) = \sum_{k=1}^{K} g_k\, p_k(\mathcal{Y})

    Probabilities of multisets, sizes and counts are exact. The most probable multisets are found among those that the
    components rank highest, which are rescored.

    Args:
        log_gates: Log-weights (B, K) of the components; they need not be normalised.
        components: K distributions.

    Example:
        >>> from torchmultiset.distributions import IndependentCounts
        >>> a, b = (IndependentCounts(torch.tensor([[[p, 1 - p]]]).log(), least=0, most=1) for p in (0.9, 0.2))
        >>> belief = MixtureBelief(torch.tensor([[0.5, 0.5]]).log(), (a, b))
        >>> belief.log_probability(torch.tensor([[1]])).exp()  # (0.1 + 0.8) / 2
        tensor([0.4500], dtype=torch.float64)
    """

    log_gates: Float[Tensor, "b k"]
    components: Sequence[Belief]

    def __post_init__(self) -> None:
        fits = self.log_gates.shape[-1] == len(self.components) >= 1
        check(fits, "log_gates", f"of shape (B, {len(self.components)}), one for each component", self.log_gates)
        object.__setattr__(self, "log_gates", self.log_gates.double().log_softmax(-1))

    def best(self) -> Int64[Tensor, "b c"]:
        """Return the most probable multiset among the candidates of the components."""
        return self.ranked(1).counts[:, 0]

    def ranked(self, k: int) -> Ranked:
        """Return the k most probable multisets among the candidates of the components."""
        check(k >= 1, "k", "at least 1", k)
        found = [component.ranked(k + _CANDIDATES) for component in self.components]
        counts = torch.cat([each.counts for each in found], 1)
        there = torch.cat([each.log_probability > -torch.inf for each in found], 1)
        score = torch.stack([self.log_probability(one) for one in counts.unbind(1)], 1)
        same = (counts[:, :, None] == counts[:, None]).all(-1) & there[:, None]
        again = same.tril(-1).any(-1)  # an earlier candidate is the same multiset
        return rank(counts, score.masked_fill(again | ~there, -torch.inf), k)

    def log_probability(self, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        each = torch.stack([component.log_probability(counts) for component in self.components], -1)
        total: Tensor = (self.log_gates + each).logsumexp(-1)
        return total

    def count_probabilities(self) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class."""
        each = torch.stack([component.count_probabilities() for component in self.components], 1)
        return (self.log_gates.exp()[..., None, None] * each).sum(1)

    def size_probabilities(self) -> Float64[Tensor, "b m"]:
        """Return the probabilities of multisets of 0, 1, 2, ... labels."""
        each = torch.stack([component.size_probabilities() for component in self.components], 1)
        return (self.log_gates.exp()[..., None] * each).sum(1)

    def given_size(self, size: int) -> MixtureBelief:
        """Return the distribution conditioned on the number of labels, which also reweights the components."""
        known = [component.given_size(size) for component in self.components]
        of_size = torch.stack([component.size_probabilities()[:, size] for component in self.components], -1)
        return MixtureBelief(self.log_gates + of_size.log(), known)
