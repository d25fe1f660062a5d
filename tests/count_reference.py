"""Counts of cells in plain Python, with 60 digits: nothing is in log space and nothing underflows.

A cell is a list of probabilities, one for each class and "nothing" last. Nothing here is shared with the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext

DIGITS = Context(prec=60, Emin=-(10**9), Emax=10**9)

Cell = Sequence[Decimal]


def softmax(logits: Sequence[float]) -> list[Decimal]:
    """Probabilities of the floats as they are, without rounding."""
    with localcontext(DIGITS):
        powers = [(Decimal(x) - Decimal(max(logits))).exp() for x in logits]
        return [power / sum(powers) for power in powers]


def complement(cell: Cell, label: int) -> Decimal:
    """The probability that a cell says anything else: the sum of the others, so that nothing cancels."""
    with localcontext(DIGITS):
        return sum((p for other, p in enumerate(cell) if other != label), Decimal(0))


def counts_of_all_outcomes(cells: Sequence[Cell]) -> dict[tuple[int, ...], Decimal]:
    """The joint distribution of the counts of all classes, from every way in which the cells can speak."""
    total: dict[tuple[int, ...], Decimal] = {}
    classes = len(cells[0]) - 1
    with localcontext(DIGITS):
        for said in itertools.product(range(classes + 1), repeat=len(cells)):
            counts = tuple(said.count(label) for label in range(classes))
            probability = Decimal(1)
            for cell, label in zip(cells, said, strict=True):
                probability *= cell[label]
            total[counts] = total.get(counts, Decimal(0)) + probability
    return total


def count_distribution(cells: Sequence[Cell], label: int) -> list[Decimal]:
    """The distribution of how many of the cells say `label`, from every subset of them."""
    distribution = [Decimal(0)] * (len(cells) + 1)
    with localcontext(DIGITS):
        for yes in itertools.product((False, True), repeat=len(cells)):
            probability = Decimal(1)
            for cell, says in zip(cells, yes, strict=True):
                probability *= cell[label] if says else complement(cell, label)
            distribution[sum(yes)] += probability
    return distribution


def count_distribution_cell_by_cell(cells: Sequence[Cell], label: int, most: int) -> list[Decimal]:
    """The same up to `most`, for more cells than have subsets to go through: one cell added after another."""
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
