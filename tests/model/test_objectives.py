"""Objectives: their rollouts and losses, compared with plain Python, and training on a tiny problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import reference
import torch
from tiny_problem import MOST, C, build, compute_loss, draw, exact_match, train
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.model.objectives import (
    CountsObjective,
    HungarianObjective,
    KLMatchingObjective,
    MarginalObjective,
    MultisetObjective,
    OneStepObjective,
    PowerObjective,
    ReinforceObjective,
    SequenceObjective,
    sequence,
)
from torchmultiset.model.outputs import SequentialOutput

# --- rollouts ---


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_the_oracle_emits_only_free_labels(stop):
    batch = draw(300, least=MOST if stop == "fixed" else 0)
    predictor, objective = build(stop, strategy="oracle")
    labels = compute_loss(objective, predictor, batch)[0].labels.tolist()
    end = C if stop == "end" else None
    for row, target in zip(labels, reference.to_counters(batch.target), strict=True):
        for label, free in zip(row, reference.free_multisets(target, row, end), strict=True):
            assert free[label] > 0 or not free


def test_the_oracle_draws_random_orders():
    labels = torch.tensor([[2, 0, 1]]).expand(200, -1)
    batch = Batch(torch.zeros(200, 16), torch.tensor([[1, 1, 1, 0]]).expand(200, -1), labels)
    predictor, objective = build("fixed", strategy="oracle")
    drawn = Counter(tuple(row) for row in compute_loss(objective, predictor, batch)[0].labels.tolist())
    assert len(drawn) == 6
    assert min(drawn.values()) > 12  # 33 are expected; the bound is 4 standard deviations


def test_greedy_and_stochastic_follow_the_policy():
    batch = draw(400)
    predictor, greedy = build("policy", strategy="greedy")
    output, _ = compute_loss(greedy, predictor, batch)
    assert torch.equal(output.labels, output.logits.argmax(-1))
    for objective in (MultisetObjective("stochastic"), ReinforceObjective(), KLMatchingObjective()):
        output, _ = compute_loss(objective, predictor, batch, seed=1)
        again, _ = compute_loss(objective, predictor, batch, seed=1)
        other, _ = compute_loss(objective, predictor, batch, seed=2)
        assert torch.equal(output.labels, again.labels)
        assert not torch.equal(output.labels, other.labels)
        # About 1,600 draws, with the frequencies of the policy's probabilities.
        expected = output.logits.softmax(-1).sum((0, 1))
        drawn = torch.stack([(output.labels == c).sum() for c in range(C)])
        assert ((drawn - expected).abs() < 4 * expected.sqrt()).all()


@pytest.mark.parametrize("kind", [OneStepObjective, CountsObjective, HungarianObjective, PowerObjective])
def test_an_objective_of_heads_needs_a_head(kind):
    predictor, _ = build("policy")
    with pytest.raises(ValueError, match="LSTMPolicy is a policy, not a one-shot head: train a policy with"):
        compute_loss(kind(), predictor, draw(5))


@pytest.mark.parametrize("name", ["multi", "rl", "dm-l1", "dm-kl", "seq", "marginal"])
def test_an_objective_of_policies_needs_a_policy(name):
    _, objective = build("policy", name)
    predictor, _ = build("policy", "counts")
    with pytest.raises(ValueError, match="CountTable is a one-shot head, which does not emit labels one at a time"):
        compute_loss(objective, predictor, draw(5))


# --- orders of the sequence loss ---


def by_class(order: list[int]) -> Callable[[list[int]], list[int]]:
    return lambda labels: sorted(labels, key=order.index)


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
@pytest.mark.parametrize(
    ("rank", "order"), [("random", None), ("random-per-batch", None), ("area", [3, 1, 0, 2]), ("spatial", [2, 0, 1, 3])]
)
def test_the_target_is_emitted_in_the_order_of_its_rank(stop, rank, order):
    batch = draw(200, least=MOST if stop == "fixed" else 0, found=True)
    predictor, objective = build(stop, "seq", rank=rank)
    output, _ = compute_loss(objective, predictor, batch)
    if order is None:  # one unknown permutation, on which all examples of the batch must agree
        before = {
            (a, b)
            for row, n in zip(output.labels.tolist(), batch.target.sum(-1).tolist(), strict=True)
            for i, a in enumerate(row[:n])
            for b in row[i + 1 : n]
            if a != b
        }
        assert len(before) == C * (C - 1) / 2
        order = sorted(range(C), key=lambda c: -sum(a == c for a, _ in before))
    for row, labels in zip(output.labels.tolist(), batch.labels.tolist(), strict=True):
        expected = by_class(order)([label for label in labels if label >= 0])
        assert row[: len(expected)] == expected
        if stop == "end":
            assert row[len(expected)] == C


def test_the_random_rank_is_drawn_once_from_the_seed_or_for_each_batch():
    batch = Batch(torch.zeros(1, 16), torch.ones(1, C, dtype=torch.int64), torch.arange(C)[None])
    generator = torch.Generator().manual_seed(0)

    def orders(objective: SequenceObjective, batches: int = 20) -> set[tuple[int, ...]]:
        return {tuple(objective.order(batch, generator, num_classes=C)[0].tolist()) for _ in range(batches)}

    assert len(orders(SequenceObjective(seed=0))) == 1
    assert orders(SequenceObjective(seed=0)) == orders(SequenceObjective(seed=0))
    assert len(set.union(*[orders(SequenceObjective(seed=seed)) for seed in range(20)])) > 5
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(0).get_state()), "the generator was used"
    assert len(orders(SequenceObjective(rank="random-per-batch"))) > 5


def test_areas_and_positions_belong_to_objects_not_classes(monkeypatch):
    labels = torch.tensor([[1, 0, 1], [2, 2, 0]])
    areas = torch.tensor([[5.0, 7.0, 9.0], [1.0, 3.0, 2.0]])
    # In four bands of 25 pixels, the first image has 1 alone, then 0 and 1 in one band, although 1 is higher.
    first = [[40.0, 29, 2, 2], [5.0, 44, 2, 2], [70.0, 0, 2, 2]]
    second = [[40.0, 9, 2, 2], [5.0, 90, 2, 2], [5.0, 9, 2, 2]]
    target = torch.tensor([[1, 2, 0, 0], [1, 0, 2, 0]])
    batch = Batch(torch.zeros(2, 1, 100, 50), target, labels, torch.tensor([first, second]), areas)
    generator = torch.Generator()
    assert SequenceObjective(rank="area").order(batch, generator, num_classes=C).tolist() == [[1, 0, 1], [2, 0, 2]]
    reading = [[1, 0, 1], [0, 2, 2]]
    assert SequenceObjective(rank="spatial").order(batch, generator, num_classes=C).tolist() == reading
    # If the inputs are features of a backbone, boxes are still in pixels of images of height 100.
    features = batch._replace(x=torch.zeros(2, 512, 4, 2))
    assert SequenceObjective(rank="spatial", height=100).order(features, generator, num_classes=C).tolist() == reading
    monkeypatch.setattr(sequence, "_BANDS", 1)
    one_band = SequenceObjective(rank="spatial", height=100).order(batch, generator, num_classes=C)
    assert one_band.tolist() == [[0, 1, 1], [2, 0, 2]]


@pytest.mark.parametrize(("rank", "needs"), [("area", "areas"), ("spatial", "boxes")])
def test_a_rank_without_its_annotations_is_refused(rank, needs):
    with pytest.raises(ValueError, match=rf"rank '{rank}' needs {needs}, which this data does not have: use 'random'"):
        SequenceObjective(rank=rank).order(draw(5), torch.Generator(), num_classes=C)


def test_the_spatial_rank_of_vectors_needs_a_height():
    with pytest.raises(ValueError, match="rank 'spatial' needs the image height"):
        SequenceObjective(rank="spatial").order(draw(5, found=True), torch.Generator(), num_classes=C)


@pytest.mark.parametrize("rank", ["random", "random-per-batch"])
def test_ranks_are_on_the_device_of_the_batch(monkeypatch, rank):
    def check_device(labels: Tensor, permutation: Tensor) -> Tensor:
        assert permutation.device == labels.device
        return labels

    monkeypatch.setattr(sequence, "random_rank", check_device)
    batch = draw(5)
    moved = batch._replace(labels=batch.labels.to("meta"))  # the only other device that every machine has
    SequenceObjective(rank=rank).order(moved, torch.Generator(), num_classes=C)


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_a_multiset_that_is_too_large_is_refused_but_padding_is_not(stop):
    predictor, objective = build(stop, "seq")
    batch = draw(6, least=MOST)
    wide = batch._replace(labels=torch.nn.functional.pad(batch.labels, (0, 2), value=-1))
    assert torch.equal(compute_loss(objective, predictor, wide)[1], compute_loss(objective, predictor, batch)[1])
    wide.labels[4, MOST] = 1
    message = f"of this batch has {MOST + 1} labels, but the predictor emits at most {MOST}: .* max_size={MOST + 1}"
    with pytest.raises(ValueError, match=message):
        compute_loss(objective, predictor, wide)


def test_a_batch_of_empty_multisets_has_a_finite_loss():
    batch = Batch(torch.zeros(2, 16), torch.zeros(2, C, dtype=torch.int64), torch.empty(2, 0, dtype=torch.int64))
    for stop in ("policy", "end"):
        for name in ("multi", "seq", "rl"):
            predictor, objective = build(stop, name)
            output, loss = compute_loss(objective, predictor, batch)
            assert loss.isfinite()
            if stop == "end" and name == "seq":
                assert output.labels[:, 0].tolist() == [C, C]


# --- losses ---


WEIGHTS = {"stop_weight": 0.7, "entropy_weight": 0.2, "value_weight": 0.3, "size_weight": 0.4}


def plain_loss(name: str, stop: str, output: SequentialOutput, row: int, target: reference.Multiset) -> float:
    """Loss of one example with the weights above, including that of stopping."""
    logits, labels = output.logits[row].tolist(), output.labels[row].tolist()
    end = C if stop == "end" else None
    if name == "multi":
        loss = reference.multiset_loss(logits, labels, target, end=end)
    elif name == "seq":
        length = target.total() + (stop == "end")
        loss = reference.sequence_loss(logits, labels, [t < length for t in range(len(labels))])
    elif name == "rl":
        loss = reference.reinforce_loss(logits, labels, target, output.value[row].tolist(), 0.2, 0.3, end=end)
    elif name == "one-step":
        *shares, size = logits[0]
        loss = reference.one_step_loss(shares, size, target, 0.4)
    else:
        loss = reference.distribution_matching_loss(logits, target, name.removeprefix("dm-"))
    if output.stop is None:
        return loss
    return loss + 0.7 * reference.stop_loss(output.stop[row].tolist(), target)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        *[(name, stop) for name in ("multi", "seq", "rl") for stop in ("fixed", "policy", "end")],
        *[(name, stop) for name in ("dm-l1", "dm-kl", "one-step") for stop in ("fixed", "policy")],
    ],
)
def test_the_loss_is_the_sum_of_the_paper_loss_and_the_stopping_loss(name, stop):
    batch = draw(40, least=1)
    predictor, objective = build(stop, name, **WEIGHTS)
    output, loss = compute_loss(objective, predictor.double(), batch._replace(x=batch.x.double()))
    assert (output.stop is not None) == (stop == "policy" and name != "one-step")
    assert (output.value is not None) == (name == "rl")
    targets = reference.to_counters(batch.target)
    expected = [plain_loss(name, stop, output, row, target) for row, target in enumerate(targets)]
    assert loss.item() == pytest.approx(math.fsum(expected) / len(expected), rel=1e-9)


@pytest.mark.usefixtures("without_shape_hook")
def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy must be one of 'greedy', 'stochastic', 'oracle', but is 'orcale'"):
        MultisetObjective(strategy="orcale")


def test_an_objective_checks_the_bounds_of_its_fields():
    with pytest.raises(ValueError, match="marginal_orders must be at least 1, but is 0"):
        MarginalObjective(marginal_orders=0)
    with pytest.raises(ValueError, match="marginal_bound must be at least 1, but is 0"):
        MarginalObjective(marginal_bound=0)
    with pytest.raises(ValueError, match=r"stop_weight must be at least 0, but is -1\.0"):
        SequenceObjective(stop_weight=-1.0)


# --- training ---


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
@pytest.mark.parametrize("strategy", ["greedy", "stochastic", "oracle"])
def test_multi_learns_a_tiny_problem(stop, strategy):
    predictor, _, fresh = train(stop, "multi", strategy=strategy)
    assert exact_match(predictor, fresh) >= 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("stop", "rank"),
    [("fixed", "random"), ("policy", "random"), ("end", "random"), ("policy", "area"), ("policy", "spatial")],
)
def test_seq_learns_a_tiny_problem(stop, rank):
    predictor, _, fresh = train(stop, "seq", rank=rank, found=rank != "random")
    assert exact_match(predictor, fresh) >= 0.95
    orders = {"area": [3, 1, 0, 2], "spatial": [2, 0, 1, 3]}
    if rank in orders:  # the order is learned, too
        sequences = predictor.explain(fresh.x[:100]).sequence.tolist()
        emitted = [[label for label in row if label >= 0] for row in sequences]
        assert sum(row == by_class(orders[rank])(row) for row in emitted) >= 95


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_rl_learns_a_tiny_problem(stop):
    predictor, _, fresh = train(stop, "rl")
    assert exact_match(predictor, fresh) >= 0.95


def mean_entropy_of_shares(batch: Batch) -> float:
    targets = reference.to_counters(batch.target)
    return math.fsum(reference.entropy(reference.target_distribution(t, C)) for t in targets if t) / len(targets)


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(("name", "stop"), [("dm-l1", "fixed"), ("dm-kl", "fixed"), ("dm-kl", "policy")])
def test_matching_comes_near_the_minimum_of_its_loss(name, stop):
    _, loss, fresh = train(stop, name)
    # The minimum of L1 is 0, that of the cross-entropy is the entropy of the shares, and that of stopping is 0.
    minimum = mean_entropy_of_shares(fresh) if name == "dm-kl" else 0.0
    assert minimum - 1e-5 <= loss < minimum + 0.05


@pytest.mark.usefixtures("without_shape_hook")
def test_one_step_comes_near_the_minimum_of_its_loss():
    _, loss, fresh = train("policy", "one-step", steps=240)
    minimum = mean_entropy_of_shares(fresh)  # exact shares and sizes
    assert minimum - 1e-5 <= loss < minimum + 0.05


@pytest.mark.usefixtures("without_shape_hook")
def test_untrained_predictors_are_far_from_the_bounds():
    """This shows that the tests of training above can fail."""
    for stop in ("fixed", "policy", "end"):
        predictor, _, fresh = train(stop, "multi", steps=0)
        assert exact_match(predictor, fresh) < 0.4
    assert train("fixed", "dm-l1", steps=0)[1] > 0.3
    _, loss, fresh = train("fixed", "dm-kl", steps=0)
    assert loss > mean_entropy_of_shares(fresh) + 0.3
    assert Counter(fresh.target.sum(-1).tolist()) == {MOST: 1000}
