"""The multiset with the highest expected F1, beside an enumeration of all multisets."""

from __future__ import annotations

import itertools

import pytest
import torch

from torchmultiset.distributions import IndependentCounts, best_by_f1

MOST = 3


def beliefs(number: int, classes: int, least: int) -> IndependentCounts:
    generator = torch.Generator().manual_seed(number + least)
    return IndependentCounts(2 * torch.randn(number, classes, MOST + 1, generator=generator), least, MOST)


@pytest.mark.parametrize("least", [0, 1, 3])
def test_the_best_of_all_multisets_is_found(least):
    belief = beliefs(50, 3, least)
    probability = belief.count_probabilities().tolist()
    multisets = [y for y in itertools.product(range(MOST + 1), repeat=3) if least <= sum(y) <= MOST]
    for i, found in enumerate(best_by_f1(belief, least, MOST).tolist()):
        expected_size = sum(n * p for row in probability[i] for n, p in enumerate(row))

        def score(y, i=i, expected_size=expected_size):
            if not any(y):
                return belief.size_probabilities()[i, 0].item()
            shared = sum(min(n, y[c]) * p for c, row in enumerate(probability[i]) for n, p in enumerate(row))
            return 2 * shared / (expected_size + sum(y))

        assert score(tuple(found)) == pytest.approx(max(map(score, multisets)))


def test_uncertain_labels_are_predicted_if_they_are_many():
    # Eight labels with a probability of 0.4 each: the most probable multiset has none of them.
    belief = IndependentCounts(torch.tensor([[[0.6, 0.4, *[0.0] * 7]] * 8]).log(), 0, 8)
    assert belief.best().sum() == 0
    assert best_by_f1(belief, 0, 8).sum() == 8


def test_certain_multisets_are_kept():
    counts = torch.tensor([[2, 0, 1], [0, 0, 0], [0, 3, 0]])
    belief = IndependentCounts(torch.nn.functional.one_hot(counts, MOST + 1).double().log(), 0, MOST)
    assert torch.equal(best_by_f1(belief, 0, MOST), counts)
