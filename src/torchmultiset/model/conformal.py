r"""Sets of multisets that contain the truth with a given probability: split conformal prediction.

A score :math:`s(x, \mathcal{Y})` measures how unusual a multiset is for an input. It is computed for the true multisets
of n calibration examples, which the model was neither trained nor selected with. The
:math:`\lceil (n + 1)\, \gamma \rceil`-th smallest of these scores is the threshold :math:`\hat q` for the coverage
:math:`\gamma`:

.. math:: \mathcal{C}(x) = \{ \mathcal{Y} : s(x, \mathcal{Y}) \le \hat q \}, \qquad
    P\left(\mathcal{Y}^\star \in \mathcal{C}(x)\right) \ge \gamma

The inequality holds for any model and data, if the new example is exchangeable with the calibration examples; the
probability is over both. A better model gives smaller sets, not more coverage.

The score is defined by the multisets that the model ranks highest, its candidates: exact for a head, found by a beam
search for a policy. The truth has an infinite score if it is not among them, so the guarantee also holds if the search
misses it. The first candidate is always in the set, which can only increase coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from torchmultiset._checks import check, check_counts, check_one_of
from torchmultiset.data import Examples
from torchmultiset.distributions import Ranked
from torchmultiset.model.predictor import BEAM, Predictor

__all__ = [
    "Conformal",
    "ConformalSets",
    "Score",
    "candidate_scores",
    "conformal_quantile",
    "contains_truth",
    "examples_needed",
    "in_set",
    "rank_examples",
    "split_for_conformal",
    "truth_scores",
]

Score: TypeAlias = Literal["probability", "cumulative"]
"""``"probability"``: the negative log-probability of the multiset, which gives the smallest sets on average.
``"cumulative"``: the total probability of the multiset and of all that are ranked above it, which adapts more to the
difficulty of an input."""

_OF_HEAD, _OF_POLICY = 200, 32  # candidates by default: a head ranks exactly and fast, a policy searches
_BATCH = 16
# Tolerance for rounding errors, which differ between batches of different sizes; it can only enlarge sets.
_SLACK = 1e-6
_KEY = "conformal"


def examples_needed(coverage: float) -> int:
    r"""Return the smallest number of calibration examples for a coverage: :math:`n \ge \gamma / (1 - \gamma)`.

    With fewer, :math:`\lceil (n + 1) \gamma \rceil > n`: there is no such score.

    Example:
        >>> examples_needed(0.9), examples_needed(0.95), examples_needed(0.5)
        (9, 19, 1)
    """
    share = _share(coverage)
    return math.ceil(share / (1 - share))


def conformal_quantile(scores: Float[Tensor, " n"], coverage: float) -> float:
    r"""Return the threshold :math:`\hat q`: the :math:`\lceil (n + 1)\, \gamma \rceil`-th smallest score.

    Raises:
        ValueError: There are fewer examples than the coverage requires.

    Example:
        >>> conformal_quantile(torch.tensor([3.0, 1.0, 2.0, 5.0]), 0.6)  # the third of four, as 5 * 0.6 = 3
        3.0
    """
    needed = examples_needed(coverage)
    if len(scores) < needed:
        raise ValueError(
            f"coverage {coverage:g} requires at least {needed} calibration examples, but there are {len(scores)}: "
            "use more, or a lower coverage"
        )
    return float(scores.sort().values[math.ceil((len(scores) + 1) * _share(coverage)) - 1])


def candidate_scores(log_probability: Float[Tensor, "b k"], score: Score = "probability") -> Float64[Tensor, "b k"]:
    """Return the score of each candidate (B, k); they increase along a row.

    Example:
        >>> candidate_scores(torch.tensor([[0.5, 0.3, 0.1]]).log(), "cumulative")
        tensor([[0.5000, 0.8000, 0.9000]], dtype=torch.float64)
    """
    check_one_of("score", score, get_args(Score))
    log_probability = log_probability.double()
    if score == "probability":
        return -log_probability
    return log_probability.exp().cumsum(1).masked_fill(log_probability == -torch.inf, torch.inf)


def truth_scores(ranked: Ranked, target: Int64[Tensor, "b c"], score: Score = "probability") -> Float64[Tensor, " b"]:
    """Return the score of the true multiset of each example (B,); inf if it is not among the candidates.

    Example:
        >>> ranked = Ranked(torch.tensor([[[1, 0], [0, 1]]] * 2), torch.tensor([[0.5, 0.25]] * 2).log())
        >>> truth_scores(ranked, torch.tensor([[0, 1], [1, 1]]))
        tensor([1.3863,    inf], dtype=torch.float64)
    """
    check_counts("target", target, like=(ranked.counts.shape[0], ranked.counts.shape[2]))
    # Where there is no candidate, the counts are zeros and the score is infinite.
    hit = (ranked.counts == target[:, None]).all(-1)
    scores = candidate_scores(ranked.log_probability, score)
    return scores.masked_fill(~hit, torch.inf).amin(1)


def in_set(candidates: Float[Tensor, "b k"], threshold: float) -> Bool[Tensor, "b k"]:
    """Return which candidates are in the set, given their scores (B, k); the first always is.

    Example:
        >>> in_set(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), threshold=2.0)
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    return candidates <= candidates[:, :1].clamp(min=threshold) + _SLACK


