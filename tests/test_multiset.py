from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counters, to_counts
from strategies import NUM_CLASSES, Problem, multisets, problems

from torchmultiset import multiset
from torchmultiset.multiset import (
    cardinality,
    difference,
    equal,
    free_labels,
    from_labels,
    hits,
    how_many,
    intersection,
    to_labels,
    unfinished,
    union,
)

END = pytest.mark.parametrize("end", [False, True], ids=["no END", "END"])


def a_problem(end: bool) -> st.SearchStrategy[Problem]:
    return problems(end=end)


@given(st.data())
def test_from_labels_equals_counter(data):
    num_classes = data.draw(NUM_CLASSES)
    wanted = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    rows = [sorted(multiset.elements()) for multiset in wanted]
    counts = from_labels(rows, num_classes)
    assert counts.dtype == torch.int64
    assert counts.shape == (len(wanted), num_classes)
    assert to_counters(counts) == wanted


@given(st.lists(st.lists(st.integers(-3, 4), min_size=4, max_size=4), min_size=1, max_size=4), st.data())
def test_padding_and_masked_labels_do_not_count(rows, data):
    mask = data.draw(
        st.lists(
            st.lists(st.booleans(), min_size=4, max_size=4),
            min_size=len(rows),
            max_size=len(rows),
        )
    )
    counted = [
        Counter(x for x, counts in zip(row, keep, strict=True) if counts and x >= 0)
        for row, keep in zip(rows, mask, strict=True)
    ]
    assert to_counters(from_labels(torch.tensor(rows), 5, where=torch.tensor(mask))) == counted


def test_masked_labels_may_be_out_of_range():
    labels, where = torch.tensor([[0, 99, -7]]), torch.tensor([[True, False, False]])
    assert from_labels(labels, 2, where=where).tolist() == [[1, 0]]


def test_from_labels_keeps_leading_dimensions():
    labels = torch.tensor([[[0, 1], [1, 1]], [[2, -1], [-1, -1]]])
    assert from_labels(labels, 3).tolist() == [[[1, 1, 0], [0, 2, 0]], [[0, 0, 1], [0, 0, 0]]]
    assert from_labels(torch.tensor([1, 1]), 3).tolist() == [0, 2, 0]


@pytest.mark.parametrize("rows", [[[]], [[], []]])
def test_rows_without_labels_are_empty_multisets(rows):
    assert from_labels(rows, 3).tolist() == [[0, 0, 0]] * len(rows)
    assert to_labels(from_labels(rows, 3)).shape == (len(rows), 0)


@given(st.data())
def test_from_labels_is_the_inverse_of_to_labels(data):
    num_classes = data.draw(NUM_CLASSES)
    wanted = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    counts = to_counts(wanted, num_classes)
    labels = to_labels(counts)
    largest = max(multiset.total() for multiset in wanted)
    assert labels.tolist() == [sorted(multiset.elements()) + [-1] * (largest - multiset.total()) for multiset in wanted]
    assert torch.equal(from_labels(labels, num_classes), counts)


@given(st.data())
def test_the_algebra_equals_that_of_counter(data):
    num_classes = data.draw(NUM_CLASSES)
    pairs = data.draw(st.lists(st.tuples(multisets(num_classes), multisets(num_classes)), min_size=1, max_size=4))
    left, right = (list(side) for side in zip(*pairs, strict=True))
    a, b = to_counts(left, num_classes), to_counts(right, num_classes)
    assert to_counters(difference(a, b)) == [x - y for x, y in pairs]
    assert to_counters(intersection(a, b)) == [x & y for x, y in pairs]
    assert to_counters(union(a, b)) == [x | y for x, y in pairs]
    assert cardinality(a).tolist() == [x.total() for x in left]
    assert equal(a, b).tolist() == [x == y for x, y in pairs]
    assert equal(a, a.clone()).all()


def test_equality_depends_on_multiplicity_but_not_on_order():
    x, y, z = 0, 1, 2
    same, other, fewer = from_labels([[y, x, x], [z, y, z], [x, y]], 3)
    given_ = from_labels([[x, y, x]], 3)[0]
    assert equal(given_, same)
    assert not equal(given_, other)
    assert not equal(given_, fewer)


