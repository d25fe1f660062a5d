from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import NUM_CLASSES, multisets, problems

from torchmultiset.multiset import free_labels, from_labels
from torchmultiset.oracle import oracle, oracle_entropy


@given(st.data())
def test_oracle_spreads_evenly_over_items(data):
    num_classes = data.draw(NUM_CLASSES)
    free = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    found = oracle(to_counts(free, num_classes), dtype=torch.float64)
    for row, multiset in zip(found.tolist(), free, strict=True):
        wanted = reference.oracle(multiset)
        assert row == pytest.approx([wanted.get(label, 0.0) for label in range(num_classes)], abs=1e-12)
        assert sum(row) == pytest.approx(1.0 if multiset else 0.0)


def test_oracle_has_the_requested_dtype():
    free = torch.tensor([[1, 2]])
    assert oracle(free).dtype == torch.get_default_dtype()
    assert oracle(free, dtype=torch.bfloat16).dtype == torch.bfloat16


@given(st.data())
def test_entropies_of_the_oracle_equal_the_loop(data):
    num_classes = data.draw(NUM_CLASSES)
    free = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    counts = to_counts(free, num_classes)
    for multiset, items, classes in zip(
        free,
        oracle_entropy(counts).tolist(),
        oracle_entropy(counts, of="classes").tolist(),
        strict=True,
    ):
        each = [1 / multiset.total() for _ in multiset.elements()]
        assert items == pytest.approx(reference.entropy(each), abs=1e-6)
        assert classes == pytest.approx(reference.entropy(reference.oracle(multiset).values()), abs=1e-6)


@given(problems(min_size=1))
def test_remark_1_an_oracle_label_never_lowers_precision_or_recall(problem):
    """For any prefix, correct or not, and any label to which the oracle then gives a positive probability."""
    probabilities = oracle(free_labels(problem.target, problem.labels)).tolist()
    for target, labels, steps in zip(problem.multisets, problem.trajectories, probabilities, strict=True):
        for t, step in enumerate(steps):
            before = Counter(labels[:t])
            for label in (c for c, p in enumerate(step) if p > 0):
                after = before + Counter([label])
                assert reference.precision(after, target) >= reference.precision(before, target)
                assert reference.recall(after, target) > reference.recall(before, target)


@given(st.data())
def test_remarks_2_and_3_the_oracle_generates_exactly_the_permutations_of_the_target(data):
    num_classes = data.draw(st.sampled_from([1, 2, 3]))
    target = data.draw(multisets(num_classes, min_size=1, max_size=4))
    every = list(itertools.product(range(num_classes), repeat=target.total()))
    counts = to_counts([target], num_classes).expand(len(every), -1)
    labels = torch.tensor(every)
    steps = oracle(free_labels(counts, labels), dtype=torch.float64).gather(-1, labels[..., None])
    probabilities = steps.squeeze(-1).prod(-1).tolist()
    orderings = math.factorial(target.total()) / math.prod(math.factorial(n) for n in target.values())
    for sequence, probability in zip(every, probabilities, strict=True):
        if Counter(sequence) == target:
            assert reference.precision(Counter(sequence), target) == 1
            assert reference.recall(Counter(sequence), target) == 1
            assert probability == pytest.approx(1 / orderings)
        else:
            assert probability == 0
    assert sum(probabilities) == pytest.approx(1)


@given(st.data())
def test_remark_4_the_entropy_over_items_falls_strictly(data):
    num_classes = data.draw(NUM_CLASSES)
    target = data.draw(multisets(num_classes, min_size=2))
    order = data.draw(st.permutations(sorted(target.elements())))
    entropies = oracle_entropy(free_labels(to_counts([target], num_classes), torch.tensor([order])))[0]
    assert (entropies.diff() < 0).all()
    assert entropies.tolist() == pytest.approx([math.log(target.total() - t) for t in range(target.total())], abs=1e-6)


def test_the_entropy_over_classes_can_rise():
    """From {a, a, b} to {a, b} it rises, so Remark 4 holds for items only."""
    free = free_labels(from_labels([[0, 0, 1]], 2), torch.tensor([[0, 0, 1]]))
    by_class = oracle_entropy(free, of="classes")[0]
    assert by_class[1] > by_class[0]
