"""Distributions over multisets, compared with an enumeration in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchmultiset.distributions import Belief, IndependentCounts, ListedMultisets

Multiset = tuple[int, ...]
Listed = dict[Multiset, float]
SIZES = [(0, 3), (3, 3), (1, 2), (0, 0), (2, 4)]
B, C = 4, 3


def all_multisets(least: int, most: int, classes: int = C) -> list[Multiset]:
    """Counts of all multisets of `least` to `most` labels."""
    return [
        tuple(labels.count(c) for c in range(classes))
        for size in range(least, most + 1)
        for labels in itertools.combinations_with_replacement(range(classes), size)
    ]


def normalised(weights: Listed) -> Listed:
    total = math.fsum(weights.values())
    return {multiset: weight / total for multiset, weight in weights.items()}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def independent(
    least: int, most: int, log_probabilities: Tensor | None = None
) -> tuple[IndependentCounts, list[Listed]]:
    """A distribution of independent counts, and the probabilities of all multisets for each input."""
    log_probabilities = draw(B, C, most + 1) if log_probabilities is None else log_probabilities
    expected = [
        normalised(
            {
                multiset: math.prod(math.exp(row[c][n]) for c, n in enumerate(multiset))
                for multiset in all_multisets(least, most, len(row))
            }
        )
        for row in log_probabilities.tolist()
    ]
    return IndependentCounts(log_probabilities, least, most), expected


def listed(least: int, most: int, scores: Tensor | None = None) -> tuple[ListedMultisets, list[Listed]]:
    """A listed distribution, and its probabilities; multisets are ordered by size, then by their highest labels."""
    order = [
        tuple(labels.count(c) for c in range(C))
        for size in range(least, most + 1)
        for labels in sorted(itertools.combinations_with_replacement(range(C), size), key=lambda row: row[::-1])
    ]
    scores = draw(B, len(order)) if scores is None else scores
    rows = [dict(zip(order, map(math.exp, row), strict=True)) for row in scores.tolist()]
    return ListedMultisets(scores, C, least, most), [normalised(row) for row in rows]


def sized(least: int, most: int) -> tuple[IndependentCounts, list[Listed]]:
    """Independent counts with a size potential for each input."""
    log_probabilities = draw(B, C, most + 1)
    scores = 2 * draw(B, most + 1)
    rows = [
        normalised(
            {
                multiset: math.exp(score[sum(multiset)])
                * math.prod(math.exp(row[c][n]) for c, n in enumerate(multiset))
                for multiset in all_multisets(least, most)
            }
        )
        for row, score in zip(log_probabilities.tolist(), scores.tolist(), strict=True)
    ]
    return IndependentCounts(log_probabilities, least, most, scores), rows


MAKE: dict[str, Callable[..., tuple[Belief, list[Listed]]]] = {
    "independent": independent,
    "sized": sized,
    "listed": listed,
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
sizes = pytest.mark.parametrize(("least", "most"), SIZES)


@every
@sizes
def test_probabilities_equal_enumeration_and_sum_to_one(make, least, most):
    belief, expected = make(least, most)
    multisets = all_multisets(0, most + 1)
    found = {
        multiset: belief.log_probability(torch.tensor([multiset]).expand(B, -1)).exp().tolist()
        for multiset in multisets
    }
    for i, row in enumerate(expected):
        assert math.fsum(chances[i] for chances in found.values()) == pytest.approx(1, abs=1e-12)
        for multiset in multisets:  # 0 if too small or too large
            assert found[multiset][i] == pytest.approx(row.get(multiset, 0.0), rel=1e-9, abs=0)


@every
@sizes
def test_the_best_multiset_is_the_most_probable(make, least, most):
    belief, expected = make(least, most)
    assert [tuple(row) for row in belief.best().tolist()] == [max(row, key=row.__getitem__) for row in expected]


@every
@sizes
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_the_k_most_probable_are_sorted(make, least, most, k):
    belief, expected = make(least, most)
    ranked = belief.ranked(k)
    assert ranked.counts.shape == (B, k, C)
    assert ranked.log_probability.shape == (B, k)
    for row, counts, logs in zip(expected, ranked.counts.tolist(), ranked.log_probability.tolist(), strict=True):
        order = sorted(row, key=row.__getitem__, reverse=True)[:k]
        assert [tuple(one) for one in counts] == order + [(0,) * C] * (k - len(order))
        assert [math.exp(log) for log in logs] == pytest.approx(
            [*(row[multiset] for multiset in order), *[0.0] * (k - len(order))], rel=1e-9
        )


@every
@sizes
def test_counts_and_sizes_are_marginals_of_the_multisets(make, least, most):
    belief, expected = make(least, most)
    counts, of_size = belief.count_probabilities(), belief.size_probabilities()
    assert counts.shape == (B, C, most + 1)
    assert of_size.shape == (B, most + 1)
    for i, row in enumerate(expected):
        for n in range(most + 1):
            for c in range(C):
                share = math.fsum(chance for multiset, chance in row.items() if multiset[c] == n)
                assert float(counts[i, c, n]) == pytest.approx(share, abs=1e-12)
            share = math.fsum(chance for multiset, chance in row.items() if sum(multiset) == n)
            assert float(of_size[i, n]) == pytest.approx(share, abs=1e-12)


@every
@sizes
def test_given_a_size_the_distribution_is_conditional_on_it(make, least, most):
    belief, expected = make(least, most)
    for size in range(least, most + 1):
        known = belief.given_size(size)
        left = [normalised({one: chance for one, chance in row.items() if sum(one) == size}) for row in expected]
        assert [tuple(row) for row in known.best().tolist()] == [max(row, key=row.__getitem__) for row in left]
        for multiset in all_multisets(0, most + 1):
            found = known.log_probability(torch.tensor([multiset]).expand(B, -1)).exp().tolist()
            assert found == pytest.approx([row.get(multiset, 0.0) for row in left], rel=1e-9, abs=0)


@every
def test_a_batch_equals_its_examples(make):
    belief, _ = make(1, 3)
    for i in range(B):
        if isinstance(belief, IndependentCounts):
            scores = None if belief.size_scores is None else belief.size_scores[i : i + 1]
            alone: Belief = IndependentCounts(belief.log_probabilities[i : i + 1], 1, 3, scores)
        else:
            alone = ListedMultisets(belief.log_probabilities[i : i + 1], C, 1, 3)
        assert torch.equal(alone.best()[0], belief.best()[i])
        assert torch.equal(alone.ranked(9).counts[0], belief.ranked(9).counts[i])
        torch.testing.assert_close(alone.ranked(9).log_probability[0], belief.ranked(9).log_probability[i])
        torch.testing.assert_close(alone.count_probabilities()[0], belief.count_probabilities()[i])
        torch.testing.assert_close(alone.size_probabilities()[0], belief.size_probabilities()[i])


def test_equally_probable_multisets_are_each_found_once():
    """If all multisets are equally probable, the ranking has no duplicates."""
    for belief, _ in (
        independent(0, 3, torch.zeros(1, C, 4, dtype=torch.float64)),
        listed(0, 3, torch.zeros(1, 20, dtype=torch.float64)),
    ):
        counts, log_probability = belief.ranked(20)
        assert {tuple(row) for row in counts[0].tolist()} == set(all_multisets(0, 3))
        assert log_probability.exp().tolist() == [pytest.approx([1 / 20] * 20)]
        best = belief.log_probability(belief.best())
        assert best.exp().item() == pytest.approx(1 / 20)


def test_the_best_multiset_respects_the_sizes():
    # One of each class is most probable, but at most two labels are allowed. Dropping class 1 costs least.
    sure = torch.tensor([[[0.1, 0.9, 0.0], [0.3, 0.7, 0.0], [0.2, 0.8, 0.0]]], dtype=torch.float64)
    belief, _ = independent(0, 2, sure.log())
    assert belief.best().tolist() == [[1, 0, 1]]
    # Exactly two labels are required, and class 0 has at most one.
    belief, _ = independent(2, 2, torch.tensor([[[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]]], dtype=torch.float64).log())
    assert belief.best().tolist() == [[0, 2]]


def test_impossible_multisets_are_not_found():
    log_probabilities = draw(2, C, 4)
    log_probabilities[0, 1, 1:] = -math.inf  # class 1 never occurs
    log_probabilities[1, 0, 0] = -math.inf  # class 0 always occurs
    belief, expected = independent(0, 3, log_probabilities)
    found = belief.ranked(30)
    for row, counts, logs in zip(expected, found.counts.tolist(), found.log_probability.tolist(), strict=True):
        possible = {multiset for multiset, chance in row.items() if chance > 0}
        assert {tuple(one) for one, log in zip(counts, logs, strict=True) if log > -math.inf} == possible
        assert not any(any(one) for one, log in zip(counts, logs, strict=True) if log == -math.inf)
    assert belief.log_probability(torch.tensor([[0, 1, 0], [0, 1, 0]])).tolist() == [-math.inf, -math.inf]
    for marginal in (belief.count_probabilities(), belief.size_probabilities()):
        torch.testing.assert_close(marginal.sum(-1), torch.ones_like(marginal.sum(-1)))
    assert belief.count_probabilities()[0, 1].tolist() == [1, 0, 0, 0]
    scores = draw(1, 20)
    scores[0, 3:] = -math.inf
    belief, expected = listed(0, 3, scores)
    found = belief.ranked(5)
    assert found.log_probability.exp()[0].sum().item() == pytest.approx(1)
    assert found.counts[0, 3:].tolist() == [[0] * C] * 2
    assert found.log_probability[0, 3:].tolist() == [-math.inf] * 2


def test_scores_are_unnormalised_and_converted_to_double_precision():
    log_probabilities = draw(B, C, 4)
    belief = IndependentCounts((log_probabilities + 300).float(), 0, 3)
    other = IndependentCounts((log_probabilities + 300).float().double() - 250, 0, 3)
    assert belief.count_probabilities().dtype == torch.float64
    torch.testing.assert_close(belief.count_probabilities(), other.count_probabilities())
    torch.testing.assert_close(belief.ranked(4).log_probability, other.ranked(4).log_probability)


def test_one_class_and_empty_batches_are_allowed():
    belief = IndependentCounts(torch.tensor([[[0.2, 0.3, 0.5]]]).log(), 0, 2)
    assert belief.best().tolist() == [[2]]
    assert belief.ranked(3).counts.tolist() == [[[2], [1], [0]]]
    empty = IndependentCounts(torch.zeros(0, C, 3), 0, 2)
    assert empty.best().shape == (0, C)
    assert empty.ranked(2).counts.shape == (0, 2, C)
    assert empty.size_probabilities().shape == (0, 3)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: IndependentCounts(torch.zeros(1, 3, 4), 0, 4), r"log_probabilities must be of shape \(B, C, 5\)"),
        (
            lambda: IndependentCounts(torch.zeros(1, 3, 3), 0, 2, torch.zeros(1, 4)),
            r"size_scores must be of shape \(B, 3\)",
        ),
        (lambda: IndependentCounts(torch.zeros(1, 3, 3), 3, 2), "least must be from 0 to most = 2, but is 3"),
        (
            lambda: ListedMultisets(torch.zeros(1, 7), 3, 0, 2),
            r"log_probabilities must be of shape \(B, 10\), one for each multiset",
        ),
        (lambda: independent(1, 3)[0].given_size(4), "size must be from 1 to 3, but is 4"),
        (lambda: listed(1, 3)[0].given_size(0), "size must be from 1 to 3, but is 0"),
        (lambda: independent(0, 3)[0].ranked(0), "k must be at least 1"),
        (lambda: listed(0, 3)[0].ranked(0), "k must be at least 1"),
        (lambda: independent(0, 3)[0].log_probability(torch.zeros(B, 2, dtype=torch.int64)), "counts must be"),
        (lambda: listed(0, 3)[0].log_probability(torch.zeros(2, C, dtype=torch.int64)), "counts must be"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
