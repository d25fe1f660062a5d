from __future__ import annotations

import math
from decimal import Decimal, localcontext

import count_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.export import Dim, export

from torchmultiset.distributions import cell_log_probabilities, poisson_binomial

INF = math.inf

EXTREME = [
    [100.0, -100.0, 0.0, 3.0],
    [-100.0, -100.0, -100.0, 100.0],
    [-100.0, 100.0, 99.0, -100.0],
    [69.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 69.0],
    [100.0, 100.0, -100.0, -100.0],
    [5000.0, 5001.0, 4999.5, 4900.0],
    [-0.001, 0.0, 0.001, 0.0],
    [-60.0, -61.5, -80.25, 30.0],
]


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distribution(logits: Tensor, most: int) -> Tensor:
    return poisson_binomial(*cell_log_probabilities(logits), most)


def reference_distribution(logits: Tensor, most: int) -> Tensor:
    """Log-probabilities (B, C, most + 1) of the counts, with the cells added one at a time."""
    examples = [[reference.softmax(row) for row in example] for example in logits.tolist()]
    logarithms = [
        [
            [reference.log(p) for p in reference.count_distribution_cell_by_cell(cells, label, most)]
            for label in range(logits.shape[-1] - 1)
        ]
        for cells in examples
    ]
    return torch.tensor(logarithms, dtype=torch.float64)


# cell_log_probabilities


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 2e-5), (torch.float64, 1e-13)])
def test_p_and_its_complement_are_accurate_for_confident_cells(dtype, accuracy):
    """The error is relative to the logarithm, even if that is -1e-30. Below the smallest float it may be 0."""
    log_p, log_not = cell_log_probabilities(torch.tensor([EXTREME], dtype=dtype))
    for row, *found in zip(EXTREME, log_p[0].tolist(), log_not[0].tolist(), strict=True):
        cell = reference.softmax(torch.tensor(row, dtype=dtype).tolist())
        others = [reference.complement(cell, label) for label in range(len(cell))]
        wanted = [
            [precise_log(p, other) for p, other in zip(cell, others, strict=True)][:-1],
            [precise_log(other, p) for p, other in zip(cell, others, strict=True)][:-1],
        ]
        for a, b in zip(found, wanted, strict=True):
            assert a == pytest.approx(b, rel=accuracy, abs=torch.finfo(dtype).tiny)


def precise_log(p: Decimal, complement: Decimal) -> float:
    """ln p, by its series if p is too close to 1 for 60 digits."""
    return -float(complement) if complement < Decimal("1e-20") else reference.log(p)


def test_a_cell_matches_a_calculation_by_hand():
    log_p, log_not = cell_log_probabilities(torch.tensor([[[0.2, 0.7, 0.1]]]).log())
    assert log_p.exp().flatten().tolist() == pytest.approx([0.2, 0.7])
    assert log_not.exp().flatten().tolist() == pytest.approx([0.8, 0.3])


@given(st.lists(st.lists(st.floats(-120, 120), min_size=3, max_size=3), min_size=1, max_size=4))
def test_log_odds_equal_those_of_the_softmax(rows):
    log_p, log_not = cell_log_probabilities(torch.tensor([rows], dtype=torch.float64))
    for row, *found in zip(rows, log_p[0].tolist(), log_not[0].tolist(), strict=True):
        cell = reference.softmax(row)
        for label in (0, 1):
            with localcontext(reference.DIGITS):
                wanted = reference.log(cell[label] / reference.complement(cell, label))
            assert found[0][label] - found[1][label] == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_gradients_of_cells_pass_gradcheck():
    logits = random_logits(2, 3, 4).requires_grad_()
    assert gradcheck(cell_log_probabilities, (logits,))
    ties = torch.tensor([[[1.0, 1.0, 0.0], [0.5, 0.5, -80.0]]], dtype=torch.float64)
    log_p, log_not = cell_log_probabilities(ties.requires_grad_())
    (gradient,) = torch.autograd.grad(log_p.sum() + 3 * log_not.sum(), ties)
    torch.testing.assert_close(gradient[..., 0], gradient[..., 1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("row", EXTREME, ids=str)
def test_gradients_are_accurate_for_confident_cells(row):
    """d log p_c / d x_j = [c = j] - p_j, and d log(1 - p_c) / d x_j = p_c (p_j / (1 - p_c)), -p_c for j = c."""
    logits = torch.tensor([[row]], requires_grad=True)
    log_p, log_not = cell_log_probabilities(logits)
    cell = reference.softmax(row)
    for c in range(3):
        (of_p,) = torch.autograd.grad(log_p[0, 0, c], logits, retain_graph=True)
        (of_not,) = torch.autograd.grad(log_not[0, 0, c], logits, retain_graph=True)
        with localcontext(reference.DIGITS):
            wanted_p = [float((c == j) - p) for j, p in enumerate(cell)]
            rest = reference.complement(cell, c)
            wanted_not = [-float(cell[c]) if j == c else float(cell[c] * p / rest) for j, p in enumerate(cell)]
        assert of_p.flatten().tolist() == pytest.approx(wanted_p, rel=1e-4, abs=1e-6)
        assert of_not.flatten().tolist() == pytest.approx(wanted_not, rel=1e-4, abs=1e-6)


def test_excluded_classes_have_probability_zero_and_finite_gradients():
    logits = torch.tensor([[[0.0, -INF, 0.0], [-INF, 0.0, -INF], [-INF, -INF, 0.0]]], requires_grad=True)
    log_p, log_not = cell_log_probabilities(logits)
    assert log_p.exp().tolist() == [[[0.5, 0], [0, 1], [0, 0]]]
    assert log_not.exp().tolist() == [[[0.5, 1], [1, 0], [1, 1]]]
    possible = log_p[log_p > -INF].sum() + log_not[log_not > -INF].sum()
    (gradient,) = torch.autograd.grad(possible, logits)
    assert torch.isfinite(gradient).all()


# poisson_binomial


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=7), st.integers(0, 9))
def test_count_distributions_equal_a_sum_over_subsets_of_the_cells(weights, most):
    """With probabilities in fifths, including 0 and 1, and two classes."""
    cells = [[Decimal(a) / 5, Decimal(b) / 5] for a, b in weights]
    p = torch.tensor(weights, dtype=torch.float64) / 5
    found = poisson_binomial(p.log(), ((5 - 5 * p) / 5).log(), most)
    assert found.shape == (2, most + 1)
    for label in (0, 1):
        wanted = [
            float(p) for p in reference.count_distribution([(c[label], 1 - c[label]) for c in cells], 0)[: most + 1]
        ]
        wanted += [0.0] * (most + 1 - len(wanted))
        assert found[label].exp().tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-15)
        assert [x == -INF for x in found[label].tolist()] == [x == 0 for x in wanted]


