from __future__ import annotations

import itertools
from collections import Counter

import pytest
import reference
import torch
from fakes import TablePolicy
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import logits, masks, problems

from torchmultiset.losses import reinforce_loss
from torchmultiset.multiset import hits, unfinished
from torchmultiset.rollout import forced, rollout


@pytest.mark.parametrize("end", [False, True], ids=["no END", "END"])
@pytest.mark.parametrize("masked", [False, True], ids=["unfinished steps", "chosen steps"])
@pytest.mark.parametrize(
    "with_baseline",
    [pytest.param(False, marks=pytest.mark.slow, id="no baseline"), pytest.param(True, id="baseline")],
)
@given(data=st.data())
def test_the_loss_of_a_trajectory_equals_the_definition(with_baseline, masked, end, data):
    problem = data.draw(problems(end=end))
    shape = tuple(problem.labels.shape)
    baseline = data.draw(logits(*shape)) if with_baseline else None
    where = data.draw(masks(*shape)) if masked else None
    entropy_weight, value_weight = data.draw(st.sampled_from([(0.01, 0.5), (0.0, 0.0), (0.3, 2.0)]))
    found = reinforce_loss(
        problem.logits,
        problem.labels,
        problem.target,
        baseline,
        entropy_weight=entropy_weight,
        value_weight=value_weight,
        where=where,
        end=end,
        reduction="none",
    )
    wanted = [
        reference.reinforce_loss(
            problem.logits[b].tolist(),
            problem.trajectories[b],
            problem.multisets[b],
            None if baseline is None else baseline[b].tolist(),
            entropy_weight,
            value_weight,
            None if where is None else where[b].tolist(),
            problem.num_classes if end else None,
        )
        for b in range(shape[0])
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_by_hand():
    """For the target {a}, b is wrong and a is correct: returns to go 0 and 1. The third step does not count."""
    scores = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.9, 0.1]]).log()[None]
    baseline = torch.tensor([[0.5, 0.25, 9.0]])
    loss = reinforce_loss(scores, torch.tensor([[1, 0, 0]]), torch.tensor([[1, 0]]), baseline, entropy_weight=0.1)
    policy = -(0 - 0.5) * -1.6094379 - (1 - 0.25) * -0.6931472
    bonus = 0.1 * (0.5004024 + 0.6931472)
    value = 0.5 * (0.5**2 + 0.75**2)
    assert loss.item() == pytest.approx(policy - bonus + value, abs=1e-6)


def test_the_weights_have_the_documented_defaults():
    generator = torch.Generator().manual_seed(0)
    scores, baseline = torch.randn(1, 2, 3, generator=generator), torch.randn(1, 2, generator=generator)
    labels, target = torch.tensor([[0, 1]]), torch.tensor([[1, 0, 1]])
    assert torch.equal(
        reinforce_loss(scores, labels, target, baseline),
        reinforce_loss(scores, labels, target, baseline, entropy_weight=0.01, value_weight=0.5),
    )


def test_the_baseline_is_regressed_to_the_return_without_a_gradient_from_the_policy():
    scores = torch.zeros(1, 2, 2, dtype=torch.float64)
    baseline = torch.tensor([[0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    labels, target = torch.tensor([[0, 1]]), torch.tensor([[1, 1]])  # returns to go: 2, 1
    reinforce_loss(scores, labels, target, baseline, value_weight=0.5).backward()
    assert baseline.grad.tolist() == [pytest.approx([0.5 - 2, -1.0 - 1])]


def test_the_entropy_bonus_makes_the_policy_flatter():
    """The sign printed in the paper would penalise entropy."""
    scores = torch.tensor([[[2.0, 0.0]]], requires_grad=True)
    target = torch.tensor([[1, 0]])
    baseline = torch.ones(1, 1)  # the advantage is 0, so only the bonus has a gradient
    reinforce_loss(scores, torch.tensor([[0]]), target, baseline, entropy_weight=1.0).backward()
    assert scores.grad[0, 0, 0] > 0 > scores.grad[0, 0, 1]


TINY = {
    "a size that is exact": (Counter({0: 1, 1: 1}), 2, 2),
    "room for mistakes": (Counter({0: 1, 1: 1}), 2, 3),
    "repeats": (Counter({0: 2}), 2, 4),
    "three classes": (Counter({0: 1, 2: 1}), 3, 3),
    "too few steps": (Counter({0: 2, 1: 2}), 2, 3),
    "the empty multiset": (Counter(), 2, 2),
}


@pytest.mark.parametrize("end", [False, True], ids=["no END", "END"])
@pytest.mark.parametrize("every_step", [False, True], ids=["until complete", "all steps"])
@pytest.mark.parametrize("with_baseline", [False, True], ids=["no baseline", "baseline"])
@pytest.mark.parametrize(("target", "num_classes", "steps"), TINY.values(), ids=TINY)
def test_the_expected_gradient_is_the_gradient_of_the_expected_return(
    target, num_classes, steps, with_baseline, every_step, end
):
    """Over all trajectories of a tiny problem, the mean gradient of the estimate is the gradient of the mean return.

    The baseline may depend on the prefix, and must not change the expectation.
    """
    num_labels = num_classes + end
    policy = TablePolicy.random(num_labels, steps, seed=1)
    every = torch.tensor(list(itertools.product(range(num_labels), repeat=steps)))
    scores, features, labels = rollout(policy, torch.zeros(len(every), 1), forced(every), steps)
    log_pi = scores.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    probability = log_pi.sum(-1).exp()
    assert probability.sum().item() == pytest.approx(1)

    returns = []
    for row in every.tolist():
        end_label = num_classes if end else None
        free = reference.free_multisets(target, row, end_label)
        reward = reference.rewards(row, target, end_label)
        returns.append(sum(r for r, now in zip(reward, free, strict=True) if now or every_step))
    loss = -(probability @ torch.tensor(returns, dtype=torch.float64))
    (wanted,) = torch.autograd.grad(loss, policy.table, retain_graph=True)

    baseline = None
    if with_baseline:
        values = torch.randn(len(policy.table), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        baseline = values[features.squeeze(-1).long()]
    estimates = reinforce_loss(
        scores,
        labels,
        to_counts([target], num_classes).expand(len(every), -1),
        baseline,
        entropy_weight=0.0,
        where=torch.ones_like(labels, dtype=torch.bool) if every_step else None,
        end=end,
        reduction="none",
    )
    (found,) = torch.autograd.grad(probability.detach() @ estimates, policy.table)
    torch.testing.assert_close(found, wanted)
    if target and num_classes > 1:
        assert (wanted.abs() > 1e-3).any(), "the gradient is zero"


@pytest.mark.parametrize("counts", [(2, 0, 1), (1, 1, 1), (0, 0, 2)])
def test_the_return_is_largest_exactly_if_precision_and_recall_are_one(counts):
    size = sum(counts)
    trajectories = torch.tensor(list(itertools.product(range(3), repeat=size + 1)))
    target = torch.tensor(counts).expand(len(trajectories), -1)
    rewards = (2 * hits(target, trajectories).long() - 1) * unfinished(target, trajectories)
    returns = rewards.sum(-1)
    exact = [Counter(row[:size]) == +Counter(dict(enumerate(counts))) for row in trajectories.tolist()]
    assert torch.equal(returns == returns.max(), torch.tensor(exact))
