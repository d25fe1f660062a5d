"""The one-step model of shares and a size, and its un-normalised variant, which regresses counts."""

from __future__ import annotations

import pytest
import torch

from torchmultiset import multiset
from torchmultiset.heads import OneStep, RegressedCounts, round_counts
from torchmultiset.losses import count_regression_loss, one_step_loss

C, D = 6, 5


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(D,), (D, 3, 4)])
def test_one_step_learns_counts_by_shares_and_size(shape):
    torch.manual_seed(0)
    memory = torch.randn(3, *shape)
    target = multiset.from_labels([[0, 0, 2], [1], [3, 3, 3, 4]], C)
    model = OneStep(C, D)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(400):
        shares, size = model.split(model(memory))
        loss = one_step_loss(shares, size, target)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert torch.equal(model.counts(model(memory), 0, 4), target)


def test_one_step_learns_counts_directly():
    torch.manual_seed(0)
    memory = torch.randn(3, D)
    target = multiset.from_labels([[0, 0, 2], [1], []], C)
    model = RegressedCounts(C, D)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(300):
        loss = count_regression_loss(model(memory).squeeze(-1), target)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert torch.equal(model.counts(model(memory), 0, 3), target)


def test_one_step_skips_the_recurrence_and_pools_the_memory():
    model = OneStep(C, D)
    memory = torch.rand(2, D, 3, 4)
    scores = model(memory)
    assert scores.shape == (2, 1, C + 1)
    shares, size = model.split(scores)
    pooled = memory.mean((2, 3))
    torch.testing.assert_close(shares, model.classifier(pooled))
    torch.testing.assert_close(size, model.size(pooled))
    assert (size > 0).all()
    torch.testing.assert_close(model.probabilities(scores, 0, 3)[:, 0], shares.softmax(-1))


def test_a_negative_rate_is_rounded_to_zero():
    assert torch.equal(round_counts(torch.tensor([[-3.0, 0.49, 1.51]])), torch.tensor([[0, 0, 2]]))
    scores = torch.tensor([[[-3.0], [0.49], [1.51]]])
    assert RegressedCounts(3, D).counts(scores, 0, 3).tolist() == [[0, 0, 2]]


def test_probabilities_of_regressed_counts_are_shares():
    scores = torch.tensor([[[-3.0], [0.5], [1.5]], [[-1.0], [-2.0], [0.0]]])
    expected = torch.tensor([[[0.0, 0.25, 0.75]], [[0.0, 0.0, 0.0]]])
    torch.testing.assert_close(RegressedCounts(3, D).probabilities(scores, 0, 3), expected)


@pytest.mark.parametrize("model", [OneStep(C, D), RegressedCounts(C, D)])
def test_heads_without_probabilities_have_no_distribution(model):
    assert not model.probabilistic
    with pytest.raises(NotImplementedError):
        model.believe(model(torch.rand(2, D)), 0, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OneStep(C, D)(torch.rand(2, 3)), "memory must be"),
        (lambda: OneStep(0, D), "num_classes must be at least 1"),
        (lambda: RegressedCounts(0, D), "num_classes must be at least 1"),
    ],
)
def test_invalid_input_is_reported_with_the_argument(build, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        build()
