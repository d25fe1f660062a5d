"""Objectives: what is rolled in and what is lost, against plain Python; and that each of them teaches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import reference
import torch
from tiny_problem import MOST, C, build, carry_out, draw, exact_match, train
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

# --- what is rolled in ---


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_the_oracle_emits_only_free_labels(stop):
    batch = draw(300, least=MOST if stop == "fixed" else 0)
    predictor, objective = build(stop, strategy="oracle")
    labels = carry_out(objective, predictor, batch)[0].labels.tolist()
    end = C if stop == "end" else None
    for row, target in zip(labels, reference.to_counters(batch.target), strict=True):
        for label, free in zip(row, reference.free_multisets(target, row, end), strict=True):
            assert free[label] > 0 or not free


def test_the_oracle_draws_an_order_and_keeps_none_of_the_annotations():
    labels = torch.tensor([[2, 0, 1]]).expand(200, -1)
    batch = Batch(torch.zeros(200, 16), torch.tensor([[1, 1, 1, 0]]).expand(200, -1), labels)
    predictor, objective = build("fixed", strategy="oracle")
    drawn = Counter(tuple(row) for row in carry_out(objective, predictor, batch)[0].labels.tolist())
    assert len(drawn) == 6
    assert min(drawn.values()) > 12  # of 33 expected; 4 standard deviations


def test_greedy_and_stochastic_follow_the_policy():
    batch = draw(400)
    predictor, greedy = build("policy", strategy="greedy")
    output, _ = carry_out(greedy, predictor, batch)
    assert torch.equal(output.labels, output.logits.argmax(-1))
    for objective in (MultisetObjective("stochastic"), ReinforceObjective(), KLMatchingObjective()):
        output, _ = carry_out(objective, predictor, batch, seed=1)
        again, _ = carry_out(objective, predictor, batch, seed=1)
        other, _ = carry_out(objective, predictor, batch, seed=2)
        assert torch.equal(output.labels, again.labels)
        assert not torch.equal(output.labels, other.labels)
        # As often as the policy would have it: about 1600 draws, of which a quarter or so are of each class.
        expected = output.logits.softmax(-1).sum((0, 1))
        drawn = torch.stack([(output.labels == c).sum() for c in range(C)])
        assert ((drawn - expected).abs() < 4 * expected.sqrt()).all()


@pytest.mark.parametrize("kind", [OneStepObjective, CountsObjective, HungarianObjective, PowerObjective])
def test_an_objective_of_heads_needs_a_head(kind):
    predictor, _ = build("policy")
    with pytest.raises(ValueError, match="LSTMPolicy is a policy, not a one-shot head: train a policy with"):
        carry_out(kind(), predictor, draw(5))


@pytest.mark.parametrize("name", ["multi", "rl", "dm-l1", "dm-kl", "seq", "marginal"])
def test_an_objective_of_policies_needs_a_policy(name):
    _, objective = build("policy", name)
    predictor, _ = build("policy", "counts")
    with pytest.raises(ValueError, match="CountTable is a one-shot head, which does not emit labels one at a time"):
        carry_out(objective, predictor, draw(5))


# --- the orders of the sequence loss ---


def by_class(order: list[int]) -> Callable[[list[int]], list[int]]:
    return lambda labels: sorted(labels, key=order.index)


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
@pytest.mark.parametrize(
    ("rank", "order"), [("random", None), ("random-per-batch", None), ("area", [3, 1, 0, 2]), ("spatial", [2, 0, 1, 3])]
)
def test_the_target_is_emitted_in_the_order_of_its_rank(stop, rank, order):
    batch = draw(200, least=MOST if stop == "fixed" else 0, found=True)
    predictor, objective = build(stop, "seq", rank=rank)
    output, _ = carry_out(objective, predictor, batch)
    if order is None:  # one permutation for the whole batch: whichever it is, all examples must agree on it
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


def test_the_random_rank_is_drawn_once_from_the_seed_or_once_for_each_batch():
    batch = Batch(torch.zeros(1, 16), torch.ones(1, C, dtype=torch.int64), torch.arange(C)[None])
    generator = torch.Generator().manual_seed(0)

    def orders(objective: SequenceObjective, batches: int = 20) -> set[tuple[int, ...]]:
        return {tuple(objective.order(batch, generator, num_classes=C)[0].tolist()) for _ in range(batches)}

    assert len(orders(SequenceObjective(seed=0))) == 1
    assert orders(SequenceObjective(seed=0)) == orders(SequenceObjective(seed=0))
    assert len(set.union(*[orders(SequenceObjective(seed=seed)) for seed in range(20)])) > 5
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(0).get_state()), "it was not asked"
    assert len(orders(SequenceObjective(rank="random-per-batch"))) > 5


def test_area_and_place_are_those_of_each_object_and_not_of_its_class(monkeypatch):
    labels = torch.tensor([[1, 0, 1], [2, 2, 0]])
    areas = torch.tensor([[5.0, 7.0, 9.0], [1.0, 3.0, 2.0]])
    # Four bands of 25 pixels: the first picture has 1 alone, then 0 and 1 side by side though 1 is higher.
    first = [[40.0, 29, 2, 2], [5.0, 44, 2, 2], [70.0, 0, 2, 2]]
    second = [[40.0, 9, 2, 2], [5.0, 90, 2, 2], [5.0, 9, 2, 2]]
    target = torch.tensor([[1, 2, 0, 0], [1, 0, 2, 0]])
    batch = Batch(torch.zeros(2, 1, 100, 50), target, labels, torch.tensor([first, second]), areas)
    generator = torch.Generator()
    assert SequenceObjective(rank="area").order(batch, generator, num_classes=C).tolist() == [[1, 0, 1], [2, 0, 2]]
    reading = [[1, 0, 1], [0, 2, 2]]
    assert SequenceObjective(rank="spatial").order(batch, generator, num_classes=C).tolist() == reading
    # With a backbone's features as inputs, the boxes are still those of pictures 100 pixels high.
    features = batch._replace(x=torch.zeros(2, 512, 4, 2))
    assert SequenceObjective(rank="spatial", height=100).order(features, generator, num_classes=C).tolist() == reading
    monkeypatch.setattr(sequence, "_BANDS", 1)
    one_band = SequenceObjective(rank="spatial", height=100).order(batch, generator, num_classes=C)
    assert one_band.tolist() == [[0, 1, 1], [2, 0, 2]]


@pytest.mark.parametrize(("rank", "needs"), [("area", "areas"), ("spatial", "boxes")])
def test_a_rank_that_the_data_cannot_give_is_refused(rank, needs):
    with pytest.raises(ValueError, match=rf"rank '{rank}' needs {needs}, which this data does not have: use 'random'"):
        SequenceObjective(rank=rank).order(draw(5), torch.Generator(), num_classes=C)


def test_the_spatial_rank_of_vectors_needs_a_height():
    with pytest.raises(ValueError, match="rank 'spatial' needs the image height"):
        SequenceObjective(rank="spatial").order(draw(5, found=True), torch.Generator(), num_classes=C)


@pytest.mark.parametrize("rank", ["random", "random-per-batch"])
def test_ranks_follow_the_batch_to_its_device(monkeypatch, rank):
    def look(labels: Tensor, permutation: Tensor) -> Tensor:
        assert permutation.device == labels.device
        return labels

    monkeypatch.setattr(sequence, "random_rank", look)
    batch = draw(5)
    away = batch._replace(labels=batch.labels.to("meta"))  # the one other device that every machine has
    SequenceObjective(rank=rank).order(away, torch.Generator(), num_classes=C)


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_a_multiset_that_is_too_large_is_refused_and_padding_is_not(stop):
    predictor, objective = build(stop, "seq")
    batch = draw(6, least=MOST)
    wide = batch._replace(labels=torch.nn.functional.pad(batch.labels, (0, 2), value=-1))
    assert torch.equal(carry_out(objective, predictor, wide)[1], carry_out(objective, predictor, batch)[1])
    wide.labels[4, MOST] = 1
    message = f"of this batch has {MOST + 1} labels, but the predictor emits at most {MOST}: .* max_size={MOST + 1}"
    with pytest.raises(ValueError, match=message):
        carry_out(objective, predictor, wide)


def test_empty_multisets_only():
    batch = Batch(torch.zeros(2, 16), torch.zeros(2, C, dtype=torch.int64), torch.empty(2, 0, dtype=torch.int64))
    for stop in ("policy", "end"):
        for name in ("multi", "seq", "rl"):
            predictor, objective = build(stop, name)
            output, loss = carry_out(objective, predictor, batch)
            assert loss.isfinite()
            if stop == "end" and name == "seq":
                assert output.labels[:, 0].tolist() == [C, C]


# --- what is lost ---


WEIGHTS = {"stop_weight": 0.7, "entropy_weight": 0.2, "value_weight": 0.3, "size_weight": 0.4}


def plain_loss(name: str, stop: str, output: SequentialOutput, row: int, target: reference.Multiset) -> float:
    """One example's loss, that of stopping included, with the weights above."""
    logits, labels = output.logits[row].tolist(), output.labels[row].tolist()
    end = C if stop == "end" else None
    if name == "multi":
        named = reference.multiset_loss(logits, labels, target, end=end)
    elif name == "seq":
        length = target.total() + (stop == "end")
        named = reference.sequence_loss(logits, labels, [t < length for t in range(len(labels))])
    elif name == "rl":
        named = reference.reinforce_loss(logits, labels, target, output.value[row].tolist(), 0.2, 0.3, end=end)
    elif name == "one-step":
        *shares, size = logits[0]
        named = reference.one_step_loss(shares, size, target, 0.4)
    else:
        named = reference.distribution_matching_loss(logits, target, name.removeprefix("dm-"))
    if output.stop is None:
        return named
    return named + 0.7 * reference.stop_loss(output.stop[row].tolist(), target)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        *[(name, stop) for name in ("multi", "seq", "rl") for stop in ("fixed", "policy", "end")],
        *[(name, stop) for name in ("dm-l1", "dm-kl", "one-step") for stop in ("fixed", "policy")],
    ],
)
def test_the_loss_is_the_papers_and_that_of_stopping(name, stop):
    batch = draw(40, least=1)
    predictor, objective = build(stop, name, **WEIGHTS)
    output, loss = carry_out(objective, predictor.double(), batch._replace(x=batch.x.double()))
    assert (output.stop is not None) == (stop == "policy" and name != "one-step")
    assert (output.value is not None) == (name == "rl")
    targets = reference.to_counters(batch.target)
    expected = [plain_loss(name, stop, output, row, target) for row, target in enumerate(targets)]
    assert loss.item() == pytest.approx(math.fsum(expected) / len(expected), rel=1e-9)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_strategy_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="strategy must be one of 'greedy', 'stochastic', 'oracle', but is 'orcale'"):
        MultisetObjective(strategy="orcale")


