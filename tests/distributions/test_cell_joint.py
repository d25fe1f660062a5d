"""The joint distribution of the cells' predictions, compared with an enumeration of all combinations."""

from __future__ import annotations

import itertools
import math

import count_reference as reference
import pytest
import torch
from torch import Tensor, nn

from torchmultiset.data import Batch
from torchmultiset.distributions import (
    CellJoint,
    cell_joint_log_probability,
    cell_size_log_probabilities,
    joint_states,
    largest_joint_size,
)
from torchmultiset.heads import CellCounts
from torchmultiset.losses import cell_count_loss, cell_joint_loss
from torchmultiset.model.objectives.counts import CountsObjective, joint_fallback
from torchmultiset.model.predictor import Predictor

B, N, C, MOST = 3, 4, 2, 3
SIZES = [(0, 3), (1, 3), (3, 3), (1, 2)]
sizes = pytest.mark.parametrize(("least", "most"), SIZES)
Multiset = tuple[int, ...]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def outcomes(logits: Tensor) -> dict[Multiset, float]:
    joint = reference.counts_of_all_outcomes([reference.softmax(row) for row in logits.tolist()])
    return {tuple(counts)[: logits.shape[1] - 1]: float(p) for counts, p in joint.items()}


def expected(logits: Tensor, scores: list[float], least: int, most: int) -> dict[Multiset, float]:
    weights = {
        m: p * math.exp(scores[sum(m)]) for m, p in outcomes(logits).items() if least <= sum(m) <= most and p > 0
    }
    total = math.fsum(weights.values())
    return {m: weight / total for m, weight in weights.items()}


def all_multisets(most: int) -> list[Multiset]:
    return [m for m in itertools.product(range(most + 1), repeat=C) if sum(m) <= most]


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("cells", [1, 2, 4])
def test_counts_of_cells_equal_a_sum_over_all_outcomes(cells, classes):
    """Multisets of different sizes in one batch, some with more labels than there are cells."""
    logits = draw(1, cells, classes + 1)
    by_hand = outcomes(logits[0])
    multisets = [m for m in itertools.product(range(cells + 2), repeat=classes) if sum(m) <= cells + 1]
    found = cell_joint_log_probability(logits.expand(len(multisets), -1, -1), torch.tensor(multisets)).exp().tolist()
    assert found == pytest.approx([by_hand.get(m, 0.0) for m in multisets], rel=1e-9, abs=1e-300)
    assert math.fsum(found) == pytest.approx(1)


def test_sizes_are_counts_of_cells_that_predict_a_class():
    logits = draw(B, N, C + 1)
    for row, found in zip(logits, cell_size_log_probabilities(logits, MOST).exp().tolist(), strict=True):
        by_hand = outcomes(row)
        assert found == pytest.approx(
            [math.fsum(p for m, p in by_hand.items() if sum(m) == k) for k in range(MOST + 1)]
        )


@sizes
@pytest.mark.parametrize("with_scores", [False, True])
def test_the_belief_equals_enumeration(least, most, with_scores):
    logits = draw(B, N, C + 1)
    scores = draw(1, most + 1, seed=1) if with_scores else None
    belief = CellJoint(logits, least, most, size_scores=scores)
    ranked = belief.ranked(20)
    size_probabilities, count_probabilities = belief.size_probabilities(), belief.count_probabilities()
    for i in range(B):
        by_hand = expected(logits[i], [0.0] * (most + 1) if scores is None else scores[0].tolist(), least, most)
        for m in all_multisets(most + 1):
            found = belief.log_probability(torch.tensor([m]).expand(B, -1))[i].exp().item()
            assert found == pytest.approx(by_hand.get(m, 0.0), rel=1e-9)
        order = sorted(by_hand, key=by_hand.__getitem__, reverse=True)
        assert [tuple(row) for row in ranked.counts[i, : len(order)].tolist()] == order
        assert ranked.log_probability[i, : len(order)].exp().tolist() == pytest.approx([by_hand[m] for m in order])
        assert (ranked.log_probability[i, len(order) :] == -math.inf).all()
        assert tuple(belief.best()[i].tolist()) == order[0]
        for n in range(most + 1):
            share = math.fsum(p for m, p in by_hand.items() if sum(m) == n)
            assert size_probabilities[i, n].item() == pytest.approx(share, abs=1e-12)
            for c in range(C):
                share = math.fsum(p for m, p in by_hand.items() if m[c] == n)
                assert count_probabilities[i, c, n].item() == pytest.approx(share, abs=1e-9)
        known = belief.given_size(most)
        left = {m: p for m, p in by_hand.items() if sum(m) == most}
        best = max(left, key=left.__getitem__)
        assert tuple(known.best()[i].tolist()) == best
        share = known.log_probability(torch.tensor([best]).expand(B, -1))[i].exp().item()
        assert share == pytest.approx(left[best] / math.fsum(left.values()))


