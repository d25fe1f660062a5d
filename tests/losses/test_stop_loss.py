from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import logits, multisets

from torchmultiset.losses import stop_loss
from torchmultiset.rollout import until_stop


@given(st.data())
def test_the_loss_is_the_binary_cross_entropy_of_the_slots_up_to_the_size(data):
    batch, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    targets = [data.draw(multisets(3, max_size=7)) for _ in range(batch)]
    scores = data.draw(logits(batch, steps))
    found = stop_loss(scores, to_counts(targets, 3), reduction="none")
    wanted = [reference.stop_loss(row, target) for row, target in zip(scores.tolist(), targets, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_by_hand():
    """With two items, the targets of slots 0 and 1 are no, that of slot 2 is yes, and slot 3 does not count."""
    probability = torch.tensor([[0.1, 0.2, 0.7, 0.4]])
    loss = stop_loss(probability.logit(), torch.tensor([[1, 1]]))
    assert loss.item() == pytest.approx(-math.log(0.9) - math.log(0.8) - math.log(0.7), rel=1e-5)


def test_an_empty_target_has_loss_in_the_first_slot_only():
    scores = torch.tensor([[1.0, 5.0, -5.0]], requires_grad=True)
    loss = stop_loss(scores, torch.tensor([[0, 0]]))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1 / (1 + math.exp(-1))))
    assert scores.grad[0, 0] < 0
    assert scores.grad[0, 1:].tolist() == [0, 0]


@pytest.mark.parametrize("extreme", [1e4, 1e30])
def test_confident_correct_scores_have_loss_zero_and_the_correct_size(extreme):
    target = torch.tensor([[1, 1], [0, 0], [3, 0]])
    scores = torch.full((3, 4), -extreme)
    scores[torch.arange(3), target.sum(-1)] = extreme
    assert stop_loss(scores, target, reduction="none").tolist() == [0, 0, 0]
    assert until_stop(scores).sum(-1).tolist() == [2, 0, 3]


def test_infinite_scores_have_loss_zero_if_correct_and_infinity_if_wrong():
    """Slots after the size do not count."""
    scores = torch.tensor(
        [[-torch.inf, torch.inf, torch.inf], [torch.inf, 0.0, 0.0], [-torch.inf, -torch.inf, 0.0]],
        requires_grad=True,
    )
    loss = stop_loss(scores, torch.tensor([[1], [2], [1]]), reduction="none")
    assert loss.tolist() == [0, torch.inf, torch.inf]
    (gradient,) = torch.autograd.grad(loss[0], scores)
    assert (gradient == 0).all()