def test_an_objective_checks_the_bounds_of_its_fields():
    with pytest.raises(ValueError, match="marginal_orders must be at least 1, but is 0"):
        MarginalObjective(marginal_orders=0)
    with pytest.raises(ValueError, match="marginal_bound must be at least 1, but is 0"):
        MarginalObjective(marginal_bound=0)
    with pytest.raises(ValueError, match=r"stop_weight must be at least 0, but is -1\.0"):
        SequenceObjective(stop_weight=-1.0)


# --- each of them teaches ---


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
@pytest.mark.parametrize("strategy", ["greedy", "stochastic", "oracle"])
def test_multi_learns_a_tiny_problem(stop, strategy):
    predictor, _, fresh = train(stop, "multi", strategy=strategy)
    assert exact_match(predictor, fresh) >= 0.95


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("stop", "rank"),
    [("fixed", "random"), ("policy", "random"), ("end", "random"), ("policy", "area"), ("policy", "spatial")],
)
def test_seq_learns_a_tiny_problem(stop, rank):
    predictor, _, fresh = train(stop, "seq", rank=rank, found=rank != "random")
    assert exact_match(predictor, fresh) >= 0.95
    orders = {"area": [3, 1, 0, 2], "spatial": [2, 0, 1, 3]}
    if rank in orders:  # and it learns the order too
        sequences = predictor.explain(fresh.x[:100]).sequence.tolist()
        named = [[label for label in row if label >= 0] for row in sequences]
        assert sum(row == by_class(orders[rank])(row) for row in named) >= 95


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
def test_rl_learns_a_tiny_problem(stop):
    predictor, _, fresh = train(stop, "rl")
    assert exact_match(predictor, fresh) >= 0.95


