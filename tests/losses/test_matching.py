from __future__ import annotations

import math
from collections import Counter

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import logits, masks, problems

from torchmultiset.losses import count_regression_loss, distribution_matching_loss, one_step_loss

NAMES = ["kl", "l1", 1.0, 2.0, 3.5]


@pytest.mark.parametrize("name", NAMES, ids=str)
@given(problem=problems())
def test_matching_over_the_first_steps_equals_the_definition(name, problem):
    found = distribution_matching_loss(problem.logits, problem.target, divergence=name, reduction="none")
    wanted = [
        reference.distribution_matching_loss(rows, target, name)
        for rows, target in zip(problem.logits.tolist(), problem.multisets, strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", NAMES, ids=str)
@given(data=st.data())
def test_matching_over_chosen_steps_equals_the_definition(name, data):
    problem = data.draw(problems())
    where = data.draw(masks(*problem.labels.shape))
    found = distribution_matching_loss(problem.logits, problem.target, divergence=name, where=where, reduction="none")
    wanted = [
        reference.distribution_matching_loss(rows, target, name, counted)
        for rows, target, counted in zip(problem.logits.tolist(), problem.multisets, where.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_by_hand():
    """{a, a, b, b} after two steps of (1/2, 1/2, 0) and (1, 0, 0): q = (3/4, 1/4, 0)."""
    logits = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()[None]
    target = torch.tensor([[2, 2, 0]])

    def loss(divergence: str | float) -> float:
        return distribution_matching_loss(logits, target, divergence=divergence).item()

    assert loss("kl") == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)
    assert loss("l1") == pytest.approx(1 / 2)
    assert loss(2.0) == pytest.approx(math.sqrt(1 / 8))


@given(problems())
def test_l1_is_the_norm_with_exponent_1(problem):
    named = distribution_matching_loss(problem.logits, problem.target, divergence="l1")
    assert torch.equal(named, distribution_matching_loss(problem.logits, problem.target, divergence=1.0))


def test_kl_is_the_default():
    logits, target = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), torch.eye(4).long()[:2]
    assert torch.equal(
        distribution_matching_loss(logits, target),
        distribution_matching_loss(logits, target, divergence="kl", reduction="mean"),
    )


@given(problems(min_size=1))
def test_the_order_of_the_steps_does_not_matter(problem):
    """The weakness stated in section 3.3: the aggregate does not depend on the order."""
    where = torch.ones_like(problem.labels, dtype=torch.bool)
    forwards = distribution_matching_loss(problem.logits, problem.target, where=where)
    backwards = distribution_matching_loss(problem.logits.flip(1), problem.target, where=where)
    assert forwards.item() == pytest.approx(backwards.item(), rel=1e-12)


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_masked_steps_have_no_gradient(name):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 4, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    distribution_matching_loss(logits, torch.tensor([[1, 0, 1]]), divergence=name).backward()
    assert (logits.grad[:, :2] != 0).any()
    assert (logits.grad[:, 2:] == 0).all()


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_perfect_match_has_a_finite_gradient(name, dtype):
    """The norm and |x|^p are not differentiable at 0, which must not give NaN."""
    logits = torch.tensor([[[1e4, 0.0, 0.0], [0.0, 0.0, 1e4]]], dtype=dtype, requires_grad=True)
    loss = distribution_matching_loss(logits, torch.tensor([[1, 0, 1]]), divergence=name)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2) if name == "kl" else 0.0, abs=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_kl_is_exact_for_probabilities_that_underflow():
    """If the target's class has probability e^-10000, the loss is 10000 and has a gradient."""
    logits = torch.tensor([[[0.0, 1e4], [0.0, 1e4]]], requires_grad=True)
    loss = distribution_matching_loss(logits, torch.tensor([[2, 0]]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert logits.grad.sum(1).tolist() == [pytest.approx([-1.0, 1.0], rel=1e-3)]  # 1e4 + ln 2 in float32


# One step


@pytest.mark.parametrize("size_weight", [1.0, 0.0, 0.3])
@given(data=st.data())
def test_the_one_step_loss_equals_the_definition(size_weight, data):
    problem = data.draw(problems())
    scores, size = problem.logits[:, 0], data.draw(logits(len(problem.target)))
    found = one_step_loss(scores, size, problem.target, size_weight=size_weight, reduction="none")
    wanted = [
        reference.one_step_loss(row, guess, target, size_weight)
        for row, guess, target in zip(scores.tolist(), size.tolist(), problem.multisets, strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_one_step_by_hand():
    """{a, a, b} with q = (1/2, 1/4, 1/4) and a size of 5."""
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    loss = one_step_loss(logits, torch.tensor([5.0]), torch.tensor([[2, 1, 0]]))
    assert loss.item() == pytest.approx(2 / 3 * math.log(2) + 1 / 3 * math.log(4) + 4)


def test_the_one_step_loss_is_distribution_matching_over_one_step():
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[2, 0, 1], [0, 1, 0]])
    where = torch.ones(2, 1, dtype=torch.bool)
    torch.testing.assert_close(
        one_step_loss(logits, target.sum(-1).float(), target),
        distribution_matching_loss(logits[:, None], target, where=where),
    )


@given(problems())
def test_count_regression_equals_the_definition(problem):
    rates = problem.logits[:, 0]
    found = count_regression_loss(rates, problem.target, reduction="none")
    wanted = [
        reference.count_regression_loss(row, target)
        for row, target in zip(rates.tolist(), problem.multisets, strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_count_regression_by_hand():
    loss = count_regression_loss(torch.tensor([[1.5, 0.0, 3.0]]), torch.tensor([[2, 1, 0]]))
    assert loss.item() == pytest.approx(0.25 + 1 + 9)
    assert reference.count_regression_loss([1.5, 0.0, 3.0], Counter({0: 2, 1: 1})) == 0.25 + 1 + 9
