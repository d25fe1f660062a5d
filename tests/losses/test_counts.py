from __future__ import annotations

import itertools
import math

import count_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchmultiset.losses import cell_count_loss, count_table_loss, poisson_count_loss

INF = math.inf


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss_of_cells(logits: list[list[float]], target: list[int]) -> float:
    """Negative log-probability of the counts, by enumeration of the outcomes of all cells."""
    joint = reference.counts_of_all_outcomes([reference.softmax(row) for row in logits])
    return -math.fsum(
        reference.log(sum(p for counts, p in joint.items() if counts[label] == count))
        for label, count in enumerate(target)
    )


def gradient_of(loss: Tensor, scores: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, scores)
    return gradient


# cell_count_loss


@given(st.data())
def test_counts_of_cells_equal_a_sum_over_all_outcomes(data):
    batch, cells, classes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    row = st.lists(st.floats(-8, 8), min_size=classes + 1, max_size=classes + 1)
    logits = data.draw(st.lists(st.lists(row, min_size=cells, max_size=cells), min_size=batch, max_size=batch))
    counts = st.lists(st.integers(0, cells), min_size=classes, max_size=classes)
    target = data.draw(st.lists(counts, min_size=batch, max_size=batch))
    found = cell_count_loss(torch.tensor(logits, dtype=torch.float64), torch.tensor(target), reduction="none")
    wanted = [loss_of_cells(*example) for example in zip(logits, target, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_probabilities_of_all_counts_of_a_class_sum_to_one():
    logits = random_logits(1, 6, 2).expand(7, 6, 2)
    loss = cell_count_loss(logits, torch.arange(7)[:, None], reduction="none")
    assert (-loss).exp().sum().item() == pytest.approx(1, rel=1e-12)


def test_three_cells_by_hand():
    """One label of class 0 has probability 0.5 * 0.8 + 0.5 * 0.2, and none of class 1 has 0.7 * 0.4."""
    cells = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.0, 0.8], [0.0, 0.6, 0.4]]])
    loss = cell_count_loss(cells.log(), torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(-math.log(0.5) - math.log(0.28), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_loss_of_many_cells_is_accurate_in_float32(scale):
    """With 81 cells, ten classes and up to ten labels of one, compared with adding one cell at a time."""
    target = torch.tensor([[0, 0, 10, 1, 0, 0, 0, 3, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]])
    logits = random_logits(2, 81, 11, scale=scale).float()
    wanted = []
    for rows, counts in zip(logits.tolist(), target.tolist(), strict=True):
        cells = [reference.softmax(row) for row in rows]
        found = [reference.count_distribution_cell_by_cell(cells, label, k)[k] for label, k in enumerate(counts)]
        wanted.append(-math.fsum(map(reference.log, found)))
    assert cell_count_loss(logits, target, reduction="none").tolist() == pytest.approx(wanted, rel=1e-5)


def test_the_order_of_the_cells_does_not_matter():
    target = torch.tensor([[2, 0, 1], [0, 0, 0]])
    logits = random_logits(2, 13, 4)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        cell_count_loss(logits[:, order], target, reduction="none"), cell_count_loss(logits, target, reduction="none")
    )


def test_for_an_empty_target_all_cells_should_predict_nothing():
    logits = random_logits(2, 5, 3)
    loss = cell_count_loss(logits, torch.zeros(2, 2, dtype=torch.int64), reduction="none")
    wanted = -torch.log(1 - logits.softmax(-1)[..., :2]).sum((1, 2))
    torch.testing.assert_close(loss, wanted)


def test_ten_thousand_classes_have_exact_values_and_gradients():
    classes, target = 10_000, torch.zeros(2, 10_000, dtype=torch.int64)
    target[0, 7], target[0, 9_999], target[1, 4_321] = 2, 1, 4
    logits = random_logits(2, 6, classes + 1, scale=1.0)
    logits[0, :3, 7] += 9
    logits[..., -1] += 5
    logits.requires_grad_()
    loss = cell_count_loss(logits, target, reduction="none")
    p = logits.detach().softmax(-1)
    for b, items in enumerate([{7: 2, 9_999: 1}, {4_321: 4}]):
        nothing = torch.log1p(-p[b, :, :-1]).sum(0)
        wanted = -nothing.sum().item()
        for label, count in items.items():
            of_count = 0.0
            for yes in itertools.combinations(range(6), count):
                of_count += math.prod(q if i in yes else 1 - q for i, q in enumerate(p[b, :, label].tolist()))
            wanted += nothing[label].item() - math.log(of_count)
        assert loss[b].item() == pytest.approx(wanted, rel=1e-9)
    gradient = gradient_of(loss.sum(), logits)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2, 6).double(), atol=1e-12, rtol=0)
    assert (gradient[1, :, 4_321] < 0).all()
    assert (gradient[1, :, :4_321] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confident_correct_scores_have_loss_zero_and_wrong_ones_a_gradient(dtype):
    target = torch.tensor([[2, 0, 1]])
    right = torch.full((1, 5, 4), -100.0, dtype=dtype)
    right[0, range(5), [0, 3, 2, 0, 3]] = 100.0
    assert cell_count_loss(right, target).item() == pytest.approx(0, abs=1e-6)
    nothing = torch.full((1, 5, 4), -100.0, dtype=dtype)
    nothing[..., 3] = 100.0
    loss = cell_count_loss(nothing.requires_grad_(), target)
    ways = math.log(math.comb(5, 2)) + math.log(5)  # three cells must predict a class of probability e^-200
    assert loss.item() == pytest.approx(600 - ways, rel=1e-5)
    gradient = gradient_of(loss, nothing)
    assert gradient[0, :, 0].tolist() == pytest.approx([-0.4] * 5, rel=1e-4)
    assert gradient[0, :, 1].tolist() == pytest.approx([0] * 5, abs=1e-6)
    assert gradient[0, :, 2].tolist() == pytest.approx([-0.2] * 5, rel=1e-4)


def test_only_impossible_multisets_have_infinite_loss():
    logits = random_logits(4, 3, 3)
    logits[0, :, 0] = -INF  # no cell can predict 0, and the target has none
    logits[1, :, 0] = -INF  # the target has one
    logits[2, 0, 1:] = -INF  # one cell must predict 0, and the target has two
    logits[3, 0, 1:] = -INF  # the target has none
    logits.requires_grad_()
    loss = cell_count_loss(logits, torch.tensor([[0, 1], [1, 1], [2, 1], [0, 1]]), reduction="none")
    assert (loss == INF).tolist() == [False, True, False, True]
    assert not loss.isnan().any()
    assert torch.isfinite(gradient_of(loss[[0, 2]].sum(), logits)).all()


def test_gradients_of_cells_pass_gradcheck():
    target = torch.tensor([[2, 0, 1], [0, 0, 0], [5, 0, 0]])
    logits = random_logits(3, 5, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cell_count_loss(x, target, reduction="none"), logits)


def test_cells_learn_their_classes_from_counts_without_positions():
    """Cells of four kinds learn which class each kind has from the counts alone; the last kind has none."""
    kinds = torch.randint(0, 4, (32, 6), generator=torch.Generator().manual_seed(0))
    target = torch.nn.functional.one_hot(kinds, 4).sum(1)[:, :3]
    kind_scores = torch.zeros(4, 4, requires_grad=True)
    for _ in range(20):
        gradient = gradient_of(cell_count_loss(kind_scores[kinds], target), kind_scores)
        kind_scores = (kind_scores - gradient).detach().requires_grad_()
    assert kind_scores.argmax(-1).tolist() == [0, 1, 2, 3]


# count_table_loss


def test_the_loss_of_a_table_is_a_sum_of_cross_entropies():
    logits = random_logits(2, 3, 4)
    target = torch.tensor([[3, 0, 1], [0, 0, 0]])
    wanted = [
        -math.fsum(reference.log(reference.softmax(row)[count]) for row, count in zip(table, counts, strict=True))
        for table, counts in zip(logits.tolist(), target.tolist(), strict=True)
    ]
    assert count_table_loss(logits, target, reduction="none").tolist() == pytest.approx(wanted, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: count_table_loss(x, target), logits.requires_grad_())


def test_counts_excluded_by_a_table_have_infinite_loss():
    logits = torch.zeros(2, 1, 3)
    logits[:, 0, 2] = -INF
    logits.requires_grad_()
    loss = count_table_loss(logits, torch.tensor([[1], [2]]), reduction="none")
    assert loss.tolist() == pytest.approx([math.log(2), INF])
    assert gradient_of(loss[0], logits)[0, 0].tolist() == pytest.approx([0.5, -0.5, 0])


# poisson_count_loss


@given(st.lists(st.tuples(st.floats(-9, 4), st.integers(0, 30)), min_size=1, max_size=4))
def test_the_poisson_loss_is_the_negative_log_likelihood(pairs):
    """Compared with e^-rate rate^k / k!, literally."""
    wanted = -math.fsum(math.log(math.exp(-math.exp(r)) * math.exp(r) ** k / math.factorial(k)) for r, k in pairs)
    log_rates = torch.tensor([[r for r, _ in pairs]], dtype=torch.float64)
    loss = poisson_count_loss(log_rates, torch.tensor([[k for _, k in pairs]]))
    assert loss.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_poisson_probabilities_sum_to_one():
    log_rates = torch.tensor([[0.7]], dtype=torch.float64).expand(60, 1)
    loss = poisson_count_loss(log_rates, torch.arange(60)[:, None], reduction="none")
    assert (-loss).exp().sum().item() == pytest.approx(1, rel=1e-12)


def test_the_best_rate_is_the_mean_count():
    target = torch.tensor([[1, 0], [4, 0], [4, 2]])
    log_rates = torch.tensor([[3.0, 2 / 3]], dtype=torch.float64).log().expand(3, 2).contiguous().requires_grad_()
    gradient = gradient_of(poisson_count_loss(log_rates, target), log_rates)
    assert gradient.sum(0).tolist() == pytest.approx([0, 0], abs=1e-12)
    assert torch.autograd.gradcheck(lambda x: poisson_count_loss(x, target), log_rates)


def test_a_rate_of_zero_allows_only_the_count_zero():
    log_rates = torch.full((2, 1), -INF, requires_grad=True)
    loss = poisson_count_loss(log_rates, torch.tensor([[0], [1]]), reduction="none")
    assert loss.tolist() == [0, INF]
    assert gradient_of(loss[0], log_rates)[0].item() == 0


# all three losses

SHARED = {
    "cells": (cell_count_loss, (6, 4)),
    "table": (count_table_loss, (3, 6)),
    "poisson": (poisson_count_loss, (3,)),
}
TARGET = torch.tensor([[2, 0, 1], [0, 0, 0], [5, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize("name", ["cells", "table"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("extreme", [1e2, 1e4, 1e30])
def test_extreme_scores_have_finite_values_and_gradients(name, extreme, dtype):
    loss, shape = SHARED[name]
    signs = torch.randint(-1, 2, (4, *shape), generator=torch.Generator().manual_seed(3)).to(dtype)
    for scores in (signs * extreme, torch.full_like(signs, extreme), torch.full_like(signs, -extreme)):
        found = loss(scores.requires_grad_(), TARGET, reduction="none")
        assert torch.isfinite(found).all()
        assert torch.isfinite(gradient_of(found.sum(), scores)).all()


CELLS, TABLE, RATES = torch.zeros(4, 6, 4), torch.zeros(4, 3, 6), torch.zeros(4, 3)
SEVEN = torch.tensor([[7, 0, 0]] * 4)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cell_count_loss(CELLS, SEVEN), "target .* at most 6, since there are 6 cells, .* largest is 7"),
        (lambda: cell_count_loss(CELLS[..., 1:], TARGET), r"logits must be .* \(4, any, 4\), but is .* \(4, 6, 3\)"),
        (lambda: cell_count_loss(CELLS[:, :0], TARGET), "logits must be scores of at least one cell"),
        (lambda: cell_count_loss(CELLS, TARGET - 1), "target must hold non-negative counts, .* -1"),
        (lambda: cell_count_loss(CELLS, TARGET, reduction="max"), "reduction must be one of .* 'max'"),
        (lambda: count_table_loss(TABLE, SEVEN), "target .* at most 5, since logits .* counts 0 to 5, .* largest is 7"),
        (lambda: count_table_loss(CELLS, TARGET), r"logits must be .* \(4, 3, any\), but is .* \(4, 6, 4\)"),
        (lambda: count_table_loss(TABLE[..., :0], TARGET), "logits must be scores of at least one count"),
        (lambda: count_table_loss(TABLE, TARGET.float()), "target must be an int64 tensor"),
        (lambda: poisson_count_loss(RATES[:, 1:], TARGET), r"log_rates must be .* \(4, 3\), but is .* \(4, 2\)"),
        (lambda: poisson_count_loss(RATES.long(), TARGET), "log_rates must be .* int64"),
        (lambda: poisson_count_loss(RATES, TARGET - 1), "target must hold non-negative counts, .* -1"),
    ],
)
def test_invalid_input_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