@sizes
def test_the_loss_is_the_negative_log_probability_of_the_belief(least, most):
    logits, scores = draw(1, N, C + 1), draw(most + 1, seed=1)
    target = torch.tensor([m for m in all_multisets(most) if sum(m) >= least])
    logits = logits.expand(len(target), -1, -1)
    loss = cell_joint_loss(logits, target, sizes=(least, most), size_scores=scores, reduction="none")
    belief = CellJoint(logits, least, most, size_scores=scores[None])
    torch.testing.assert_close(-loss, belief.log_probability(target))
    assert (-loss).exp().sum().item() == pytest.approx(1)
    torch.testing.assert_close(
        cell_joint_loss(logits, target, reduction="none"), -cell_joint_log_probability(logits, target)
    )


def test_with_one_class_the_joint_loss_equals_the_independent_one():
    logits, target = draw(5, 6, 2), torch.arange(5)[:, None]
    torch.testing.assert_close(
        cell_joint_loss(logits, target, reduction="none"), cell_count_loss(logits, target, reduction="none")
    )


@pytest.mark.parametrize("classes", [1, 2, 3, 5])
@pytest.mark.parametrize("states", [1, 2, 5, 8, 12, 100])
def test_the_largest_joint_size_equals_that_found_by_a_search(classes, states):
    def most_states(size: int) -> int:
        counts = [m for m in itertools.product(range(size + 1), repeat=classes) if sum(m) == size]
        return int(joint_states(torch.tensor(counts)).max())

    largest = next(size for size in itertools.count() if size == 5 or most_states(size + 1) > states)
    assert min(largest_joint_size(classes, states), 5) == largest


SIX_CELLS, THREE_CLASSES = 6, 3
BOUNDS = [1, 2, 4, 8, 12]
"""Bounds on the sub-multisets of three classes that keep up to 0, 1, 2, 3 and 4 labels exact."""
bounds = pytest.mark.parametrize("states", BOUNDS)


def mixed_by_hand(logits: Tensor, scores: list[float], least: int, most: int, exact: int) -> dict[Multiset, float]:
    """Exact probabilities up to a size; larger sizes have their exact probability, divided by independent counts."""
    all_outcomes = outcomes(logits)
    joint = {m: p for m, p in all_outcomes.items() if sum(m) <= most}
    multisets = [m for m in itertools.product(range(most + 1), repeat=THREE_CLASSES) if sum(m) <= most]
    each = [
        [math.fsum(p for m, p in all_outcomes.items() if m[c] == n) for n in range(most + 1)]
        for c in range(THREE_CLASSES)
    ]
    apart = {m: math.prod(each[c][n] for c, n in enumerate(m)) for m in multisets}
    weights = {}
    for m in multisets:
        share = math.fsum(p for other, p in joint.items() if sum(other) == sum(m))
        within = apart[m] / math.fsum(p for other, p in apart.items() if sum(other) == sum(m))
        if least <= sum(m):
            weights[m] = math.exp(scores[sum(m)]) * (joint.get(m, 0.0) if sum(m) <= exact else share * within)
    total = math.fsum(weights.values())
    return {m: weight / total for m, weight in weights.items()}


