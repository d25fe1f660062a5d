"""The coached multiset loss, against its formula in plain Python."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchmultiset.losses import coached_loss, multiset_loss

C = 3


def plain(logits: list[list[float]], labels: list[int], target: reference.Multiset, share: float, end: int | None):
    total = []
    for row, free in zip(logits, reference.free_multisets(target, labels, end), strict=True):
        pi = reference.softmax(row)
        there = math.fsum(pi[c] for c in free if free[c])
        for c, n in free.items():
            if n:
                wanted = (1 - share) * n / free.total() + share * pi[c] / there
                total.append(-wanted * math.log(pi[c]))
    return math.fsum(total)


def draw(seed: int, end: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 5, C + end, generator=generator, dtype=torch.float64) * 3
    labels = torch.randint(C + end, (6, 5), generator=generator)
    return logits, labels, torch.randint(3, (6, C), generator=generator)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_it_is_its_formula(seed, share, end):
    logits, labels, target = draw(seed, end)
    found = coached_loss(logits, labels, target, coaching=share, end=end, reduction="none")
    expected = [
        plain(row, named, multiset, share, C if end else None)
        for row, named, multiset in zip(logits.tolist(), labels.tolist(), reference.to_counters(target), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("end", [False, True])
def test_without_a_coach_it_is_the_multiset_loss_in_value_and_gradient(end):
    logits, labels, target = draw(0, end)
    gradients = []
    for loss in (
        lambda z: coached_loss(z, labels, target, coaching=0, end=end),
        lambda z: multiset_loss(z, labels, target, end=end),
    ):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf)
        value.backward()
        gradients.append((value.detach(), leaf.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_no_gradient_goes_through_the_mixture():
    """The gradient is that of a cross-entropy with a target that is kept: pi - wanted, at each step."""
    logits, labels, target = draw(1, False)
    leaf = logits.clone().requires_grad_()
    coached_loss(leaf, labels, target, coaching=0.4, reduction="sum").backward()
    for row, named, multiset, slope in zip(
        logits.tolist(), labels.tolist(), reference.to_counters(target), leaf.grad.tolist(), strict=True
    ):
        for scores, free, found in zip(row, reference.free_multisets(multiset, named), slope, strict=True):
            pi = reference.softmax(scores)
            there = math.fsum(pi[c] for c in range(C) if free[c])
            expected = [0.0] * C
            if there:
                wanted = [0.6 * free[c] / free.total() + 0.4 * pi[c] / there * (free[c] > 0) for c in range(C)]
                expected = [p - w for p, w in zip(pi, wanted, strict=True)]
            assert found == pytest.approx(expected, abs=1e-9)


def test_a_policy_that_names_one_order_surely_is_content_with_a_full_coach():
    """The multiset loss is not: it wants all orders alike."""
    sure = torch.tensor([[[50.0, 0, 0], [0, 50.0, 0]]])
    labels, target = torch.tensor([[0, 1]]), torch.tensor([[1, 1, 0]])
    assert coached_loss(sure, labels, target, coaching=1).item() == pytest.approx(0, abs=1e-6)
    assert multiset_loss(sure, labels, target).item() > 20


def test_impossible_labels_and_half_precision():
    logits, labels, target = draw(2, False)
    target[:, 1] = 0
    logits[..., 1] = -math.inf  # not wanted, so it does not matter
    assert coached_loss(logits, labels, target, coaching=0.5).isfinite()
    logits, labels, target = draw(3, False)
    half = logits.bfloat16()
    loss = coached_loss(half, labels, target, coaching=0.5)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, coached_loss(half.float(), labels, target, coaching=0.5))


def test_finished_steps_and_empty_targets_weigh_nothing():
    logits, labels, _ = draw(4, False)
    nothing = torch.zeros(6, C, dtype=torch.int64)
    assert coached_loss(logits, labels, nothing, coaching=0.7, reduction="none").tolist() == [0.0] * 6


@pytest.mark.usefixtures("without_shape_hook")
def test_what_does_not_fit_is_named():
    logits, labels, target = draw(0, False)
    with pytest.raises(ValueError, match=r"coaching must be from 0 to 1, but is 1\.5"):
        coached_loss(logits, labels, target, coaching=1.5)
    with pytest.raises(ValueError, match="logits must be"):
        coached_loss(logits, labels, target, coaching=0.5, end=True)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_is_free_and_ruled_out_costs_infinitely_much(share):
    logits = torch.tensor([[[0.0, -math.inf, 0.0]]])
    labels, target = torch.tensor([[0]]), torch.tensor([[0, 1, 0]])
    assert coached_loss(logits, labels, target, coaching=share) == math.inf
    assert multiset_loss(logits, labels, target) == math.inf