def mean_entropy_of_shares(batch: Batch) -> float:
    targets = reference.to_counters(batch.target)
    return math.fsum(reference.entropy(reference.target_distribution(t, C)) for t in targets if t) / len(targets)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(("name", "stop"), [("dm-l1", "fixed"), ("dm-kl", "fixed"), ("dm-kl", "policy")])
def test_matching_comes_near_the_minimum_of_its_loss(name, stop):
    _, loss, fresh = train(stop, name)
    # No divergence: 0 for the distance; the entropy of the shares for the cross-entropy, and 0 for stopping.
    minimum = mean_entropy_of_shares(fresh) if name == "dm-kl" else 0.0
    assert minimum - 1e-5 <= loss < minimum + 0.05


@pytest.mark.usefixtures("without_shape_hook")
def test_one_step_comes_near_the_minimum_of_its_loss():
    _, loss, fresh = train("policy", "one-step", steps=240)
    minimum = mean_entropy_of_shares(fresh)  # shares as they are, sizes to the point
    assert minimum - 1e-5 <= loss < minimum + 0.05


@pytest.mark.usefixtures("without_shape_hook")
def test_without_training_weights_do_not_change():
    """The bounds above are no gift: an untrained predictor is far from all of them."""
    for stop in ("fixed", "policy", "end"):
        predictor, _, fresh = train(stop, "multi", steps=0)
        assert exact_match(predictor, fresh) < 0.4
    assert train("fixed", "dm-l1", steps=0)[1] > 0.3
    _, loss, fresh = train("fixed", "dm-kl", steps=0)
    assert loss > mean_entropy_of_shares(fresh) + 0.3
    assert Counter(fresh.target.sum(-1).tolist()) == {MOST: 1000}
