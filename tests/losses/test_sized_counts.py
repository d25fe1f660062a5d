"""The likelihood of counts over the allowed sizes, compared with an enumeration in plain Python."""

from __future__ import annotations

import itertools
import math

import count_reference as reference
import pytest
import torch
from torch import Tensor

from torchmultiset.distributions import IndependentCounts, size_log_probabilities
from torchmultiset.losses import cell_count_loss, count_table_loss, poisson_count_loss, sized_count_loss

C, MOST = 3, 4
SIZES = [(0, 4), (1, 4), (4, 4), (2, 3)]
sizes = pytest.mark.parametrize(("least", "most"), SIZES)
potential = pytest.mark.parametrize("with_scores", [False, True])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def all_multisets(least: int, most: int) -> list[tuple[int, ...]]:
    return [counts for counts in itertools.product(range(most + 1), repeat=C) if least <= sum(counts) <= most]


def by_hand(counts: list[list[float]], scores: list[float], least: int, most: int) -> dict[tuple[int, ...], float]:
    """Probability of each multiset from the distributions of the counts of each class."""
    weights = {
        multiset: math.exp(scores[sum(multiset)]) * math.prod(counts[c][n] for c, n in enumerate(multiset))
        for multiset in all_multisets(least, most)
    }
    total = math.fsum(weights.values())
    return {multiset: weight / total for multiset, weight in weights.items()}


@sizes
@potential
def test_the_likelihood_of_a_table_equals_an_enumeration(least, most, with_scores):
    logits, scores = draw(1, C, most + 1), draw(most + 1, seed=1) if with_scores else None
    expected = by_hand(
        [[float(p) for p in reference.softmax(row)] for row in logits[0].tolist()],
        [0.0] * (most + 1) if scores is None else scores.tolist(),
        least,
        most,
    )
    target = torch.tensor([*expected])
    loss = count_table_loss(
        logits.expand(len(target), -1, -1), target, min_size=least, size_scores=scores, reduction="none"
    )
    assert (-loss).exp().tolist() == pytest.approx([*expected.values()], rel=1e-9)


@sizes
@potential
def test_the_likelihood_of_cells_equals_an_enumeration(least, most, with_scores):
    logits, scores = draw(1, 5, C + 1), draw(most + 1, seed=1) if with_scores else None
    joint = reference.counts_of_all_outcomes([reference.softmax(row) for row in logits[0].tolist()])
    counts = [[float(sum(p for one, p in joint.items() if one[c] == n)) for n in range(most + 1)] for c in range(C)]
    expected = by_hand(counts, [0.0] * (most + 1) if scores is None else scores.tolist(), least, most)
    target = torch.tensor([*expected])
    loss = cell_count_loss(
        logits.expand(len(target), -1, -1), target, sizes=(least, most), size_scores=scores, reduction="none"
    )
    assert (-loss).exp().tolist() == pytest.approx([*expected.values()], rel=1e-9)


@sizes
def test_the_likelihood_of_poisson_counts_equals_an_enumeration(least, most):
    log_rates = draw(1, C)
    rates = log_rates[0].exp().tolist()
    poisson = [[math.exp(-rate) * rate**n / math.factorial(n) for n in range(most + 1)] for rate in rates]
    expected = by_hand(poisson, [0.0] * (most + 1), least, most)
    target = torch.tensor([*expected])
    loss = poisson_count_loss(log_rates.expand(len(target), -1), target, sizes=(least, most), reduction="none")
    assert (-loss).exp().tolist() == pytest.approx([*expected.values()], rel=1e-9)
    assert (-loss).exp().sum().item() == pytest.approx(1, rel=1e-12)


@sizes
def test_gradients_of_poisson_counts_pass_gradcheck(least, most):
    target = torch.tensor(all_multisets(least, most))
    log_rates = draw(len(target), C).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: poisson_count_loss(x, target, sizes=(least, most), reduction="none"), (log_rates,)
    )


def test_extreme_poisson_rates_have_finite_losses_and_bounded_gradients():
    """Rates of e^1000 overflow, and those of e^-1000 underflow, even in double precision."""
    target = torch.tensor([[0, 0, 0], [4, 0, 0], [1, 1, 2]])
    for log_rate in (1000.0, -1000.0, 1e6, -1e6):
        log_rates = torch.full((3, C), log_rate, requires_grad=True)
        loss = poisson_count_loss(log_rates, target, sizes=(0, MOST), reduction="none")
        loss.sum().backward()
        assert loss.isfinite().all()
        assert log_rates.grad.abs().max() <= MOST
    log_rates = torch.full((2, C), -math.inf, requires_grad=True)
    loss = poisson_count_loss(log_rates, target[:2], sizes=(0, MOST), reduction="none")
    assert loss.tolist() == [0, math.inf]
    loss[0].backward()
    assert log_rates.grad.eq(0).all()