@bounds
@pytest.mark.parametrize(("least", "most"), [(0, 4), (1, 4), (3, 4), (4, 4)])
@pytest.mark.parametrize("with_scores", [False, True])
def test_sizes_with_too_many_sub_multisets_have_independent_counts(states, least, most, with_scores):
    logits = draw(1, SIX_CELLS, THREE_CLASSES + 1)
    scores = draw(1, most + 1, seed=1) if with_scores else None
    exact = BOUNDS.index(states)
    by_hand = mixed_by_hand(logits[0], [0.0] * (most + 1) if scores is None else scores[0].tolist(), least, most, exact)
    target = torch.tensor([*by_hand])
    belief = CellJoint(logits.expand(len(target), -1, -1), least, most, states, scores)
    assert belief.exact_size == exact
    found = belief.log_probability(target).exp()
    assert found.tolist() == pytest.approx([*by_hand.values()], rel=1e-9)
    assert found.sum().item() == pytest.approx(1, rel=1e-12)
    loss = cell_joint_loss(
        belief.logits, target, states=states, sizes=(least, most), size_scores=scores, reduction="none"
    )
    torch.testing.assert_close(-loss, found.log())

    belief = CellJoint(logits, least, most, states, scores)
    sizes, counts = belief.size_probabilities()[0].tolist(), belief.count_probabilities()[0].tolist()
    for n in range(most + 1):
        assert sizes[n] == pytest.approx(math.fsum(p for m, p in by_hand.items() if sum(m) == n))
        for c in range(THREE_CLASSES):
            assert counts[c][n] == pytest.approx(math.fsum(p for m, p in by_hand.items() if m[c] == n))
    order = sorted(by_hand, key=by_hand.__getitem__, reverse=True)
    ranked = belief.ranked(len(order))
    assert [tuple(row) for row in ranked.counts[0].tolist()] == order
    assert ranked.log_probability[0].exp().tolist() == pytest.approx([by_hand[m] for m in order])
    assert tuple(belief.best()[0].tolist()) == order[0]
    known = belief.given_size(most).log_probability(torch.tensor([[most, 0, 0]])).exp().item()
    share = math.fsum(p for m, p in by_hand.items() if sum(m) == most)
    assert known == pytest.approx(by_hand[most, 0, 0] / share)


@bounds
def test_without_sizes_all_multisets_of_the_cells_sum_to_one(states):
    cells = 4
    target = torch.tensor([m for m in itertools.product(range(cells + 1), repeat=THREE_CLASSES) if sum(m) <= cells])
    logits = draw(1, cells, THREE_CLASSES + 1).expand(len(target), -1, -1)
    loss = cell_joint_loss(logits, target, states=states, reduction="none")
    assert (-loss).exp().sum().item() == pytest.approx(1, rel=1e-12)
    one_by_one = [cell_joint_loss(logits[:1], row[None], states=states).item() for row in target]
    assert loss.tolist() == pytest.approx(one_by_one)


def test_more_labels_than_cells_are_impossible_in_both_forms():
    logits, target = draw(1, 2, 3), torch.tensor([[2, 1], [1, 1], [2, 2]])
    for states in (4, 100):
        loss = cell_joint_loss(logits.expand(3, -1, -1), target, states=states, sizes=(0, 4), reduction="none")
        belief = CellJoint(logits, 0, 4, states)
        found = CellJoint(logits.expand(3, -1, -1), 0, 4, states).log_probability(target)
        torch.testing.assert_close(-loss, found)
        assert (found == -math.inf).tolist() == [True, False, True]
        assert belief.ranked(15).log_probability.exp().sum().item() == pytest.approx(1)
        assert belief.count_probabilities().sum(-1).tolist() == [pytest.approx([1, 1])]


