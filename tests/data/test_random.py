"""Random numbers by position, compared with Python integers and tested for uniformity."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chance import assert_uniform

from torchmultiset.data._random import draw, draw_distinct, example_keys

WORD = 1 << 64


def mix(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % WORD
    return bits ^ (bits >> 31)


def plain_draw(seed: int, stream: int, index: int, purpose: int, slot: int, below: int) -> int:
    step, bits = 0x9E3779B97F4A7C15, 0
    for number in (seed, stream, index, (purpose << 32) + slot):
        bits = mix(bits ^ mix((number + step) % WORD))
    while True:
        product = (bits >> 32) * below
        if product % (1 << 32) >= (1 << 32) % below:
            return product >> 32
        bits = mix((bits + step) % WORD)


@pytest.mark.parametrize("below", [1, 2, 10, 60_000, 3 << 30, (1 << 31) + 1, 1 << 32])
def test_draw_equals_its_definition_in_python_integers(below: int) -> None:
    # With 2^31 + 1, half of all numbers are redrawn.
    drawn = draw(example_keys(WORD - 1, 2, np.array([0, 7, 1 << 40])), 5, 20, below)
    expected = [[plain_draw(WORD - 1, 2, i, 5, slot, below) for slot in range(20)] for i in (0, 7, 1 << 40)]
    np.testing.assert_array_equal(drawn, expected)


def test_each_number_may_have_its_own_bound() -> None:
    below = np.array([[3, 1 << 31 | 1], [100, 7]])
    drawn = draw(example_keys(0, 0, np.arange(2)), 1, 2, below)
    expected = [[plain_draw(0, 0, i, 1, slot, int(below[i, slot])) for slot in range(2)] for i in range(2)]
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("below", [2, 10, 31, 96, 1000])
def test_draws_are_uniform(below: int) -> None:
    assert_uniform(draw(example_keys(0, 0, np.arange(10_000)), 0, 20, below), below)


def test_draws_with_a_large_bound_are_unbiased() -> None:
    # Without redrawing, every third number would be twice as likely as the others.
    assert_uniform(draw(example_keys(0, 0, np.arange(30_000)), 0, 1, 3 << 30) % 3, 3)


def test_draws_of_neighbours_are_independent() -> None:
    """Pairs that differ in one of seed, stream, index, purpose and slot are uniform over all 100 combinations."""
    indices = np.arange(40_000)
    base = draw(example_keys(0, 0, indices), 0, 2, 10)
    others = {
        "seed": draw(example_keys(1, 0, indices), 0, 1, 10),
        "stream": draw(example_keys(0, 1, indices), 0, 1, 10),
        "index": draw(example_keys(0, 0, indices + 1), 0, 1, 10),
        "purpose": draw(example_keys(0, 0, indices), 1, 1, 10),
        "slot": base[:, 1:],
    }
    for other in others.values():
        assert_uniform(base[:, 0] * 10 + other[:, 0], 100)


def test_choices_without_repeats_are_uniform() -> None:
    chosen = draw_distinct(example_keys(0, 0, np.arange(24_000)), 0, 3, np.full(24_000, 4))
    orders = {order: i for i, order in enumerate(itertools.permutations(range(4), 3))}
    assert_uniform(np.array([orders[tuple(row)] for row in chosen.tolist()]), 24)


def test_choices_without_repeats_respect_the_bound_of_each_row() -> None:
    below = np.tile([4, 9, 25], 1000)
    chosen = draw_distinct(example_keys(0, 0, np.arange(3000)), 0, 4, below)
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    for bound in (4, 9, 25):
        assert_uniform(chosen[below == bound], bound)


def test_no_examples_give_empty_arrays() -> None:
    none = example_keys(0, 0, np.arange(0))
    assert draw(none, 0, 3, 10).shape == (0, 3)
    assert draw_distinct(none, 0, 3, np.arange(0)).shape == (0, 3)


def test_impossible_bounds_are_refused() -> None:
    some = example_keys(0, 0, np.arange(2))
    with pytest.raises(ValueError, match="below must be from 1 to 2\\^32, but is 0"):
        draw(some, 0, 1, 0)
    with pytest.raises(ValueError, match="below must be at least slots = 3"):
        draw_distinct(some, 0, 3, np.array([3, 2]))
