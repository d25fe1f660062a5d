"""The exact joint distribution of the counts that the cells of a map predict, in log space."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check, check_counts, check_float
from torchmultiset._precision import full_precision
from torchmultiset.distributions._counts import cell_log_probabilities, poisson_binomial, size_log_probabilities
from torchmultiset.distributions._multisets import IndependentCounts, Ranked, rank, weigh_sizes
from torchmultiset.multiset import cardinality, how_many

__all__ = [
    "CellJoint",
    "cell_joint_log_probability",
    "cell_size_log_probabilities",
    "joint_states",
    "largest_joint_size",
]

_CANDIDATES = 8
"""Number of candidates of the independent form that are rescored, in addition to the k requested."""
_FEW = 64
"""Maximum number of possible multisets for which all are scored."""


def joint_states(counts: Int64[Tensor, "*b c"]) -> Int64[Tensor, "*b"]:
    r"""Return the number of sub-multisets of each multiset, :math:`\prod_c (\mu(c) + 1)`.

    This is the number of states of `cell_joint_log_probability`.

    Example:
        >>> joint_states(torch.tensor([[4, 0], [2, 2], [0, 0]]))
        tensor([5, 9, 1])
    """
    return (counts.double() + 1).prod(-1).clamp(max=2.0**62).long()


def largest_joint_size(num_classes: int, states: int) -> int:
    """Return the largest size for which no multiset has more than `states` sub-multisets (`joint_states`).

    Example:
        >>> largest_joint_size(10, states=16)  # four labels of different classes have 2^4 sub-multisets
        4
        >>> largest_joint_size(1, states=16)
        15
    """

    def most_states(size: int) -> int:  # of the multiset whose labels are spread evenly over the classes
        each, more = divmod(size, num_classes)
        number: int = (each + 1) ** (num_classes - more) * (each + 2) ** more
        return number

    return bisect_right(range(states), states, key=most_states) - 1


def cell_joint_log_probability(logits: Float[Tensor, "b n k"], counts: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the log-probability that cells predict exactly this multiset, jointly over all classes.

    .. math::
        P(\mathcal{Y}) = \sum_{a:\, \text{cells} \to \text{classes} \cup \{\varnothing\},\ \text{counts of } a = \mu}
        \ \prod_{n=1}^{N} p_n(a_n)

    A dynamic program over the cells: its states are the sub-multisets of :math:`\mathcal{Y}`, of which there are
    `joint_states`.

    Args:
        logits: Scores (B, N, C + 1) of the cells; the last class is "nothing".
        counts: Counts (B, C).

    Returns:
        Log-probabilities (B,), in at least float32; minus infinity for more than N labels.

    Example:
        >>> logits = torch.zeros(1, 2, 3)  # two cells, each with 1/3 for "a", "b" and nothing
        >>> cell_joint_log_probability(logits, torch.tensor([[1, 1]])).exp()  # "ab" and "ba" of nine
        tensor([0.2222])
    """
    check_counts("counts", counts)
    check_float("logits", logits, "(B, N, C + 1)", like=(counts.shape[0], None, counts.shape[1] + 1))
    log_p = full_precision(logits).log_softmax(-1)
    digit, before, classes = _states(counts)
    lowest = torch.finfo(log_p.dtype).min / 4  # finite, since a log-sum of infinities has no gradient
    nothing = log_p[..., -1:]
    labels = log_p[..., :-1].gather(2, classes[:, None].expand(-1, log_p.shape[1], -1))  # (B, N, K)
    labels = labels.clamp(min=lowest / log_p.shape[1])
    nothing = nothing.clamp(min=lowest / log_p.shape[1])
    impossible = digit == 0
    reached = torch.full_like(before[:, 0], lowest, dtype=log_p.dtype)  # (B, S)
    reached[:, 0] = 0
    for cell, silent in zip(labels.unbind(1), nothing.unbind(1), strict=True):
        # State s comes from itself, or from s without one label of class k.
        earlier = reached.gather(1, before.flatten(1)).view_as(digit) + cell[..., None]
        ways = torch.cat([(reached + silent)[:, None], earlier.masked_fill(impossible, lowest)], 1)
        reached = ways.logsumexp(1).clamp(min=lowest)
    last = (joint_states(counts) - 1)[:, None]
    found = reached.gather(1, last).squeeze(1)
    return found.masked_fill(found < lowest / 2, -torch.inf)