def test_counts_of_cells_equal_a_sum_over_all_outcomes():
    """Four cells over three classes and "nothing" have 256 outcomes."""
    logits = random_logits(1, 4, 4)
    joint = reference.counts_of_all_outcomes([reference.softmax(row) for row in logits[0].tolist()])
    found = distribution(logits, most=4).exp()[0]
    for label in range(3):
        wanted = [float(sum(p for counts, p in joint.items() if counts[label] == k)) for k in range(5)]
        assert found[label].tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("cells", [*range(1, 18), 31, 32, 33, 81])
def test_any_number_of_cells_equals_adding_them_one_at_a_time(cells):
    logits = random_logits(1, cells, 3, seed=cells)
    torch.testing.assert_close(distribution(logits, 6), reference_distribution(logits, 6), rtol=1e-11, atol=1e-12)


class Distribution(nn.Module):
    """The module to export."""

    def forward(self, log_p: Tensor, log_not: Tensor) -> Tensor:
        return poisson_binomial(log_p, log_not, 6)


@pytest.mark.slow
def test_an_exported_model_has_the_same_distribution_for_any_number_of_cells(without_shape_hook):
    sizes = {0: Dim("b"), 1: Dim("n")}
    example = cell_log_probabilities(random_logits(2, 16, 4))
    exported = export(Distribution(), example, dynamic_shapes=(sizes, sizes), strict=False).module()
    for cells, scale in [(1, 2.0), (5, 30.0), (16, 2.0), (33, 300.0), (300, 1.0)]:
        logits = random_logits(3, cells, 4, seed=cells, scale=scale)
        # The most probable cells in any place, first and last, and cells that certainly predict nothing.
        rows = [logits, logits.sort(1).values, logits.sort(1, descending=True).values]
        logits = torch.cat(rows)
        logits[1::3, cells // 2 :, :-1] = -INF
        pair = cell_log_probabilities(logits)
        torch.testing.assert_close(exported(*pair), poisson_binomial(*pair, 6), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_float32_is_accurate_for_confident_cells(scale):
    """Probabilities as small as 1e-300 and their products do not underflow."""
    logits = random_logits(2, 21, 4, scale=scale).float()
    found = distribution(logits, most=5).double()
    torch.testing.assert_close(found, reference_distribution(logits, 5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cells", [1, 2, 7, 13])
def test_sums_to_one_and_has_the_expected_mean(cells):
    logits = random_logits(3, cells, 5)
    found = distribution(logits, most=cells).exp()
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 4).double())
    expected = logits.softmax(-1)[..., :-1].sum(1)
    torch.testing.assert_close(found @ torch.arange(cells + 1).double(), expected)


def test_smaller_and_larger_bounds_give_the_same_distribution():
    logits = random_logits(2, 11, 4)
    complete = distribution(logits, most=11)
    for most in (0, 1, 2, 5, 10):
        torch.testing.assert_close(distribution(logits, most), complete[..., : most + 1])
    more = distribution(logits, most=13)
    torch.testing.assert_close(more[..., :12], complete)
    assert (more[..., 12:] == -INF).all()


def test_the_order_of_the_cells_does_not_matter():
    logits = random_logits(2, 13, 4)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(distribution(logits[:, order], 5), distribution(logits, 5))


def test_batches_may_have_any_shape():
    log_p, log_not = cell_log_probabilities(random_logits(6, 7, 4))
    found = poisson_binomial(log_p, log_not, 3)
    shaped = poisson_binomial(log_p.reshape(2, 3, 7, 3), log_not.reshape(2, 3, 7, 3), 3)
    assert torch.equal(shaped, found.reshape(2, 3, 3, 4))
    for b in range(6):
        torch.testing.assert_close(poisson_binomial(log_p[b], log_not[b], 3), found[b], rtol=1e-13, atol=0)
    assert poisson_binomial(log_p[:0], log_not[:0], 3).shape == (0, 3, 4)
    assert poisson_binomial(log_p[..., :0], log_not[..., :0], 3).shape == (6, 0, 4)


@pytest.mark.parametrize("most", [0, 1, 3, 5])
def test_gradients_of_counts_pass_gradcheck(most):
    log_p, log_not = (x.detach().requires_grad_() for x in cell_log_probabilities(random_logits(1, 5, 3)))
    assert gradcheck(lambda a, b: poisson_binomial(a, b, most), (log_p, log_not))
    assert gradgradcheck(lambda a, b: poisson_binomial(a, b, most), (log_p, log_not))


def test_the_gradient_is_the_posterior_of_each_cell():
    """d log P(N = 2) / d log p_i is the posterior probability that cell i is one of the two."""
    p = torch.tensor([0.9, 0.5, 0.2, 0.7]).double()[:, None]
    log_p, log_not = p.log().requires_grad_(), (1 - p).log().requires_grad_()
    of_p, of_not = torch.autograd.grad(poisson_binomial(log_p, log_not, 2)[0, 2], (log_p, log_not))
    pairs = {(i, j): 0.0 for i in range(4) for j in range(i)}
    for pair in pairs:
        pairs[pair] = math.prod(p[i].item() if i in pair else 1 - p[i].item() for i in range(4))
    posterior = [sum(q for pair, q in pairs.items() if i in pair) / sum(pairs.values()) for i in range(4)]
    assert of_p.flatten().tolist() == pytest.approx(posterior)
    assert of_not.flatten().tolist() == pytest.approx([1 - q for q in posterior])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cells", [1, 3, 6, 7, 12])
def test_impossible_counts_have_no_gradient(cells, dtype):
    """The first cell certainly predicts the class and the last certainly does not, which excludes 0 and all cells."""
    log_p, log_not = (x.detach().to(dtype) for x in cell_log_probabilities(random_logits(1, cells, 2)))
    log_p[:, 0], log_not[:, 0] = 0, -INF
    if cells > 1:
        log_p[:, -1], log_not[:, -1] = -INF, 0
    log_p, log_not = log_p.requires_grad_(), log_not.requires_grad_()
    found = poisson_binomial(log_p, log_not, cells + 2)[0, 0]
    possible = [1 <= k <= max(cells - 1, 1) for k in range(cells + 3)]
    assert (found > -INF).tolist() == possible
    for count, is_possible in zip(found, possible, strict=True):
        of_p, of_not = torch.autograd.grad(count, (log_p, log_not), retain_graph=True)
        assert torch.isfinite(of_p).all()
        assert torch.isfinite(of_not).all()
        assert bool(of_p.any() or of_not.any()) == is_possible


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = random_logits(2, 9, 4).to(dtype)
    assert torch.equal(distribution(logits, 3), distribution(logits.float(), 3))
    log_p = torch.full((9, 2), -0.5, dtype=dtype)
    assert torch.equal(poisson_binomial(log_p, log_p, 3), poisson_binomial(log_p.float(), log_p.float(), 3))


def test_inputs_are_not_modified():
    logits = random_logits(2, 9, 4)
    before = logits.clone()
    log_p, log_not = cell_log_probabilities(logits)
    pair = log_p.clone(), log_not.clone()
    poisson_binomial(log_p, log_not, 3)
    assert torch.equal(logits, before)
    assert torch.equal(log_p, pair[0])
    assert torch.equal(log_not, pair[1])


ONES = torch.zeros(2, 3)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cell_log_probabilities(ONES), r"logits must be .* \(B, N, C \+ 1\), but is .* \(2, 3\)"),
        (lambda: cell_log_probabilities(torch.zeros(2, 3, 4).long()), "logits must be .* int64"),
        (lambda: cell_log_probabilities(torch.zeros(2, 3, 1)), "logits .* at least one class"),
        (lambda: poisson_binomial(ONES[0], ONES[0], 1), r"log_p .* \(\.\.\., N, C\), but is .* \(3,\)"),
        (lambda: poisson_binomial(ONES[:0], ONES[:0], 1), "log_p .* at least one cell"),
        (lambda: poisson_binomial(ONES, ONES[:1], 1), r"log_not .* \(2, 3\), but is .* \(1, 3\)"),
        (lambda: poisson_binomial(ONES, ONES, -1), "most must be at least 0, but is -1"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
