"""Chi-square tests of counts, without SciPy."""

from __future__ import annotations

import numpy as np


def assert_uniform(values: np.ndarray, below: int) -> None:
    """Check that values are plausible uniform draws from 0 to `below` - 1: spread neither less evenly nor more."""
    assert values.min() >= 0
    assert values.max() < below
    assert_expected(np.bincount(values.ravel(), minlength=below), np.full(below, values.size / below))


def assert_expected(counts: np.ndarray, expected: np.ndarray) -> None:
    """Check with a two-sided chi-square test that the counts are plausible draws with these expected counts."""
    assert expected.min() >= 5, "too few for a chi-square test"
    assert counts.sum() == round(expected.sum())
    freedom = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty (1931): the cube root of chi-square is nearly normal.
    mean, variance = 1 - 2 / (9 * freedom), 2 / (9 * freedom)
    deviation = ((statistic / freedom) ** (1 / 3) - mean) / variance**0.5
    assert abs(deviation) < 3.5, f"chi-square {statistic:.1f} with {freedom} degrees of freedom"
