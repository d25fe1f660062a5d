from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import NUM_CLASSES, logits, multisets, problems

from torchmultiset.losses import _imitation, multiset_loss, multiset_loss_as_defined
from torchmultiset.multiset import free_labels, from_labels
from torchmultiset.oracle import oracle, oracle_entropy

DIVERGENCES = ["kl", "js", "tv"]
each_way = pytest.mark.parametrize("few_classes", [128, 0], ids=["few classes", "many classes"])
"""Up to FEW_CLASSES, the loss visits all classes; beyond, only the classes of the targets."""


@each_way
@pytest.mark.parametrize("end", [False, True], ids=["no END", "END"])
@pytest.mark.parametrize("over_steps", ["sum", pytest.param("mean", marks=pytest.mark.slow)])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(data=st.data())
def test_definition_3(divergence, over_steps, end, few_classes, data):
    problem = data.draw(problems(end=end))
    with patch.object(_imitation, "FEW_CLASSES", few_classes):
        found = multiset_loss(
            problem.logits,
            problem.labels,
            problem.target,
            divergence=divergence,
            over_steps=over_steps,
            end=end,
            reduction="none",
        )
    wanted = [
        reference.multiset_loss(rows, labels, target, divergence, over_steps, problem.num_classes if end else None)
        for rows, labels, target in zip(problem.logits.tolist(), problem.trajectories, problem.multisets, strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@each_way
@given(problem=problems(end=False))
def test_the_fast_loss_equals_the_loss_as_defined(few_classes, problem):
    with patch.object(_imitation, "FEW_CLASSES", few_classes):
        fast = multiset_loss(problem.logits, problem.labels, problem.target)
    torch.testing.assert_close(fast, multiset_loss_as_defined(problem.logits, problem.labels, problem.target))


def test_by_hand():
    """The target is {a, a, b}; the policy has probabilities 1/2, 1/4, 1/4 and emits a, c, a, b, b."""
    log2 = math.log(2)
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(1, 5, 3)
    loss = multiset_loss(logits, torch.tensor([[0, 2, 0, 1, 1]]), from_labels([[0, 0, 1]], 3))
    # {a, a, b}, {a, b}, {a, b}, {b}, nothing
    assert loss.item() == pytest.approx(
        (2 * log2 + 2 * log2) / 3 + (log2 + 2 * log2) / 2 + (log2 + 2 * log2) / 2 + 2 * log2
    )


def test_kl_sum_without_end_is_the_default():
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    labels, target = torch.tensor([[0, 1, 2, 0], [0, 0, 0, 0]]), torch.tensor([[1, 1, 0], [0, 0, 3]])
    spelled = multiset_loss(logits, labels, target, divergence="kl", over_steps="sum", end=False, reduction="mean")
    assert torch.equal(multiset_loss(logits, labels, target), spelled)


@given(st.data())
def test_the_minimum_of_kl_is_at_the_oracle_and_is_its_entropy_over_classes(data):
    num_classes = data.draw(NUM_CLASSES)
    target = to_counts([data.draw(multisets(num_classes, min_size=1))], num_classes)
    labels = torch.zeros(1, 1, dtype=torch.int64)
    best = oracle(target, dtype=torch.float64)[:, None].log()
    least = multiset_loss(best, labels, target)
    assert least.item() == pytest.approx(oracle_entropy(target, of="classes").item(), abs=1e-6)
    other = data.draw(logits(1, 1, num_classes))
    assert multiset_loss(other, labels, target) >= least - 1e-9


@pytest.mark.parametrize(("divergence", "most"), [("js", math.log(2)), ("tv", 1.0)])
@given(data=st.data())
def test_the_other_divergences_are_bounded_and_zero_at_the_oracle(divergence, most, data):
    problem = data.draw(problems(min_size=1))
    labels, target = problem.labels[:, :1], problem.target
    found = multiset_loss(problem.logits[:, :1], labels, target, divergence=divergence, reduction="none")
    assert (found >= -1e-12).all()
    assert (found <= most + 1e-12).all()
    best = oracle(target, dtype=torch.float64)[:, None].log()
    at_oracle = multiset_loss(best, labels, target, divergence=divergence, reduction="none")
    assert at_oracle.tolist() == pytest.approx([0.0] * len(target), abs=1e-12)


@pytest.mark.parametrize(("divergence", "most"), [("js", math.log(2)), ("tv", 1.0)])
def test_a_confident_wrong_policy_reaches_the_bounds(divergence, most):
    logits = torch.tensor([[[1e30, -1e30]]])
    loss = multiset_loss(logits, torch.tensor([[0]]), torch.tensor([[0, 3]]), divergence=divergence)
    assert loss.item() == pytest.approx(most)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_last_emitted_label_does_not_matter(divergence):
    """The loss depends on the prefixes only."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 3, 4, generator=generator)
    target = torch.tensor([[1, 2, 0, 1]])
    values = [
        multiset_loss(logits, torch.tensor([[1, 0, last]]), target, divergence=divergence).item() for last in range(4)
    ]
    assert len(set(values)) == 1


@pytest.mark.parametrize("over_steps", ["sum", "mean"])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_finished_steps_have_weight_zero(divergence, over_steps):
    """Loss and gradient are as if the trajectory ended with the target, for any logits after it."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 5, 3, dtype=torch.float64, generator=generator)
    logits[:, 3] *= 1e4
    logits[:, 4] = -1e30
    logits.requires_grad_()
    labels, target = torch.tensor([[1, 0, 1, 2, 2]]), torch.tensor([[1, 1, 0]])  # complete after two steps
    whole = multiset_loss(logits, labels, target, divergence=divergence, over_steps=over_steps)
    (gradient,) = torch.autograd.grad(whole, logits)
    cut = multiset_loss(logits[:, :2], labels[:, :2], target, divergence=divergence, over_steps=over_steps)
    assert whole.item() == pytest.approx(cut.item(), rel=1e-12)
    assert (gradient[:, 2:] == 0).all()
    assert (gradient[:, :2] != 0).any()


@each_way
@given(problem=problems())
def test_the_gradient_of_each_step_is_policy_minus_oracle(few_classes, problem):
    scores = problem.logits.clone().requires_grad_()
    with patch.object(_imitation, "FEW_CLASSES", few_classes):
        multiset_loss(scores, problem.labels, problem.target, reduction="sum").backward()
    free = free_labels(problem.target, problem.labels)
    counted = (free.sum(-1, keepdim=True) > 0).double()
    wanted = counted * problem.logits.softmax(-1) - oracle(free, dtype=torch.float64)
    torch.testing.assert_close(scores.grad, wanted)


@pytest.mark.parametrize("divergence", ["js", "tv"])
def test_an_excluded_free_class_has_a_bounded_loss(divergence):
    logits = torch.tensor([[[-torch.inf, 1.0, 0.0]]], dtype=torch.float64)
    found = multiset_loss(logits, torch.tensor([[0]]), torch.tensor([[1, 1, 0]]), divergence=divergence)
    wanted = reference.multiset_loss(
        logits[0].tolist(), [0], reference.to_counters(torch.tensor([[1, 1, 0]]))[0], divergence
    )
    assert found.item() == pytest.approx(wanted)


@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("logits", "loss", "gradient"),
    [
        ([1e4, 0.0, 0.0], 1e4 / 3, [1 / 3, -1 / 3, 0.0]),  # p(a) is 1, its logarithm 0
        ([-torch.inf, 0.0, 0.0], math.inf, [-2 / 3, 1 / 6, 1 / 2]),  # p(a) is 0, and a is free
        ([0.0, 0.0, -torch.inf], math.log(2), [-1 / 6, 1 / 6, 0.0]),  # p(c) is 0, and c is not free
    ],
)
def test_certain_and_impossible_labels_have_correct_losses_and_gradients(logits, loss, gradient, dtype, few_classes):
    """The gradient is policy minus oracle for the target {a, a, b}, even for probabilities of 0 and 1."""
    scores = torch.tensor([[logits]], dtype=dtype, requires_grad=True)
    with patch.object(_imitation, "FEW_CLASSES", few_classes):
        found = multiset_loss(scores, torch.tensor([[0]]), torch.tensor([[2, 1, 0]]))
    found.backward()
    assert found.item() == pytest.approx(loss)
    assert scores.grad[0, 0].tolist() == pytest.approx(gradient)


@each_way
def test_a_hundred_thousand_equal_labels_are_accurate(few_classes):
    """After one of them 99,999 and another label are free, and after that label 99,999."""
    scores = torch.tensor([0.75, 0.25]).log().expand(1, 3, 2).clone().requires_grad_()
    with patch.object(_imitation, "FEW_CLASSES", few_classes):
        found = multiset_loss(scores, torch.tensor([[0, 1, 0]]), torch.tensor([[100_000, 1]]))
    found.backward()
    shares = [100_000 / 100_001, 99_999 / 100_000, 1.0]
    wanted = -sum(p * math.log(0.75) + (1 - p) * math.log(0.25) for p in shares)
    assert found.item() == pytest.approx(wanted)
    for step, p in zip(scores.grad[0].tolist(), shares, strict=True):
        assert step == pytest.approx([0.75 - p, p - 0.75], abs=1e-6)


def test_more_classes_than_the_threshold_equal_the_definition():
    generator = torch.Generator().manual_seed(0)
    target = from_labels([[3, 3, 170], [199]], 200)
    labels = torch.tensor([[3, 5, 3, 3], [199, 0, 1, 2]])
    logits = torch.randn(2, 4, 200, dtype=torch.float64, generator=generator)
    found = multiset_loss(logits, labels, target, reduction="none")
    multisets = reference.to_counters(target)
    wanted = [reference.multiset_loss(*case) for case in zip(logits.tolist(), labels.tolist(), multisets, strict=True)]
    assert found.tolist() == pytest.approx(wanted)


def test_the_value_does_not_depend_on_gradients_or_autocast():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 3, generator=generator).requires_grad_()
    labels, target = torch.tensor([[0, 1, 2, 0], [0, 0, 0, 0]]), torch.tensor([[1, 1, 0], [0, 0, 3]])
    loss = multiset_loss(logits, labels, target)
    assert loss.requires_grad
    with torch.no_grad():
        assert torch.equal(multiset_loss(logits, labels, target), loss)
    with torch.inference_mode():
        assert torch.equal(multiset_loss(logits, labels, target), loss)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(multiset_loss(logits, labels, target), loss)


def test_gradients_can_be_computed_twice_and_are_linear():
    logits = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = multiset_loss(logits, torch.tensor([[0, 1], [2, 2]]), torch.tensor([[1, 1, 0], [0, 0, 3]]))
    (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (again,) = torch.autograd.grad(3 * loss, logits)
    torch.testing.assert_close(again, 3 * once)


def test_a_second_derivative_is_refused():
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    loss = multiset_loss(logits, torch.tensor([[0]]), torch.tensor([[1, 0]]))
    with pytest.raises(RuntimeError, match="only once"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_a_loss_without_steps_is_zero():
    loss = multiset_loss(
        torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64)
    )
    assert loss == 0
