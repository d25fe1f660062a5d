"""Which method is first: a paired test on the same examples, and no claim without it.

Each example is right or wrong under two methods. If both were equally good, then in each example on which they differ
either one might as well be the better: the sign of the difference is a coin. With one seed that is McNemar's exact
test. With several, the difference of an example is summed over the seeds before its sign is tossed, because the same
example under another seed is no new evidence of its own.

What the test knows is these trained models on these examples. How much another seed would change is what the deviation
over seeds says.
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
"""Seed -> which examples are right."""


@dataclass(frozen=True)
class Comparison:
    """The first method beside another one."""

    other: str
    seeds: int
    """How many both have."""
    ahead: int
    """In how many of these the first has more examples right."""
    wins: int
    """Examples, over all seeds, that only the first has right."""
    losses: int
    """Examples, over all seeds, that only the other has right."""
    p: float
    adjusted: float
    """The same, corrected for the number of comparisons (Holm)."""

    @property
    def better(self) -> bool:
        """Whether the first is distinguishable from the other, and better."""
        return self.wins > self.losses and self.adjusted < ALPHA


def compare(first: Correct, others: Mapping[str, Correct]) -> list[Comparison]:
    """Test one method against each of the others, two-sided; methods that share no seed with it are left out."""
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
    """Exact two-sided p-value of a sum of paired differences, if the sign of each were the toss of a coin.

    If all of them are -1, 0 or 1, this is McNemar's exact test.

    Example:
        >>> sign_flip(np.array([1, 1, 1, 1, 1, 0, 0]))  # five times the same side of a coin: 2 / 2**5
        0.0625
    """
    sizes, times = np.unique(abs(differences[differences != 0]), return_counts=True)
    chances = np.ones(1)  # of the sums from -total to total
    for size, number in zip(sizes.tolist(), times.tolist(), strict=True):
        steps = np.zeros(2 * size * number + 1)
        steps[:: 2 * size] = _coin(number)
        chances = np.convolve(chances, steps)
    total = len(chances) // 2
    as_far = abs(np.arange(-total, total + 1)) >= abs(int(differences.sum()))
    return min(float(chances[as_far].sum()), 1.0)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values: the smallest times their number, the next times one less, and never falling.

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
    """Probabilities of 0 to `number` heads."""
    ways, of, chances = 1, 2**number, []
    for heads in range(number + 1):
        chances.append(ways / of)
        ways = ways * (number - heads) // (heads + 1)
    return np.array(chances)
