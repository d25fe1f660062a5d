r"""Distributions :math:`p(\mathcal{Y} \mid x)` over whole multisets.

Policies emit labels one after another, and `torchmultiset.search` sums over their orders. One-shot heads
(`torchmultiset.heads`) give the distribution itself, in one of two forms:

- `IndependentCounts`: a distribution over the count of each class, independent of the others;
- `ListedMultisets`: a probability for each multiset.

Both are restricted to the sizes that can be predicted, from `least` to `most` labels: over these multisets the
probabilities sum to exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from torchmultiset._checks import check, check_counts
from torchmultiset.multiset import cardinality, from_index, how_many, index_of

__all__ = ["Belief", "IndependentCounts", "ListedMultisets", "Ranked"]


class Ranked(NamedTuple):
    """The most probable multisets of each input, best first."""

    counts: Int64[Tensor, "b k c"]
    """Counts (B, k, C); zeros where fewer than k multisets were found."""
    log_probability: Float[Tensor, "b k"]
    """Log-probability (B, k) of each multiset given the input; -inf where there is none."""


@runtime_checkable
class Belief(Protocol):
    """A distribution over multisets for each input."""

    def best(self) -> Int64[Tensor, "b c"]:
        """Return the most probable multiset of each input."""
        ...

    def ranked(self, k: int) -> Ranked:
        """Return the k most probable multisets of each input."""
        ...

    def log_probability(self, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        ...

    def count_probabilities(self) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class, which sum to 1."""
        ...

    def size_probabilities(self) -> Float64[Tensor, "b m"]:
        """Return the probabilities of multisets of 0, 1, 2, ... labels."""
        ...

    def given_size(self, size: int) -> Belief:
        """Return the distribution conditioned on the number of labels."""
        ...


