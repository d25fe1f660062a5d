from __future__ import annotations

import itertools
import math
import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counters, to_counts

from torchmultiset.multiset import from_index, how_many, index_of

COUNTS = torch.tensor([[1, 0, 2], [0, 1, 0]])


def enumerated(num_classes: int, low: int, high: int) -> list[Counter[int]]:
    """All multisets, sorted by size, then by their highest label, then by the next highest, and so on."""
    return [
        Counter(items)
        for size in range(low, high + 1)
        for items in sorted(
            itertools.combinations_with_replacement(range(num_classes), size), key=lambda items: items[::-1]
        )
    ]


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 3), (1, 1), (1, 4), (3, 5)])
def test_an_index_is_the_position_in_an_enumeration(num_classes, low, high):
    every = enumerated(num_classes, low, high)
    index = torch.arange(len(every))
    assert torch.equal(index_of(to_counts(every, num_classes), max_size=high, min_size=low), index)
    assert to_counters(from_index(index, num_classes, max_size=high, min_size=low)) == every


def test_multisets_of_four_of_ten_digits_have_the_indices_below_715():
    quartets = [Counter(items) for items in itertools.combinations_with_replacement(range(10), 4)]
    index = index_of(to_counts(quartets, 10), max_size=4, min_size=4)
    assert sorted(index.tolist()) == list(range(715))


@given(st.integers(1, 90), st.integers(0, 10), st.data())
def test_an_index_is_a_sum_of_binomials_and_can_be_inverted(num_classes, high, data):
    low = data.draw(st.integers(0, high))
    rows = data.draw(
        st.lists(
            st.lists(st.integers(0, num_classes - 1), min_size=low, max_size=high).map(sorted), min_size=1, max_size=4
        )
    )
    wanted = [
        sum(math.comb(num_classes + size - 1, size) for size in range(low, len(row)))
        + sum(math.comb(label + i - 1, i) for i, label in enumerate(row, start=1))
        for row in rows
    ]
    counts = to_counts([Counter(row) for row in rows], num_classes)
    index = index_of(counts, max_size=high, min_size=low)
    assert index.tolist() == wanted
    assert torch.equal(from_index(index, num_classes, max_size=high, min_size=low), counts)


@pytest.mark.parametrize(("num_classes", "size"), [(2, 200), (1, 300), (200, 2), (80, 17)])
def test_indices_are_exact_up_to_the_last(num_classes, size):
    """With many small binomials, and with a last index just below 2**63."""
    last = sum(math.comb(num_classes + k - 1, k) for k in range(size + 1)) - 1
    full = to_counts([Counter({num_classes - 1: size})], num_classes)
    assert index_of(full, max_size=size).tolist() == [last]
    assert torch.equal(from_index(torch.tensor([last]), num_classes, max_size=size), full)


def test_leading_dimensions_are_kept_for_any_memory_layout():
    index = torch.arange(6).reshape(2, 3).T
    counts = from_index(index, 2, max_size=2)
    assert counts.shape == (3, 2, 2)
    assert torch.equal(index_of(counts, max_size=2), index)
    assert torch.equal(index_of(counts.transpose(0, 1), max_size=2), index.T)
    one = from_index(torch.tensor(4), 2, max_size=2)
    assert one.tolist() == [1, 1]
    assert index_of(one, max_size=2) == 4
    none = from_index(torch.zeros(0, 3, dtype=torch.int64), 2, max_size=2)
    assert none.shape == (0, 3, 2)
    assert index_of(none, max_size=2).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: index_of(COUNTS, max_size=2), "counts must hold multisets of 0 to 2 labels, but one has 3"),
        (
            lambda: index_of(COUNTS, max_size=3, min_size=2),
            "counts must hold multisets of 2 to 3 labels, but one has 1",
        ),
        (lambda: index_of(COUNTS - 1, max_size=3), "counts must hold non-negative counts"),
        (lambda: index_of(COUNTS.float(), max_size=3), "counts must be an int64 tensor of shape (..., C)"),
        (lambda: index_of(torch.tensor(1), max_size=3), "counts must be an int64 tensor of shape (..., C)"),
        (lambda: index_of(COUNTS, max_size=3, min_size=4), "max_size must be at least min_size = 4, but is 3"),
        (lambda: from_index(torch.tensor([10]), 3, max_size=2), "index must hold indices from 0 to 9, but holds 10"),
        (lambda: from_index(torch.tensor([3, -1]), 3, max_size=2), "index must hold indices from 0 to 9, but holds -1"),
        (lambda: from_index(torch.tensor([1.0]), 3, max_size=2), "index must be an int64 tensor, but is a float32"),
        (lambda: from_index(torch.tensor([1]), 0, max_size=2), "num_classes must be at least 1, but is 0"),
        (lambda: from_index(torch.tensor([1]), 80, max_size=18), str(how_many(80, 18, min_size=0))),
        (lambda: index_of(torch.ones(1, 80).long(), max_size=80), "80 classes"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_multisets_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
