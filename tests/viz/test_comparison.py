"""Paired tests against enumeration and against textbook formulas."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmultiset.viz.comparison import compare, holm, sign_flip


def enumerated(differences: list[int]) -> Fraction:
    """The share of sign assignments whose sum is at least as far from 0."""
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return Fraction(sum(abs(total) >= abs(sum(differences)) for total in sums), len(sums))


def mcnemar(wins: int, losses: int) -> Fraction:
    """Twice the smaller tail of the binomial distribution with p = 1/2, at most 1."""
    tail = sum(comb(wins + losses, k) for k in range(min(wins, losses) + 1))
    return min(Fraction(2 * tail, 2 ** (wins + losses)), Fraction(1))


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_sign_flip_test_equals_the_enumeration_of_all_signs(differences):
    assert sign_flip(np.array(differences, dtype=np.int64)) == pytest.approx(float(enumerated(differences)), rel=1e-9)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 0), (3, 3), (7, 2), (40, 61), (900, 1060)])
def test_with_one_seed_the_test_equals_mcnemars_test(wins, losses):
    differences = np.array([1] * wins + [0] * 50 + [-1] * losses)
    assert sign_flip(differences) == pytest.approx(float(mcnemar(wins, losses)), rel=1e-9)


def test_a_very_small_p_value_is_finite():
    assert 0 <= sign_flip(np.ones(5000, dtype=np.int64)) < 1e-300


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_equals_its_definition(values):
    def adjusted(p):
        ordered = sorted(values)
        steps = [(len(values) - rank) * q for rank, q in enumerate(ordered) if q <= p]
        return min(max(steps), 1.0)

    assert holm(values) == pytest.approx([adjusted(p) for p in values])


def test_an_example_under_two_seeds_counts_as_one_example():
    # Both seeds have the same predictions, so they are the evidence of one.
    ours, theirs = np.array([True] * 6), np.array([False] * 6)
    (one,) = compare({0: ours}, {"other": {0: theirs}})
    (two,) = compare({0: ours, 1: ours}, {"other": {0: theirs, 1: theirs}})
    assert one.p == two.p == 2 / 2**6
    assert (one.wins, two.wins, two.seeds) == (6, 12, 2)


def test_only_common_seeds_are_paired_and_a_method_without_one_is_left_out():
    yes, no = np.array([True] * 8), np.array([False] * 8)
    some = np.array([True] * 7 + [False])
    comparisons = compare({0: yes, 1: yes, 2: some}, {"a": {1: no, 5: yes}, "b": {7: no}, "c": {0: yes, 2: yes}})
    assert [(c.other, c.seeds, c.wins, c.losses) for c in comparisons] == [("a", 1, 8, 0), ("c", 2, 0, 1)]
    assert [c.p for c in comparisons] == [2 / 2**8, 1.0]
    assert [c.adjusted for c in comparisons] == [4 / 2**8, 1.0]
    assert [c.better for c in comparisons] == [True, False]


def test_a_worse_model_is_never_significantly_better():
    (comparison,) = compare({0: np.array([False] * 20)}, {"other": {0: np.array([True] * 20)}})
    assert comparison.adjusted < 0.001
    assert not comparison.better