@pytest.mark.parametrize(("classes", "most", "least"), [(80, 4, 1), (6, 30, 1), (1, 3, 0), (7, 1, 0)])
def test_the_loss_equals_the_negative_log_probability_of_the_belief_in_single_precision(classes, most, least):
    generator = torch.Generator().manual_seed(0)
    log_counts = (5 * torch.randn(6, classes, most + 1, generator=generator)).log_softmax(-1)
    scores = torch.randn(6, most + 1, generator=generator)
    target = torch.zeros(6, classes, dtype=torch.int64)
    for i, size in enumerate([most, least, 1, most, max(least, 1), most]):
        target[i].scatter_add_(0, torch.randint(classes, (size,), generator=generator), torch.ones(size).long())
    loss = sized_count_loss(log_counts, target, min_size=least, size_scores=scores, reduction="none")
    belief = IndependentCounts(log_counts.double(), least, most, scores.double())
    torch.testing.assert_close(loss.double(), -belief.log_probability(target), rtol=1e-5, atol=1e-4)
    assert loss.dtype == torch.float32


def test_a_uniform_table_of_many_classes_does_not_underflow():
    """With 80 classes of 0 to 4 labels each, at most four labels in total have a probability of about 5^-80."""
    logits = torch.zeros(1, 80, 5, requires_grad=True)
    target = torch.zeros(1, 80, dtype=torch.int64)
    target[0, 3] = 2
    loss = count_table_loss(logits, target, min_size=1)
    multisets = math.comb(84, 4) - 1
    assert loss.item() == pytest.approx(math.log(multisets), rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0.1


def test_gradients_of_the_mixture_loss_pass_gradcheck():
    target = torch.tensor([[2, 0, 1], [0, 1, 0]])
    scores = draw(MOST + 1, seed=3).requires_grad_()
    table = draw(2, C, MOST + 1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, s: count_table_loss(x, target, min_size=1, size_scores=s, reduction="none"), (table, scores)
    )
    cells = draw(2, 3, C + 1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, s: cell_count_loss(x, target, sizes=(1, MOST), size_scores=s, reduction="none"), (cells, scores)
    )


def test_impossible_multisets_have_infinite_loss_and_leave_other_gradients_finite():
    logits = draw(2, C, MOST + 1)
    logits[0, 1, 1:] = -math.inf
    logits.requires_grad_()
    loss = count_table_loss(logits, torch.tensor([[1, 2, 0], [1, 0, 1]]), min_size=1, reduction="none")
    assert loss[0] == math.inf
    loss[1].backward()
    assert logits.grad is not None
    assert logits.grad[1].isfinite().all()
    assert loss[1].isfinite()


def test_a_batch_equals_its_examples():
    logits, scores = draw(3, C, MOST + 1), draw(3, MOST + 1, seed=1)
    target = torch.tensor([[2, 0, 1], [0, 1, 0], [0, 0, 4]])
    each = count_table_loss(logits, target, min_size=1, size_scores=scores, reduction="none")
    for i in range(3):
        one = slice(i, i + 1)
        alone = count_table_loss(logits[one], target[one], min_size=1, size_scores=scores[one])
        torch.testing.assert_close(alone, each[i])
    torch.testing.assert_close(
        count_table_loss(logits, target, min_size=1, size_scores=scores, reduction="sum"), each.sum()
    )


def test_the_distribution_of_the_size_equals_an_enumeration():
    log_counts = draw(2, C, MOST + 1).log_softmax(-1)
    found = size_log_probabilities(log_counts).exp().tolist()
    for row, expected in zip(log_counts.exp().tolist(), found, strict=True):
        for size in range(MOST + 1):
            share = math.fsum(
                math.prod(row[c][n] for c, n in enumerate(counts))
                for counts in all_multisets(size, MOST)
                if sum(counts) == size
            )
            assert expected[size] == pytest.approx(share)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: sized_count_loss(torch.zeros(1, C, 3), t),
            "target must hold multisets of 0 to 2 labels, but one has 3",
        ),
        (lambda t: sized_count_loss(torch.zeros(1, C, 5), t, min_size=4), "multisets of 4 to 4 labels"),
        (lambda t: sized_count_loss(torch.zeros(1, C, 5), t, min_size=5), "min_size must be from 0 to M = 4"),
        (
            lambda t: sized_count_loss(torch.zeros(1, C, 5), t, size_scores=torch.zeros(4)),
            r"size_scores must be of shape \(M \+ 1,\) or \(B, M \+ 1\) with M = 4",
        ),
        (lambda t: sized_count_loss(torch.zeros(1, 2, 5), t), "log_counts must be"),
        (lambda t: count_table_loss(torch.zeros(1, C, 5), t, size_scores=torch.zeros(5)), "None without min_size"),
        (lambda t: cell_count_loss(torch.zeros(1, 5, C + 1), t, size_scores=torch.zeros(5)), "None without sizes"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.tensor([[2, 0, 1]]))