def contains_truth(
    truth: Float[Tensor, " b"], candidates: Float[Tensor, "b k"], threshold: float
) -> Bool[Tensor, " b"]:
    """Return whether each set contains the truth, given the scores of the truth (B,) and of the candidates (B, k)."""
    return truth <= candidates[:, 0].clamp(min=threshold) + _SLACK


class ConformalSets(NamedTuple):
    """A set of multisets for each input, among k candidates."""

    counts: Int64[Tensor, "b k c"]
    """Candidates (B, k, C), most probable first."""
    log_probability: Float[Tensor, "b k"]
    inside: Bool[Tensor, "b k"]
    """Which candidates are in the set: the first ones of each row, at least one."""
    low: Int64[Tensor, "b c"]
    """Smallest count of each class in the set (B, C)."""
    high: Int64[Tensor, "b c"]
    """Largest count of each class in the set (B, C). All counts of the truth are from `low` to `high`, jointly, with at
    least the probability of the set."""


@dataclass(frozen=True)
class Conformal:
    """Calibration of a model: scores of examples that it was not trained or selected with.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder
        >>> from torchmultiset.heads import CountTable
        >>> _ = torch.manual_seed(0)
        >>> head = CountTable(2, memory=128, most=3)
        >>> predictor = Predictor(MLPEncoder(2), head, classes=["cat", "dog"], max_size=3)
        >>> rng = np.random.default_rng(0)
        >>> inputs = rng.normal(size=(50, 2)).astype(np.float32)
        >>> held_out = Examples(inputs, rng.integers(0, 2, (50, 2)), ("cat", "dog"))
        >>> conformal = Conformal.calibrate(predictor, held_out)
        >>> sets = conformal.predict(predictor, torch.randn(4, 2), coverage=0.5)
        >>> sets.inside.shape, bool(sets.inside[:, 0].all())
        (torch.Size([4, 200]), True)
    """

    scores: tuple[float, ...]
    """Scores of the true multisets, increasing; inf for those that are not among the candidates."""
    score: Score
    candidates: int
    """Number of candidates that were ranked."""
    beam: int
    """Beam of the search, for a policy."""

    @classmethod
    def calibrate(
        cls,
        predictor: Predictor,
        examples: Examples,
        *,
        score: Score = "probability",
        candidates: int | None = None,
        beam: int = BEAM,
        watch: Callable[[int], None] = lambda _: None,
    ) -> Conformal:
        """Score the true multisets of calibration examples.

        Args:
            predictor: The trained model; any later change of its weights voids the guarantee.
            examples: Calibration examples, not used to train or select the model; see `split_for_conformal`.
            score: See `Score`.
            candidates: Number of multisets to rank; None: 200 for a head, 32 for a policy.
            beam: As for `Predictor.search`.
            watch: Called after each batch with its number of examples.

        Raises:
            ValueError: The model gives no probabilities of multisets, or there are no examples.
        """
        check(len(examples) >= 1, "examples", "at least one calibration example", len(examples))
        candidates = cls.defaults(predictor).candidates if candidates is None else candidates
        truth, _ = rank_examples(predictor, examples, score=score, candidates=candidates, beam=beam, watch=watch)
        return cls(tuple(truth.sort().values.tolist()), score, candidates, beam)

    @classmethod
    def defaults(cls, predictor: Predictor) -> Conformal:
        """Return the default settings for a model, without scores."""
        return cls((), "probability", _OF_POLICY if predictor.steps else _OF_HEAD, BEAM)

    def threshold(self, coverage: float) -> float:
        """Return the threshold for a coverage, between 0 and 1.

        Raises:
            ValueError: There are too few calibration examples, or the truth of too many is not among the candidates.
        """
        found = conformal_quantile(torch.tensor(self.scores, dtype=torch.float64), coverage)
        if found == math.inf:
            known = sum(value < math.inf for value in self.scores)
            raise ValueError(
                f"coverage {coverage:g} is out of reach: of {len(self.scores)} calibration examples, the truth of "
                f"only {known} is among the {self.candidates} most probable multisets; use a lower coverage, more "
                "candidates or a better model"
            )
        return found

    def sets(self, ranked: Ranked, coverage: float) -> ConformalSets:
        """Return the sets among candidates that `Predictor.search` ranked, with this `candidates` and `beam`."""
        check(ranked.counts.shape[1] == self.candidates, "ranked", f"{self.candidates} candidates", ranked.counts)
        inside = in_set(candidate_scores(ranked.log_probability, self.score), self.threshold(coverage))
        outside = ~inside[..., None]
        low = ranked.counts.masked_fill(outside, torch.iinfo(torch.int64).max).amin(1)
        high = ranked.counts.masked_fill(outside, -1).amax(1)
        return ConformalSets(ranked.counts, ranked.log_probability, inside, low, high)

    def predict(self, predictor: Predictor, x: Shaped[Tensor, "b ..."], coverage: float) -> ConformalSets:
        """Return the set of each input."""
        return self.sets(predictor.search(x, k=self.candidates, beam=self.beam), coverage)

    def store(self, predictor: Predictor) -> None:
        """Add the calibration to the model's record, so that `Predictor.save` saves it."""
        scores = [None if value == math.inf else value for value in self.scores]  # JSON has no infinity
        settings = {"score": self.score, "candidates": self.candidates, "beam": self.beam}
        predictor.record = {**predictor.record, _KEY: {**settings, "scores": scores}}

    @classmethod
    def of(cls, predictor: Predictor) -> Conformal | None:
        """Return the calibration in the model's record, or None."""
        stored: Mapping[str, Any] | None = predictor.record.get(_KEY)
        if stored is None:
            return None
        scores = tuple(math.inf if value is None else float(value) for value in stored["scores"])
        return cls(scores, stored["score"], stored["candidates"], stored["beam"])


