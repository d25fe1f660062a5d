from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Multiset, Row, log_softmax, softmax, to_counters, to_counts
from strategies import multisets
from torch.nn.functional import cross_entropy

from torchmultiset._install import pip_install
from torchmultiset.losses import hungarian_loss
from torchmultiset.multiset import from_labels

MULTISETS = [[0, 0, 1, 3], [], [2], [1, 1, 1, 1, 1]]
"""Multisets: with repeats, empty, with most slots empty, with all slots used."""
C, S = 4, 5
TARGET = from_labels(MULTISETS, C)


def scores(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Random logits, flat enough that two matchings are never equally good in float64."""
    shape = shape or (len(MULTISETS), S, C + 1)
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def best_labels(logits: list[Row], target: Multiset, nothing: int) -> list[int]:
    """Label of each slot in the best of all assignments of labels to slots."""
    probabilities, labels = [softmax(row) for row in logits], list(target.elements())
    best = max(
        itertools.permutations(range(len(logits)), len(labels)),
        key=lambda slots: math.fsum(probabilities[s][y] for s, y in zip(slots, labels, strict=True)),
    )
    given_to = dict(zip(best, labels, strict=True))
    return [given_to.get(slot, nothing) for slot in range(len(logits))]


def brute_force(logits: list[Row], target: Multiset, nothing_weight: float) -> float:
    nothing = len(logits[0]) - 1
    return -math.fsum(
        (nothing_weight if label == nothing else 1) * log_softmax(row)[label]
        for row, label in zip(logits, best_labels(logits, target, nothing), strict=True)
    )


@given(st.data())
def test_the_loss_equals_brute_force_over_all_matchings(data):
    num_classes, slots = data.draw(st.sampled_from([1, 2, 3, 5])), data.draw(st.integers(1, 5))
    targets = data.draw(st.lists(multisets(num_classes, max_size=slots), min_size=1, max_size=3))
    weight = data.draw(st.sampled_from([0.1, 0.0, 1.0, 2.5]))
    logits = data.draw(st.sampled_from([0.1, 1.0, 2.0])) * scores(
        len(targets), slots, num_classes + 1, seed=data.draw(st.integers(0, 2**32 - 1))
    )
    found = hungarian_loss(logits, to_counts(targets, num_classes), nothing_weight=weight, reduction="none")
    wanted = [brute_force(rows, target, weight) for rows, target in zip(logits.tolist(), targets, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_by_hand():
    """A greedy matching would give b (0.6) to slot 0 and a (0.05) to slot 1, but 0.35 + 0.5 is better."""
    logits = torch.tensor([[[0.35, 0.6, 0.05], [0.05, 0.5, 0.45]]]).log()
    both, only_b = torch.tensor([[1, 1]]), torch.tensor([[0, 1]])
    assert hungarian_loss(logits, both).item() == pytest.approx(-math.log(0.35) - math.log(0.5))
    assert hungarian_loss(logits, only_b).item() == pytest.approx(-math.log(0.6) - 0.1 * math.log(0.45))


def test_the_matching_ignores_scores_of_nothing():
    """As in DETR: slot 0 gets the label for its 0.5, although the total loss would be lower with slot 1."""
    logits = torch.tensor([[[0.5, 0.0, 0.5], [0.45, 0.5, 0.05]]]).log()
    loss = hungarian_loss(logits, torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(-math.log(0.5) - 0.1 * math.log(0.05))


def test_the_sum_over_the_batch_is_the_loss_of_detr_times_the_sum_of_its_weights():
    logits = scores().requires_grad_()
    labels = torch.tensor(
        [best_labels(rows, target, C) for rows, target in zip(logits.tolist(), to_counters(TARGET), strict=True)]
    )
    weight = torch.ones(C + 1, dtype=torch.float64)
    weight[-1] = 0.1
    detr = cross_entropy(logits.transpose(1, 2), labels, weight)
    ours = hungarian_loss(logits, TARGET, reduction="sum")
    torch.testing.assert_close(ours, detr * weight[labels].sum())
    (wanted,), (found,) = torch.autograd.grad(detr, logits), torch.autograd.grad(ours, logits)
    torch.testing.assert_close(found, wanted * weight[labels].sum())


def test_the_order_of_the_slots_does_not_matter():
    logits, before = scores(), hungarian_loss(scores(), TARGET, reduction="none")
    for seed in range(3):
        order = torch.randperm(S, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(hungarian_loss(logits[:, order], TARGET, reduction="none"), before)


def test_every_slot_of_an_empty_target_should_predict_nothing():
    loss = hungarian_loss(scores(), TARGET, reduction="none", nothing_weight=0.3)[1]
    assert loss.item() == pytest.approx(-0.3 * math.fsum(log_softmax(row)[C] for row in scores()[1].tolist()))


@pytest.mark.parametrize("nothing_weight", [0.1, 0.0])
def test_gradcheck(nothing_weight):
    assert torch.autograd.gradcheck(
        lambda logits: hungarian_loss(logits, TARGET, nothing_weight=nothing_weight, reduction="none"),
        scores().requires_grad_(),
    )


def test_an_excluded_class_gives_infinity_only_if_it_is_in_the_target():
    logits = scores()
    logits[..., 3] = -torch.inf  # only the first target has it
    logits.requires_grad_()
    each = hungarian_loss(logits, TARGET, reduction="none")
    assert each[0] == torch.inf
    assert torch.isfinite(each[1:]).all()
    (gradient,) = torch.autograd.grad(each[1:].sum(), logits)
    assert torch.isfinite(gradient).all()


def test_with_weight_zero_the_class_nothing_may_be_excluded():
    logits = scores()
    logits[..., C] = -torch.inf
    logits.requires_grad_()
    each = hungarian_loss(logits, TARGET, nothing_weight=0.0, reduction="none")
    assert torch.isfinite(each).all()
    assert each[1] == 0
    (gradient,) = torch.autograd.grad(each.sum(), logits)
    assert torch.isfinite(gradient).all()


def test_nan_scores_give_a_nan_loss():
    logits = scores()
    logits[0, 2] = torch.nan
    each = hungarian_loss(logits, TARGET, reduction="none")
    assert each.isnan().tolist() == [True, False, False, False]


def test_slots_learn_a_multiset_with_repeats():
    logits = 0.1 * scores()
    for _ in range(50):
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(hungarian_loss(logits, TARGET, reduction="sum"), logits)
        logits = (logits - gradient).detach()
    predicted = logits.argmax(-1)
    assert to_counters(from_labels(predicted, C, where=predicted < C)) == [Counter(labels) for labels in MULTISETS]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hungarian_loss(scores()[:, 1:], TARGET),
            "target must have at most 4 labels, one per slot, but one has 5",
        ),
        (lambda: hungarian_loss(scores()[..., 1:], TARGET), "logits must be a floating-point tensor of shape"),
        (lambda: hungarian_loss(scores()[:2], TARGET), "logits must be a floating-point tensor of shape"),
        (lambda: hungarian_loss(scores()[:, 0], TARGET), "logits must be a floating-point tensor of shape"),
        (lambda: hungarian_loss(scores().long(), TARGET), "logits must be a floating-point tensor of shape"),
        (lambda: hungarian_loss(scores(), TARGET.float()), "target must be an int64 tensor"),
        (lambda: hungarian_loss(scores(), -TARGET), "target must hold non-negative counts"),
        (lambda: hungarian_loss(scores(), TARGET, reduction="max"), "reduction must be one of"),
        (lambda: hungarian_loss(scores(), TARGET, nothing_weight=-0.1), "nothing_weight must be"),
        (lambda: hungarian_loss(scores(), TARGET, nothing_weight=math.nan), "nothing_weight must be"),
        (lambda: hungarian_loss(scores(), TARGET, nothing_weight=math.inf), "nothing_weight must be"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_without_scipy_the_error_has_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=re.escape(f"SciPy: {pip_install('hungarian')}")):
        hungarian_loss(scores(), TARGET)
