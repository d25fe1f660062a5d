"""Paired significance tests of methods on the same examples.

Each example is right or wrong under each of two methods. Under the null hypothesis that both are equally good, the sign
of the difference of each example is random. With one seed this is McNemar's exact test. With several seeds, the
differences of an example are summed over the seeds before their sign is flipped, because the same example under another
seed is not independent evidence.

The test is about these trained models on these examples. Variation between training runs is measured by the standard
deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int64

__all__ = ["ALPHA", "Comparison", "Correct", "compare", "holm", "sign_flip"]

ALPHA = 0.05

Correct: TypeAlias = Mapping[int, Bool[np.ndarray, " n"]]
"""Seed -> whether each example is right (N,)."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of the first method with another one."""

    other: str
    seeds: int
    """Number of seeds that both methods have."""
    ahead: int
    """Number of these seeds for which the first predicts more examples correctly."""
    wins: int
    """Number of examples, over all seeds, that only the first predicts correctly."""
    losses: int
    """Number of examples, over all seeds, that only the other predicts correctly."""
    p: float
    adjusted: float
    """p-value corrected for the number of comparisons (Holm)."""

    @property
    def better(self) -> bool:
        """Whether the first is significantly better than the other."""
        return self.wins > self.losses and self.adjusted < ALPHA


def compare(first: Correct, others: Mapping[str, Correct]) -> list[Comparison]:
    """Test one method against each of the others, two-sided; methods without a common seed are left out."""
    pairs = {name: [(first[seed], other[seed]) for seed in first if seed in other] for name, other in others.items()}
    tested = {name: paired for name, paired in pairs.items() if paired}
    values = [
        sign_flip(np.sum([ours.astype(np.int64) - theirs for ours, theirs in paired], axis=0))
        for paired in tested.values()
    ]
    return [
        Comparison(
            name,
            len(paired),
            sum(int(ours.sum() > theirs.sum()) for ours, theirs in paired),
            sum(int((ours & ~theirs).sum()) for ours, theirs in paired),
            sum(int((theirs & ~ours).sum()) for ours, theirs in paired),
            p,
            adjusted,
        )
        for (name, paired), p, adjusted in zip(tested.items(), values, holm(values), strict=True)
    ]


def sign_flip(differences: Int64[np.ndarray, " n"]) -> float:
    """Return the exact two-sided p-value of a sum of paired differences under random signs.

    If all differences are -1, 0 or 1, this is McNemar's exact test.

    Example:
        >>> sign_flip(np.array([1, 1, 1, 1, 1, 0, 0]))  # five equal signs: 2 / 2**5
        0.0625
    """
    sizes, times = np.unique(abs(differences[differences != 0]), return_counts=True)
    chances = np.ones(1)  # probabilities of the sums from -total to total
    for size, number in zip(sizes.tolist(), times.tolist(), strict=True):
        steps = np.zeros(2 * size * number + 1)
        steps[:: 2 * size] = _coin(number)
        chances = np.convolve(chances, steps)
    total = len(chances) // 2
    as_far = abs(np.arange(-total, total + 1)) >= abs(int(differences.sum()))
    return min(float(chances[as_far].sum()), 1.0)


def holm(values: Sequence[float]) -> list[float]:
    """Apply Holm's correction: multiply the sorted p-values by n, n - 1, ..., and make them non-decreasing.

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(values[i] * (len(values) - rank), 1.0))
        adjusted[i] = largest
    return adjusted


def _coin(number: int) -> Float[np.ndarray, " m"]:
    """Return the probabilities of 0 to `number` heads in `number` tosses of a fair coin."""
    ways, of, chances = 1, 2**number, []
    for heads in range(number + 1):
        chances.append(ways / of)
        ways = ways * (number - heads) // (heads + 1)
    return np.array(chances)
