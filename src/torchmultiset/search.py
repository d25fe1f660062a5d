r"""Probability of a multiset under a policy, and beam search for the most probable multisets.

A policy assigns probabilities to sequences. The probability of a multiset is the sum over all orders of its labels,
including the decision to stop after the last label:

.. math:: p(\mathcal{Y} \mid x) = \sum_{y \in \text{orders of } \mathcal{Y}} p(y, \text{stop} \mid x)

There may be too many orders to enumerate. The search extends the prefixes of one size to those of the next and keeps
the `beam` most probable ones.

Finding multisets: prefixes that are equal as multisets are merged and their probabilities summed. For a policy that
sees only counts (`counts_only`) this is exact, since they lead to the same state. For a recurrent policy it is an
estimate: the merged prefix continues from the most probable state. Compared with enumeration, with large random
weights, 3 classes and up to 3 labels, the error is at most 0.05 (mean 0.004) for an LSTM and 0.007 (mean 0.0008) for a
ConvLSTM.

Scoring multisets: only prefixes of the multiset's own labels are extended. For a recurrent policy, orders are not
merged, which avoids that error. The probability of pruned prefixes is redistributed over the remaining ones, as if
they continued alike: otherwise a policy trained to emit labels in any order would score low merely because there are
many orders. A score is exact if nothing is pruned, and an estimate otherwise.

With a beam that prunes nothing, every score is exact, and the probabilities of all multisets sum to 1. If the policy
sees only counts, the best multiset found is then the global optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad

from torchmultiset._checks import check, check_counts
from torchmultiset._memory import Memory, batch_size, select_memory
from torchmultiset.distributions._multisets import Ranked, rank
from torchmultiset.multiset import cardinality
from torchmultiset.rollout import Policy, Step

__all__ = ["Search", "Searchable"]

S = TypeVar("S")
# Maximum number of policy states at a time. A ConvLSTM state takes 0.1 MB or more, and a step several times that.
_STATES = 512


@runtime_checkable
class Searchable(Policy[S], Protocol[S]):
    """A policy whose states can be selected and repeated."""

    counts_only: bool
    """Whether the state is the same for all orders of the labels so far; False for a policy without this attribute."""

    def select(self, state: S, index: Int64[Tensor, " n"]) -> S:
        """Return the state of the examples at these indices, in this order; indices may repeat."""
        ...


class _Prefixes(NamedTuple):
    """Prefixes of one size: at most w for each of n searches, most probable first."""

    counts: Int64[Tensor, "n w c"]
    log_mass: Float64[Tensor, "n w"]
    """Log-probability of emitting these labels first, summed over merged orders; -inf where there is no prefix."""
    log_end: Float64[Tensor, "n w"]
    """Log-probability that the multiset ends here."""


@dataclass(frozen=True)
class Search:
    """Beam search over the multisets of a policy.

    It holds at most 512 policy states at a time, or those of one input if the beam is wider.

    Args:
        policy: Policy over C classes, plus END if `end`.
        num_classes: Number of classes, C, without END.
        max_size: Size of the largest multiset. Slot `max_size` always ends.
        beam: Maximum number of prefixes of one size to extend.
        stop_head: Module that scores stopping from the policy's features.
        end: Whether the policy's last class is END. With neither, all multisets have `max_size` labels.
        min_size: Size of the smallest multiset. Until then the policy continues with certainty, and END is ruled
            out.
    """

    policy: Searchable[Any]
    num_classes: int
    max_size: int
    beam: int
    stop_head: Callable[[Tensor], Tensor] | None = None
    end: bool = False
    min_size: int = 0

    def __post_init__(self) -> None:
        check(self.beam >= 1, "beam", "at least 1", self.beam)
        what = "an object with a method select(state, index) (see torchmultiset.search.Searchable)"
        check(callable(getattr(self.policy, "select", None)), "policy", what, type(self.policy).__name__)

    def ranked(self, memory: Memory, k: int, among: Int64[Tensor, "b c"]) -> Ranked:
        """Return the k most probable multisets that the beam finds.

        The beam proposes 2 k multisets. These and `among` are scored and ranked by `log_probability`, so that no
        multiset ranked above `among` is less probable.
        """
        check(k >= 1, "k", "at least 1", k)
        check_counts("among", among, like=(batch_size(memory), self.num_classes))
        every = torch.arange(len(among), device=among.device)
        rows = torch.split(every, self._at_a_time(max(self.beam, 2 * k)))
        parts = [self._ranked(select_memory(memory, some), k, among[some]) for some in rows]
        return Ranked(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def log_probability(self, memory: Memory, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        check_counts("counts", counts, like=(batch_size(memory), self.num_classes))
        owner = torch.arange(len(counts), device=counts.device)
        return self._score_each(self.policy.start(memory), owner, counts)

    def _at_a_time(self, beam: int) -> int:
        """Return the number of searches to run at a time."""
        widest: int = min(beam, self.num_classes**self.max_size)
        return max(1, _STATES // widest)

    def _ranked(self, memory: Memory, k: int, among: Tensor) -> Ranked:
        state = self.policy.start(memory)
        found = [*self._prefixes(state, torch.zeros_like(among), max(self.beam, 2 * k))]
        log_mass = torch.cat([level.log_mass + level.log_end for level in found], 1)
        log_mass, at = log_mass.topk(min(2 * k, log_mass.shape[1]))
        proposed = _pick(torch.cat([level.counts for level in found], 1), at)
        possible = log_mass > -torch.inf
        new = ~((proposed == among[:, None]).all(-1) & possible).any(1, keepdim=True)
        proposed, possible = torch.cat([proposed, among[:, None]], 1), torch.cat([possible, new], 1)
        score = torch.full_like(possible, -torch.inf, dtype=torch.float64)
        score[possible] = self._score_each(state, possible.nonzero()[:, 0], proposed[possible])
        return rank(proposed, score, k)

    def _score_each(
        self, state: Any, owner: Int64[Tensor, " m"], counts: Int64[Tensor, "m c"]
    ) -> Float64[Tensor, " m"]:
        """Score multisets; `owner` is the index of each one's input in the state."""
        size = self._at_a_time(self.beam)
        parts = [
            self._score(self.policy.select(state, rows), wanted)
            for rows, wanted in zip(torch.split(owner, size), torch.split(counts, size), strict=True)
        ]
        return torch.cat(parts)

    def _score(self, state: Any, counts: Int64[Tensor, "n c"]) -> Float64[Tensor, " n"]:
        size = cardinality(counts)
        score = torch.full_like(size, -torch.inf, dtype=torch.float64)
        for t, level in enumerate(self._prefixes(state, torch.zeros_like(counts), self.beam, within=counts)):
            # Prefixes of the size of the multiset are its orders.
            score = torch.where(size == t, (level.log_mass + level.log_end).logsumexp(1), score)
        return score

    def _prefixes(
        self, state: Any, empty: Int64[Tensor, "n c"], beam: int, *, within: Int64[Tensor, "n c"] | None = None
    ) -> Iterator[_Prefixes]:
        """Yield the prefixes of size 0, 1, ..., `max_size`.

        Args:
            state: Initial state of the policy.
            empty: Empty multiset for each search.
            beam: Maximum number of prefixes to extend.
            within: Restrict prefixes to parts of these multisets. Probability that the beam prunes is then
                redistributed, and orders are merged only if they do not matter to the policy.
        """
        merge = _merge if within is None or getattr(self.policy, "counts_only", False) else _keep
        counts = empty[:, None]
        key, key_of = _keys(self.num_classes).to(empty.device), counts.sum(-1)
        log_mass = torch.zeros_like(key_of, dtype=torch.float64)
        row = torch.arange(len(empty), device=empty.device)[:, None]
        previous = None
        for t in range(self.max_size):
            step, state = self.policy.step(state, previous)
            log_label, log_end = self._choices(step, may_end=t >= self.min_size)
            yield _Prefixes(counts, log_mass, log_end.view_as(log_mass))
            longer = log_mass[..., None] + log_label.view(*log_mass.shape, self.num_classes)
            if within is not None:
                longer = longer.masked_fill(counts >= within[:, None], -torch.inf)
            merged, key_of, at = merge(longer, key_of[..., None] + key)
            log_mass, chosen = merged.topk(min(beam, merged.shape[1]))
            width = int((log_mass > -torch.inf).any(0).sum())  # the remaining columns are empty
            if width == 0:
                return
            if within is not None:
                lost = merged.logsumexp(1, keepdim=True) - log_mass.logsumexp(1, keepdim=True)
                log_mass = log_mass + lost.nan_to_num(0.0)  # NaN in rows without prefixes
            log_mass, chosen = log_mass[:, :width], chosen[:, :width]
            key_of, at = key_of.gather(1, chosen), at.gather(1, chosen)
            parent, label = at // self.num_classes, at % self.num_classes
            state = self.policy.select(state, (row * counts.shape[1] + parent).flatten())
            counts = _pick(counts, parent) + one_hot(label, self.num_classes)
            previous = label.flatten()
        yield _Prefixes(counts, log_mass, torch.zeros_like(log_mass))

    def _choices(self, step: Step, *, may_end: bool) -> tuple[Float64[Tensor, "r c"], Float64[Tensor, " r"]]:
        """Return the log-probabilities of each next label and of ending; the probabilities sum to 1."""
        if not may_end:
            logits = step.logits[:, :-1] if self.end else step.logits
            log_label = logits.double().log_softmax(-1)
            return log_label, torch.full_like(log_label[:, 0], -torch.inf)
        log_label = step.logits.double().log_softmax(-1)
        if self.stop_head is not None:
            stop = self.stop_head(step.features).double()
            return log_label + logsigmoid(-stop)[:, None], logsigmoid(stop)
        if self.end:
            return log_label[:, :-1], log_label[:, -1]
        return log_label, torch.full_like(log_label[:, 0], -torch.inf)