def cell_size_log_probabilities(logits: Float[Tensor, "b n k"], most: int) -> Float[Tensor, "b m"]:
    """Compute the log-probabilities (B, most + 1) that 0, 1, ..., `most` cells predict a class and not "nothing".

    Example:
        >>> cell_size_log_probabilities(torch.zeros(1, 2, 3), 2).exp()
        tensor([[0.1111, 0.4444, 0.4444]])
    """
    classes = full_precision(logits)
    label_or_nothing = torch.stack([classes[..., :-1].logsumexp(-1), classes[..., -1]], -1)
    return poisson_binomial(*cell_log_probabilities(label_or_nothing), most).squeeze(1)


@dataclass(frozen=True, eq=False)
class CellJoint:
    r"""The joint distribution of the counts that cells predict, restricted to the sizes that can be predicted.

    .. math::
        p(\mathcal{Y}) \propto e^{s(k)} P(k)\, P(\mathcal{Y} \mid k), \qquad
        k = |\mathcal{Y}|, \quad \text{least} \le k \le \text{most}

    The distribution P(k) of the size is always exact (`cell_size_log_probabilities`). Up to `exact_size` labels, so is
    the distribution of the multisets of a size: :math:`P(k)\, P(\mathcal{Y} \mid k)` is
    `cell_joint_log_probability`. For larger sizes, of which some multisets have more than `states` sub-multisets,
    counts of different classes are independent given the size:

    .. math:: P(\mathcal{Y} \mid k) = \frac{\prod_c P(N_c = \mu(c))}{P(\sum_c N_c = k)}

    One form per size, and not per multiset, makes the probabilities of all multisets sum to 1.

    The most probable multisets are found among the candidates that the independent form ranks highest, which are
    rescored; if there are at most 64 multisets, all are.

    Args:
        logits: Scores (B, N, C + 1) of the cells; the last class is "nothing".
        least: Size of the smallest multiset.
        most: Size of the largest multiset.
        states: Largest number of sub-multisets for exact probabilities.
        size_scores: Size potential s (B, M + 1) or (1, M + 1) for M = `most`; None: 0.

    Example:
        >>> belief = CellJoint(torch.zeros(1, 2, 3), least=0, most=2)
        >>> belief.log_probability(torch.tensor([[1, 1]])).exp()
        tensor([0.2222], dtype=torch.float64)
    """

    logits: Float[Tensor, "b n k"]
    least: int
    most: int
    states: int = 1024
    size_scores: Float[Tensor, "#b m"] | None = None

    def __post_init__(self) -> None:
        check(0 <= self.least <= self.most, "least", f"from 0 to most = {self.most}", self.least)
        check(self.states >= 1, "states", "at least 1", self.states)
        object.__setattr__(self, "logits", self.logits.double())

    @property
    def exact_size(self) -> int:
        """Size up to which probabilities of multisets are exact."""
        return largest_joint_size(self.logits.shape[2] - 1, self.states)

    @cached_property
    def independent(self) -> IndependentCounts:
        """Independent counts of the same cells, with the same distribution of sizes."""
        counts = poisson_binomial(*cell_log_probabilities(self.logits), self.most)
        implied = size_log_probabilities(counts)
        return IndependentCounts(
            counts, self.least, self.most, self._log_sizes - implied.masked_fill(implied == -torch.inf, 0)
        )

    def best(self) -> Int64[Tensor, "b c"]:
        """Return the most probable multiset among the candidates of the independent form."""
        return self.ranked(1).counts[:, 0]

    def ranked(self, k: int) -> Ranked:
        """Return the k most probable multisets among the candidates of the independent form."""
        check(k >= 1, "k", "at least 1", k)
        if torch.compiler.is_exporting():
            raise ValueError("the joint distribution over cells cannot be exported: train with joint_states=0 instead")
        every = how_many(self.logits.shape[2] - 1, self.most, min_size=self.least)
        candidates = self.independent.ranked(every if every <= _FEW else k + _CANDIDATES)
        number = candidates.counts.shape[1]
        rows = torch.arange(len(self.logits), device=self.logits.device).repeat_interleave(number)
        score = self._exact_log_probability(candidates.counts.flatten(0, 1), rows).view(-1, number)
        large = cardinality(candidates.counts) > self.exact_size
        score = torch.where(large, candidates.log_probability, score)
        return rank(candidates.counts, score.masked_fill(candidates.log_probability == -torch.inf, -torch.inf), k)

    def log_probability(self, counts: Int64[Tensor, "b c"]) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; -inf if it cannot be predicted."""
        check_counts("counts", counts, like=(len(self.logits), self.logits.shape[2] - 1))
        size = cardinality(counts)
        found = self._exact_log_probability(counts, torch.arange(len(counts), device=counts.device))
        large = (size > self.exact_size) & (size <= self.most)
        if bool(large.any()):
            found = torch.where(large, self.independent.log_probability(counts), found)
        return found.masked_fill((size < self.least) | (size > self.most), -torch.inf)

    def count_probabilities(self) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class, given that the size can be predicted."""
        larger = max(self.least, self.exact_size + 1)  # the smallest size that is not exact
        if larger > self.most:
            return self._exact_count_probabilities(self.most)
        rest = replace(self.independent, least=larger).count_probabilities()
        if larger == self.least:
            return rest
        exact = pad(self._exact_count_probabilities(larger - 1), (0, self.most + 1 - larger))
        share = self.size_probabilities()[:, larger:].sum(-1)[:, None, None]
        return torch.where(share > 0, (1 - share) * exact + share * rest, exact)

    def size_probabilities(self) -> Float64[Tensor, "b m"]:
        """Return the probabilities of multisets of 0, 1, 2, ... labels."""
        sizes = torch.arange(self.most + 1, device=self.logits.device)
        return self._log_sizes.masked_fill(sizes < self.least, -torch.inf).softmax(-1)

    def given_size(self, size: int) -> CellJoint:
        """Return the distribution conditioned on the number of labels."""
        check(self.least <= size <= self.most, "size", f"from {self.least} to {self.most}", size)
        return CellJoint(self.logits, size, size, self.states)

    @cached_property
    def _log_sizes(self) -> Float64[Tensor, "b m"]:
        log_sizes = cell_size_log_probabilities(self.logits, self.most)
        return log_sizes if self.size_scores is None else log_sizes + self.size_scores.double()

    def _exact_log_probability(self, counts: Int64[Tensor, "n c"], rows: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """Return the log-probability of multisets for the inputs in `rows`; that of larger multisets is meaningless."""
        size = cardinality(counts)
        exact = size <= min(self.exact_size, self.most)
        joint = cell_joint_log_probability(self.logits[rows], counts * exact[:, None])
        if self.size_scores is not None:
            scores = self.size_scores.double().expand(len(self.logits), -1)
            joint = joint + scores[rows, size.clamp(max=self.most)]
        return joint - self._log_sizes[:, self.least :].logsumexp(-1)[rows]

    def _exact_count_probabilities(self, most: int) -> Float64[Tensor, "b c m"]:
        """Return the probabilities of 0, 1, 2, ... labels of each class, given a size of `least` to `most`."""
        log_p = self.logits.log_softmax(-1)
        nothing, own = log_p[..., -1], log_p[..., :-1]
        log_not = cell_log_probabilities(self.logits)[1]
        # Another label: neither this class nor nothing.
        other = torch.log((log_not.exp() - nothing.exp()[..., None]).clamp(min=0))
        batch, cells, classes = own.shape
        # Row n, column m: n labels of the class and m of the others.
        grid = torch.full((batch, classes, most + 1, most + 1), -torch.inf).to(own)
        grid[..., 0, 0] = 0
        for cell in range(cells):
            stay = grid + nothing[:, cell, None, None, None]
            one = pad(grid, (0, 0, 1, 0), value=-torch.inf)[..., :-1, :] + own[:, cell, :, None, None]
            another = pad(grid, (1, 0), value=-torch.inf)[..., :-1] + other[:, cell, :, None, None]
            grid = torch.stack([stay, one, another]).logsumexp(0)
        return weigh_sizes(grid, self.least, self.size_scores).logsumexp(-1).softmax(-1)


def _states(counts: Int64[Tensor, "b c"]) -> tuple[Tensor, Tensor, Tensor]:
    """Number the sub-multisets of each multiset in mixed radix, with its K most frequent classes as digits.

    Returns:
        The digits (B, K, S); the state (B, K, S) with one label of class k fewer, 0 where there is none; the classes
        (B, K).
    """
    present = max(int((counts > 0).sum(-1).max()) if counts.numel() else 0, 1)
    number, classes = counts.topk(min(present, counts.shape[1]), dim=-1)
    radix = number + 1
    stride = radix.cumprod(-1) // radix
    total = int(joint_states(counts).max()) if len(counts) else 1
    state = torch.arange(total, device=counts.device)
    digit = state // stride[..., None] % radix[..., None]
    return digit, (state - stride[..., None]).clamp(min=0), classes
