"""Count distributions of cells in plain Python with 60 digits, without log space and without underflow.

A cell is a list of probabilities, one for each class and "nothing" last. The code shares nothing with the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext

DIGITS = Context(prec=60, Emin=-(10**9), Emax=10**9)

Cell = Sequence[Decimal]


def softmax(logits: Sequence[float]) -> list[Decimal]:
    """Softmax of floats, which are converted without rounding."""
    with localcontext(DIGITS):
        powers = [(Decimal(x) - Decimal(max(logits))).exp() for x in logits]
        return [power / sum(powers) for power in powers]


def complement(cell: Cell, label: int) -> Decimal:
    """Probability of all other outcomes of a cell, as their sum, which avoids cancellation."""
    with localcontext(DIGITS):
        return sum((p for other, p in enumerate(cell) if other != label), Decimal(0))


def counts_of_all_outcomes(cells: Sequence[Cell]) -> dict[tuple[int, ...], Decimal]:
    """Joint distribution of the counts of all classes, by enumeration of the outcomes of all cells."""
    total: dict[tuple[int, ...], Decimal] = {}
    classes = len(cells[0]) - 1
    with localcontext(DIGITS):
        for outcomes in itertools.product(range(classes + 1), repeat=len(cells)):
            counts = tuple(outcomes.count(label) for label in range(classes))
            probability = Decimal(1)
            for cell, label in zip(cells, outcomes, strict=True):
                probability *= cell[label]
            total[counts] = total.get(counts, Decimal(0)) + probability
    return total


def count_distribution(cells: Sequence[Cell], label: int) -> list[Decimal]:
    """Distribution of the number of cells with outcome `label`, by enumeration of all subsets of the cells."""
    distribution = [Decimal(0)] * (len(cells) + 1)
    with localcontext(DIGITS):
        for yes in itertools.product((False, True), repeat=len(cells)):
            probability = Decimal(1)
            for cell, hit in zip(cells, yes, strict=True):
                probability *= cell[label] if hit else complement(cell, label)
            distribution[sum(yes)] += probability
    return distribution


def count_distribution_cell_by_cell(cells: Sequence[Cell], label: int, most: int) -> list[Decimal]:
    """Like `count_distribution` up to `most`, for too many cells to enumerate subsets: adds one cell at a time."""
    distribution = [Decimal(1)] + [Decimal(0)] * most
    with localcontext(DIGITS):
        for cell in cells:
            yes, no = cell[label], complement(cell, label)
            fewer = [Decimal(0), *distribution[:-1]]
            distribution = [no * same + yes * less for same, less in zip(distribution, fewer, strict=True)]
    return distribution


def log(value: Decimal) -> float:
    """Natural logarithm of a probability, minus infinity for 0."""
    with localcontext(DIGITS):
        return float(value.ln()) if value else -float("inf")