def rank_examples(
    predictor: Predictor,
    examples: Examples,
    *,
    score: Score,
    candidates: int,
    beam: int,
    watch: Callable[[int], None] = lambda _: None,
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, "n k"]]:
    """Return the scores of the true multisets (N,) and of the candidates (N, k) of a split, on the CPU."""
    check(candidates >= 1, "candidates", "at least 1", candidates)
    device = next(predictor.parameters()).device
    truth = [torch.zeros(0, dtype=torch.float64)]
    others = [torch.zeros(0, candidates, dtype=torch.float64)]
    for batch in examples.batches(_BATCH):
        ranked = predictor.search(batch.x.to(device), k=candidates, beam=beam)
        truth.append(truth_scores(ranked, batch.target.to(device), score).cpu())
        others.append(candidate_scores(ranked.log_probability, score).cpu())
        watch(len(batch.target))
    return torch.cat(truth), torch.cat(others)


def split_for_conformal(examples: Examples, share: float = 0.2, seed: int = 0) -> tuple[Examples, Examples]:
    """Split examples at random into those for training or selection and those for calibration.

    Returns:
        The remaining examples, and the calibration examples; both in their original order.

    Example:
        >>> examples = Examples(np.zeros((10, 1), np.float32), np.zeros((10, 1), np.int64), ("cat",))
        >>> [len(part) for part in split_for_conformal(examples, 0.3)]
        [7, 3]
    """
    check(0 < share < 1, "share", "between 0 and 1", share)
    chosen = round(share * len(examples))
    check(1 <= chosen < len(examples), "examples", f"enough for two parts with share = {share:g}", len(examples))
    order = np.random.default_rng(seed).permutation(len(examples))
    return examples.subset(np.sort(order[chosen:])), examples.subset(np.sort(order[:chosen]))


def _share(coverage: float) -> Fraction:
    """Return the coverage as an exact decimal fraction: 0.9 is 9/10, so that (n + 1) * 0.9 has no rounding error."""
    check(0 < coverage < 1, "coverage", "between 0 and 1", coverage)
    return Fraction(repr(float(coverage)))
