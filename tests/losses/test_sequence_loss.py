from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import reference
import torch
from fakes import TablePolicy
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import logits, masks, multisets

from torchmultiset.losses import multiset_loss, sequence_loss
from torchmultiset.rollout import forced, rollout


@st.composite
def sequences(draw: st.DrawFn, num_classes: int, batch: int, steps: int) -> list[list[int]]:
    """Target sequences, padded with negative labels."""
    rows = []
    for _ in range(batch):
        row = draw(st.lists(st.integers(0, num_classes - 1), max_size=steps))
        rows.append(row + [draw(st.sampled_from([-1, -100]))] * (steps - len(row)))
    return rows


@pytest.mark.parametrize("masked", [False, True])
@given(data=st.data())
def test_the_loss_is_the_negative_log_probability_of_the_sequence(masked, data):
    num_classes, batch, steps = (data.draw(st.integers(1, n)) for n in (5, 3, 5))
    rows = data.draw(sequences(num_classes, batch, steps))
    scores = data.draw(logits(batch, steps, num_classes))
    where = data.draw(masks(batch, steps)) if masked else None
    found = sequence_loss(scores, torch.tensor(rows), where=where, reduction="none")
    counted = where.tolist() if masked else [[True] * steps] * batch
    wanted = [reference.sequence_loss(*example) for example in zip(scores.tolist(), rows, counted, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]]).log()[None]
    loss = sequence_loss(logits, torch.tensor([[1, 2, -1]]))
    assert loss.item() == pytest.approx(-math.log(0.25) - math.log(0.8))


def test_padding_has_no_loss_and_no_gradient():
    logits = torch.zeros(1, 2, 3, requires_grad=True)
    value = sequence_loss(logits + torch.tensor([[0.0], [1e30]]), torch.tensor([[1, -1]]))
    value.backward()
    assert value.item() == pytest.approx(math.log(3))
    assert (logits.grad[:, 1] == 0).all()


@given(multisets(3, min_size=1, max_size=4), st.integers(0, 999))
def test_the_mean_over_permutations_equals_the_multiset_loss_of_oracle_rollouts(target, seed):
    """Both expectations over all orderings of the target, and their gradients, are equal for any policy.

    A uniform permutation of the items is a trajectory of the oracle, so the policy receives the same prefixes, and the
    expected negative log-probability of the next label is the cross-entropy with the oracle.
    """
    size = target.total()
    orderings = torch.tensor(sorted(set(itertools.permutations(target.elements()))))
    # The oracle's probability of each ordering is a product of shares of the free items.
    probability = torch.tensor(
        [
            math.prod(
                free[label] / free.total()
                for free, label in zip(reference.free_multisets(target, row), row, strict=True)
            )
            for row in orderings.tolist()
        ],
        dtype=torch.float64,
    )
    assert probability.sum().item() == pytest.approx(1)

    policy = TablePolicy.random(3, size, seed=seed)
    scores, _, labels = rollout(policy, torch.zeros(len(orderings), 1), forced(orderings), size)
    counts = to_counts([target], 3).expand(len(orderings), -1)
    sequence = probability @ sequence_loss(scores, orderings, reduction="none")
    multiset = probability @ multiset_loss(scores, labels, counts, reduction="none")
    assert sequence.item() == pytest.approx(multiset.item(), rel=1e-12)

    gradients = [torch.autograd.grad(loss, policy.table, retain_graph=True)[0] for loss in (sequence, multiset)]
    torch.testing.assert_close(*gradients)


def test_for_a_single_permutation_the_loss_differs_from_the_multiset_loss():
    """Only the expectations are equal, so the test above can fail."""
    target = Counter({0: 1, 1: 1})
    policy = TablePolicy.random(2, 2, seed=0)
    scores, _, labels = rollout(policy, torch.zeros(1, 1), forced(torch.tensor([[0, 1]])), 2)
    one = sequence_loss(scores, labels).item()
    assert one != pytest.approx(multiset_loss(scores, labels, to_counts([target], 2)).item(), rel=1e-3)