def _keys(num_classes: int) -> Int64[Tensor, " c"]:
    """Return a random number per class. Multisets are identified by the sum over their labels, modulo 2**64.

    Among a million multisets, the probability that two have the same sum is less than one in ten million.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**63), 2**63 - 1, (num_classes,), generator=generator)


def _merge(
    log_mass: Float64[Tensor, "n w c"], key: Int64[Tensor, "n w c"]
) -> tuple[Float64[Tensor, "n wc"], Int64[Tensor, "n wc"], Int64[Tensor, "n wc"]]:
    """Sum the entries with the same key, row by row.

    Returns:
        The sums, at the position of the largest summand and -inf elsewhere; the keys; the positions before sorting.
    """
    log_mass, by_mass = log_mass.flatten(1).sort(dim=1, descending=True)
    key, by_key = key.flatten(1).gather(1, by_mass).sort(dim=1, stable=True)
    log_mass = log_mass.gather(1, by_key)
    first = pad(key[:, 1:] != key[:, :-1], (1, 0), value=True)
    start = torch.where(first, torch.arange(first.shape[1], device=key.device), 0).cummax(1).values
    largest = log_mass.gather(1, start).clamp(min=torch.finfo(log_mass.dtype).min)
    total = torch.zeros_like(log_mass).scatter_add(1, start, (log_mass - largest).exp())
    return torch.where(first, largest + total.log(), -torch.inf), key, by_mass.gather(1, by_key)


def _keep(
    log_mass: Float64[Tensor, "n w c"], key: Int64[Tensor, "n w c"]
) -> tuple[Float64[Tensor, "n wc"], Int64[Tensor, "n wc"], Int64[Tensor, "n wc"]]:
    """Return the entries in the form of `_merge`, without summing any."""
    rows = log_mass.flatten(1)
    return rows, key.flatten(1), torch.arange(rows.shape[1], device=rows.device).expand_as(rows)


def _pick(counts: Int64[Tensor, "n w c"], at: Int64[Tensor, "n v"]) -> Int64[Tensor, "n v c"]:
    return counts.gather(1, at[..., None].expand(-1, -1, counts.shape[2]))