@pytest.mark.slow
def test_gradients_are_correct_even_if_many_states_are_impossible():
    logits, scores = draw(3, 3, 3).requires_grad_(), draw(3, 4, seed=1).requires_grad_()
    target = torch.tensor([[2, 1], [0, 0], [1, 0]])
    assert torch.autograd.gradcheck(lambda x: cell_joint_loss(x, target, reduction="none"), (logits,))
    for states in (1, 2, 4, 6):
        assert torch.autograd.gradcheck(
            lambda x, s, states=states: cell_joint_loss(
                x, target, sizes=(0, 3), states=states, size_scores=s, reduction="none"
            ),
            (logits, scores),
        )


@pytest.mark.parametrize("states", [1, 1024])
def test_extreme_scores_are_accurate_in_single_precision(states):
    generator = torch.Generator().manual_seed(0)
    logits = 20 * torch.randn(4, 64, 11, generator=generator)
    target = torch.zeros(4, 10, dtype=torch.int64)
    target[0, :4], target[1, 2], target[2, 5:7] = 1, 5, 2
    logits.requires_grad_()
    loss = cell_joint_loss(logits, target, states=states, reduction="none")
    double = cell_joint_loss(logits.detach().double(), target, states=states, reduction="none")
    torch.testing.assert_close(loss.double(), double, rtol=1e-4, atol=1e-3)
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("states", [2, 64])
def test_a_head_is_trained_and_predicts_with_the_joint_distribution(tmp_path, states):
    torch.manual_seed(0)
    head = CellCounts(C, 5, hidden=8, layers=1, sizes=(1, MOST), size_potential=True, joint_states=states)
    predictor = Predictor(nn.Identity(), head, ["a", "b"], max_size=MOST, min_size=1).double().eval()
    x, target = draw(2, 5, 2, 2), torch.tensor([[1, 0], [0, 2]])  # one label is exact with both bounds
    loss = CountsObjective().loss(predictor, Batch(x, target, torch.full((2, MOST), -1)), torch.Generator())
    assert loss.item() == pytest.approx(-predictor.log_probability(x, target).mean().item())
    assert isinstance(predictor.belief(x), CellJoint)
    assert torch.equal(predictor.predict(x), predictor.belief(x).best())
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path, encoder=nn.Identity())
    torch.testing.assert_close(loaded.log_probability(x, target), predictor.log_probability(x, target))


def test_a_sentence_reports_the_sizes_with_independent_counts():
    counts = torch.tensor([[1, 1], [3, 1], [2, 2], [4, 0]])
    assert joint_fallback(CellCounts(C, 5), counts) == ""
    assert joint_fallback(CellCounts(C, 5, joint_states=9), counts) == ""
    by_hand = joint_fallback(CellCounts(C, 5, joint_states=8), counts)
    start = "Counts of different classes are treated as independent for 3 of 4 multisets, those with more than 3 labels"
    assert by_hand.startswith(start)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CellJoint(torch.zeros(1, 2, 3), 3, 2), "least must be from 0 to most = 2"),
        (lambda: CellJoint(torch.zeros(1, 2, 3), 0, 2, states=0), "states must be at least 1"),
        (lambda: CellJoint(torch.zeros(1, 2, 3), 1, 2).given_size(0), "size must be from 1 to 2"),
        (lambda: CellJoint(torch.zeros(1, 2, 3), 1, 2).ranked(0), "k must be at least 1"),
        (lambda: cell_joint_loss(torch.zeros(1, 2, 4), torch.tensor([[1, 0]])), "logits must be"),
        (
            lambda: cell_joint_loss(torch.zeros(1, 2, 3), torch.tensor([[1, 0]]), sizes=(2, 2)),
            "target must hold multisets",
        ),
        (
            lambda: cell_joint_loss(torch.zeros(1, 2, 3), torch.tensor([[1, 0]]), size_scores=torch.zeros(3)),
            "size_scores must be None without sizes",
        ),
        (lambda: CellCounts(C, 5, joint_states=-1), "joint_states must be at least 0"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