@END
@given(data=st.data())
def test_free_labels_equal_the_loop_of_definition_1(end, data):
    problem = data.draw(a_problem(end))
    free = free_labels(problem.target, problem.labels, end=end)
    assert free.shape == (*problem.labels.shape, problem.num_classes + end)
    for row, target, labels in zip(free, problem.multisets, problem.trajectories, strict=True):
        wanted = reference.free_multisets(target, labels, problem.num_classes if end else None)
        assert to_counters(row) == wanted


@pytest.mark.parametrize("wide", [1, 1_000])
def test_both_ways_of_accumulating_free_labels_equal_the_loop(wide, monkeypatch):
    monkeypatch.setattr(multiset, "WIDE_ROWS", wide)
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 3, (20, 7), generator=generator)
    labels = torch.randint(0, 7, (20, 12), generator=generator)
    for row, counts, emitted in zip(free_labels(target, labels), to_counters(target), labels.tolist(), strict=True):
        assert to_counters(row) == reference.free_multisets(counts, emitted)


@END
@given(data=st.data())
def test_hits_and_unfinished_equal_the_loop(end, data):
    problem = data.draw(a_problem(end))
    hit = hits(problem.target, problem.labels, end=end).tolist()
    open_ = unfinished(problem.target, problem.labels, end=end).tolist()
    for b, (target, labels) in enumerate(zip(problem.multisets, problem.trajectories, strict=True)):
        free = reference.free_multisets(target, labels, problem.num_classes if end else None)
        assert hit[b] == [now[label] > 0 for now, label in zip(free, labels, strict=True)]
        assert open_[b] == [bool(now) for now in free]


def test_an_early_end_removes_nothing_and_an_end_at_its_time_finishes():
    target, end = from_labels([[0], []], 1), 1
    labels = torch.tensor([[end, 0, 0, end, end], [0, end, end, 0, 0]])
    free = free_labels(target, labels, end=True)
    assert free[0].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]]
    assert free[1].tolist() == [[0, 1], [0, 1], [0, 0], [0, 0], [0, 0]]
    assert hits(target, labels, end=True).tolist() == [
        [False, True, False, True, False],
        [False, True, False, False, False],
    ]


@given(problems())
def test_each_label_removes_at_most_itself(problem):
    """Definition 1 step by step: Y_t is Y_{t-1} without the label emitted at t - 1."""
    free = free_labels(problem.target, problem.labels)
    assert torch.equal(free[:, 0], problem.target)
    for t in range(1, problem.labels.shape[1]):
        emitted = from_labels(problem.labels[:, t - 1 : t], problem.num_classes)
        assert torch.equal(free[:, t], difference(free[:, t - 1], emitted))


@given(problems(), st.randoms(use_true_random=False))
def test_free_labels_do_not_depend_on_the_order_of_the_prefix(problem, shuffler: random.Random):
    labels = problem.labels.tolist()
    for row in labels:
        prefix = row[:-1]
        shuffler.shuffle(prefix)
        row[:-1] = prefix
    again = free_labels(problem.target, torch.tensor(labels))
    assert torch.equal(again[:, -1], free_labels(problem.target, problem.labels)[:, -1])


def test_an_empty_batch_gives_empty_tensors():
    target, labels = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64)
    assert free_labels(target, labels).shape == (0, 2, 3)
    assert hits(target, labels).shape == (0, 2)
    assert to_labels(target).shape == (0, 0)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 3), (1, 1), (1, 4), (3, 5)])
def test_how_many_equals_enumeration(num_classes, low, high):
    every = {
        frozenset(Counter(items).items())
        for size in range(low, high + 1)
        for items in itertools.combinations_with_replacement(range(num_classes), size)
    }
    assert how_many(num_classes, high, min_size=low) == len(every)


def test_how_many_excludes_the_empty_multiset_by_default_as_in_the_footnote():
    assert how_many(3, 2) == 3 + 6