@dataclass(frozen=True, eq=False)
class IndependentCounts:
    r"""Independent counts of the classes, restricted to the sizes that can be predicted.

    .. math::
        p(\mathcal{Y}) \propto e^{s(|\mathcal{Y}|)} \prod_c p_c(\mu(c)), \qquad
        \text{least} \le |\mathcal{Y}| \le \text{most}

    The size potential s is 0 unless `size_scores` are given. The normalising sum and the most probable multiset are
    computed by dynamic programming over the classes.

    Args:
        log_probabilities: Unnormalised log-probabilities (B, C, M + 1) of 0 to M = `most` labels of each class.
        least: Size of the smallest multiset.
        most: Size of the largest multiset.
        size_scores: Size potential s (B, M + 1) or (1, M + 1), a log-weight for each size; None: 0.

    Example:
        >>> belief = IndependentCounts(torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.6, 0.2]]]).log(), least=0, most=2)
        >>> belief.best()
        tensor([[0, 1]])
        >>> belief.log_probability(torch.tensor([[0, 1]])).exp()  # 0.3 / 0.75: the rest has 3 or 4 labels
        tensor([0.4000], dtype=torch.float64)
    """

    log_probabilities: Float[Tensor, "b c m"]
    least: int
    most: int
    size_scores: Float[Tensor, "#b m"] | None = None

    def __post_init__(self) -> None:
        check(0 <= self.least <= self.most, "least", f"from 0 to most = {self.most}", self.least)
        fits = self.log_probabilities.shape[-1] == self.most + 1
        check(fits, "log_probabilities", f"of shape (B, C, {self.most + 1})", self.log_probabilities)
        object.__setattr__(self, "log_probabilities", self.log_probabilities.double())
        if self.size_scores is not None:
            fits = self.size_scores.shape[-1] == self.most + 1
            check(fits, "size_scores", f"of shape (B, {self.most + 1})", self.size_scores)
            object.__setattr__(self, "size_scores", self.size_scores.double())

    def best(self) -> Int64[Tensor, "b c"]:
        """Return the most probable multiset of each input."""
        if torch.compiler.is_compiling() or self.size_scores is not None:
            return self.ranked(1).counts[:, 0]
        counts = self.log_probabilities.argmax(-1)
        # The best count of each class is optimal, unless together they have a size that cannot be predicted.
        size = cardinality(counts)
        wrong = (size < self.least) | (size > self.most)
        if wrong.any():
            counts[wrong] = (
                IndependentCounts(self.log_probabilities[wrong], self.least, self.most).ranked(1).counts[:, 0]
            )
        return counts

    def ranked(self, k: int) -> Ranked:
        """Return the k most probable multisets, keeping the k best of each size after each class."""
        check(k >= 1, "k", "at least 1", k)
        batch, classes, _ = self.log_probabilities.shape
        sizes = self.most + 1
        score = torch.full((batch, sizes, k), -torch.inf, dtype=torch.float64, device=self.log_probabilities.device)
        score[:, 0, 0] = 0.0
        chosen: list[Tensor] = []
        for c in range(classes):
            # Row s, column (n, i): n labels of this class, added to the i-th best of size s - n.
            before = pad(score, (0, 0, self.most, 0), value=-torch.inf).unfold(1, sizes, 1).flip(-1)
            more = before.transpose(2, 3) + self.log_probabilities[:, None, c, :, None]
            score, at = more.flatten(2).topk(k, dim=-1)
            chosen.append(at)
        if self.size_scores is not None:
            score = score + self.size_scores[..., None]
        found, at = score[:, self.least :].flatten(1).topk(k, dim=-1)
        size, place = at // k + self.least, at % k
        columns = []
        for at in reversed(chosen):
            step = at.flatten(1).gather(1, size * k + place)
            count, place = step // k, step % k
            columns.append(count)
            size = (size - count).clamp(min=0)  # may be negative where none was found
        counts = torch.stack(columns[::-1], -1).masked_fill((found == -torch.inf)[..., None], 0)
        return Ranked(counts, found - self._log_total[:, None])

    def log_probability(self, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        check_counts("counts", counts, like=tuple(self.log_probabilities.shape[:2]))
        size = cardinality(counts)
        each = self.log_probabilities.gather(2, counts.clamp(max=self.most)[..., None]).squeeze(-1)
        possible = (size >= self.least) & (size <= self.most)
        log_weight = each.sum(-1)
        if self.size_scores is not None:
            scores = self.size_scores.expand(len(counts), -1)
            log_weight = log_weight + scores.gather(1, size.clamp(max=self.most)[:, None]).squeeze(1)
        return (log_weight - self._log_total).masked_fill(~possible, -torch.inf)

    def count_probabilities(self) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class, given that the size can be predicted."""
        forward = self._log_sizes()
        backward = self._log_sizes(backward=True)
        classes = self.log_probabilities.shape[1]
        of_others = torch.stack([_product(forward[c], backward[classes - 1 - c]) for c in range(classes)], 1)
        beside = of_others[..., None, :].expand(-1, -1, self.most + 1, -1)
        return (self.log_probabilities + _log_sum(weigh_sizes(beside, self.least, self.size_scores))).softmax(-1)

    def size_probabilities(self) -> Float64[Tensor, "b m"]:
        """Return the probabilities of multisets of 0, 1, 2, ... labels."""
        sizes = torch.arange(self.most + 1, device=self.log_probabilities.device)
        return self._log_all_sizes().masked_fill(sizes < self.least, -torch.inf).softmax(-1)

    def given_size(self, size: int) -> IndependentCounts:
        """Return the distribution conditioned on the number of labels."""
        check(self.least <= size <= self.most, "size", f"from {self.least} to {self.most}", size)
        return IndependentCounts(self.log_probabilities[..., : size + 1], size, size)

    @cached_property
    def _log_total(self) -> Float64[Tensor, " b"]:
        """Log of the total unnormalised probability."""
        return _log_sum(self._log_all_sizes()[:, self.least :])

    def _log_all_sizes(self) -> Float64[Tensor, "b m"]:
        """Return the log of the unnormalised probability of each size."""
        log_sizes = self._log_sizes()[-1]
        return log_sizes if self.size_scores is None else log_sizes + self.size_scores

    def _log_sizes(self, *, backward: bool = False) -> list[Float64[Tensor, "b m"]]:
        """Return the log-probabilities of each size of the first 0, 1, ..., C classes, or the last if `backward`."""
        nothing = torch.full_like(self.log_probabilities[:, 0], -torch.inf)
        nothing[:, 0] = 0.0
        sizes = [nothing]
        by_class = self.log_probabilities.unbind(1)
        for log_probabilities in by_class[::-1] if backward else by_class:
            sizes.append(_product(sizes[-1], log_probabilities))
        return sizes


@dataclass(frozen=True, eq=False)
class ListedMultisets:
    """A probability for each multiset of `least` to `most` labels, in the order of `multiset.index_of`.

    Args:
        log_probabilities: Unnormalised log-probabilities (B, P) of all multisets.
        num_classes: Number of classes, C.
        least: Size of the smallest multiset.
        most: Size of the largest multiset.

    Example:
        >>> belief = ListedMultisets(torch.tensor([[0.0, 2.0, 1.0]]), num_classes=2, least=2, most=2)
        >>> belief.best()
        tensor([[1, 1]])
    """

    log_probabilities: Float[Tensor, "b p"]
    num_classes: int
    least: int
    most: int

    def __post_init__(self) -> None:
        number = how_many(self.num_classes, self.most, min_size=self.least)
        fits = self.log_probabilities.shape[-1] == number
        check(fits, "log_probabilities", f"of shape (B, {number}), one for each multiset", self.log_probabilities)
        object.__setattr__(self, "log_probabilities", self.log_probabilities.double().log_softmax(-1))

    def best(self) -> Int64[Tensor, "b c"]:
        """Return the most probable multiset of each input."""
        return self._counts(self.log_probabilities.argmax(-1))

    def ranked(self, k: int) -> Ranked:
        """Return the k most probable multisets of each input."""
        check(k >= 1, "k", "at least 1", k)
        found, at = self.log_probabilities.topk(min(k, self.log_probabilities.shape[1]), dim=-1)
        return _filled(self._counts(at), found, k)

    def log_probability(self, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        check_counts("counts", counts, like=(len(self.log_probabilities), self.num_classes))
        size = cardinality(counts)
        possible = (size >= self.least) & (size <= self.most)
        smallest = one_hot(torch.zeros_like(size), self.num_classes) * self.least  # placeholder for impossible sizes
        index = index_of(torch.where(possible[:, None], counts, smallest), max_size=self.most, min_size=self.least)
        found = self.log_probabilities.gather(1, index[:, None]).squeeze(1)
        return found.masked_fill(~possible, -torch.inf)

    def count_probabilities(self) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class."""
        probabilities, listed = self.log_probabilities.exp(), self._all
        return torch.stack([probabilities @ (listed == n).double() for n in range(self.most + 1)], -1)

    def size_probabilities(self) -> Float64[Tensor, "b m"]:
        """Return the probabilities of multisets of 0, 1, 2, ... labels."""
        return self.log_probabilities.exp() @ one_hot(cardinality(self._all), self.most + 1).double()

    def given_size(self, size: int) -> ListedMultisets:
        """Return the distribution conditioned on the number of labels."""
        check(self.least <= size <= self.most, "size", f"from {self.least} to {self.most}", size)
        # Multisets are ordered by size.
        end, number = (how_many(self.num_classes, size, min_size=least) for least in (self.least, size))
        return ListedMultisets(self.log_probabilities[:, end - number : end], self.num_classes, size, size)

    @property
    def _all(self) -> Int64[Tensor, "p c"]:
        return self._counts(torch.arange(self.log_probabilities.shape[1], device=self.log_probabilities.device))

    def _counts(self, index: Tensor) -> Tensor:
        return from_index(index, self.num_classes, max_size=self.most, min_size=self.least)


def rank(counts: Int64[Tensor, "b j c"], score: Float64[Tensor, "b j"], k: int) -> Ranked:
    """Return the k candidates with the highest scores; a score of -inf marks a missing candidate."""
    found, at = score.topk(min(k, score.shape[1]), dim=-1)
    return _filled(counts.gather(1, at[..., None].expand(-1, -1, counts.shape[2])), found, k)


def weigh_sizes(
    grid: Float64[Tensor, "b c m m"], least: int, size_scores: Float[Tensor, "#b _"] | None
) -> Float64[Tensor, "b c m m"]:
    """Add the size potential, if any, to log-probabilities of n labels of a class (rows) and n of others (columns).

    Where they are fewer than `least` together, or more than the largest n, the result is -inf.
    """
    n = torch.arange(grid.shape[-1], device=grid.device)
    size, most = n[:, None] + n, len(n) - 1
    if size_scores is not None:
        grid = grid + size_scores.double()[:, None, size.clamp(max=most)]
    return grid.masked_fill((size < least) | (size > most), -torch.inf)


def _filled(counts: Int64[Tensor, "b j c"], found: Float64[Tensor, "b j"], k: int) -> Ranked:
    """Return j multisets with their log-probabilities, padded to k; those of probability 0 become empty."""
    missing = k - found.shape[1]
    counts = counts.masked_fill((found == -torch.inf)[..., None], 0)
    return Ranked(pad(counts, (0, 0, 0, missing)), pad(found, (0, missing), value=-torch.inf))


def _product(a: Float64[Tensor, "b m"], b: Float64[Tensor, "b m"]) -> Float64[Tensor, "b m"]:
    """Return the log-probabilities of the sum of two independent counts, truncated to their common length."""
    length = a.shape[1]
    return _log_sum(pad(a, (length - 1, 0), value=-torch.inf).unfold(1, length, 1).flip(-1) + b[:, None])


def _log_sum(logarithms: Float64[Tensor, "*b m"]) -> Float64[Tensor, "*b"]:
    """Compute a log-sum-exp over the last dimension, without underflow in exported models."""
    if not torch.compiler.is_exporting():
        return logarithms.logsumexp(-1)
    # Finite, since the difference of two infinities is not a number; the exporter stores the bound in single precision.
    largest = logarithms.amax(-1).clamp(min=-1e30)
    return (logarithms - largest[..., None]).exp().sum(-1).log() + largest
