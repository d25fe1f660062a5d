"""Objectives that are not in the paper: their losses, and training on a tiny problem."""

from __future__ import annotations

import itertools
import math

import pytest
import reference
import torch
from tiny_problem import MOST, C, build, compute_loss, draw, exact_match, train

from torchmultiset.data import Batch
from torchmultiset.heads import CountTable, Slots
from torchmultiset.losses import count_table_loss
from torchmultiset.model.objectives import CountsObjective, MarginalObjective
from torchmultiset.model.predictor import Predictor

STOPS = ("fixed", "policy", "end")


def batch_for(stop: str, n: int = 60) -> Batch:
    return draw(n, least=MOST if stop == "fixed" else 0)


# --- losses ---


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("policy", [None, "feed-forward"])
def test_the_marginal_objective_is_the_negative_log_probability(stop, policy):
    predictor, objective = build(stop, "marginal", policy=policy)
    batch = batch_for(stop)
    _, loss = compute_loss(objective, predictor, batch)
    log_probability = predictor.log_probability(batch.x, batch.target, beam=100)
    assert loss.item() == pytest.approx(-log_probability.mean().item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_marginal_estimates_the_likelihood_of_multisets_beyond_its_bound(stop):
    predictor, _ = build(stop, "marginal")
    batch = batch_for(stop)
    small = batch.target.sum(-1) <= 2
    exact = -predictor.log_probability(batch.x, batch.target, beam=100)
    loss = MarginalObjective(2, 2000).loss(predictor, batch, torch.Generator().manual_seed(0))
    assert not small.all()
    assert loss.item() == pytest.approx(exact.mean().item(), rel=0.01)
    rough = MarginalObjective(2, 1).loss(predictor, batch, torch.Generator().manual_seed(0))
    assert rough.item() != loss.item()
    if small.any():
        few = Batch(batch.x[small], batch.target[small], batch.labels[small])
        _, loss = compute_loss(MarginalObjective(2, 1), predictor, few)
        assert loss.item() == pytest.approx(exact[small].mean().item(), rel=1e-5)


def plain_loss(name: str, scores: list[list[float]], target: reference.Multiset) -> float:
    """Loss of one example, by its definition."""
    if name == "hungarian":
        chances = [reference.softmax(row) for row in scores]
        wanted = [*target.elements()]
        _, slots = max(
            (math.fsum(chances[slot][label] for slot, label in zip(slots, wanted, strict=True)), slots)
            for slots in itertools.permutations(range(len(scores)), len(wanted))
        )
        loss = -math.fsum(math.log(chances[slot][label]) for slot, label in zip(slots, wanted, strict=True))
        return loss - 0.3 * math.fsum(math.log(chances[s][C]) for s in range(len(scores)) if s not in slots)
    if name == "power":
        order = [
            labels
            for size in range(MOST + 1)
            for labels in sorted(itertools.combinations_with_replacement(range(C), size), key=lambda row: row[::-1])
        ]
        return -math.log(reference.softmax(scores[0])[order.index(tuple(sorted(target.elements())))])
    rows = [row[0] for row in scores]
    if name == "regression":
        return reference.count_regression_loss(rows, target)
    # Normalised over the allowed sizes, 0 to MOST labels.
    if name == "poisson":
        each = [[math.exp(n * row - math.exp(row)) / math.factorial(n) for n in range(MOST + 1)] for row in rows]
    else:
        each = [reference.softmax(row) for row in scores]
    weights = {
        counts: math.prod(row[count] for row, count in zip(each, counts, strict=True))
        for counts in itertools.product(range(MOST + 1), repeat=len(each))
        if sum(counts) <= MOST
    }
    return -math.log(weights[tuple(target[c] for c in range(len(each)))] / math.fsum(weights.values()))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("table", {"objective": "counts"}),
        ("poisson", {"objective": "counts", "count_head": "poisson"}),
        ("regression", {"objective": "counts", "count_head": "regression"}),
        ("hungarian", {"objective": "hungarian", "nothing_weight": 0.3}),
        ("power", {"objective": "power"}),
    ],
)
def test_the_loss_of_a_head_equals_its_definition(name, config):
    config = dict(config)
    predictor, objective = build("policy", config.pop("objective"), **config)
    batch = draw(40)
    output, loss = compute_loss(objective, predictor.double(), batch._replace(x=batch.x.double()))
    targets = reference.to_counters(batch.target)
    expected = [plain_loss(name, row, target) for row, target in zip(output.logits.tolist(), targets, strict=True)]
    assert loss.item() == pytest.approx(math.fsum(expected) / len(expected), rel=1e-9)


# --- training ---


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("name", "stop", "config"),
    [
        ("counts", "policy", {}),
        ("counts", "fixed", {}),
        ("counts", "policy", {"count_head": "poisson"}),
        ("counts", "policy", {"count_head": "regression"}),
        ("hungarian", "policy", {}),
        ("hungarian", "fixed", {}),
        ("power", "policy", {}),
        ("power", "fixed", {}),
        *[("marginal", stop, {}) for stop in STOPS],
    ],
)
def test_objectives_beyond_the_paper_learn_a_tiny_problem(name, stop, config):
    predictor, _, fresh = train(stop, name, **config)
    assert exact_match(predictor, fresh) >= 0.95


def test_the_counts_objective_accepts_count_heads_only():
    class MyTable(CountTable):
        pass

    x, target = torch.rand(2, 4), torch.tensor([[1, 0, 2], [0, 0, 0]])
    batch = Batch(x, target, torch.tensor([[0, 2, 2], [-1, -1, -1]]))
    head = MyTable(num_classes=3, memory=4, most=3)  # its scores have the shape of those of three cells
    predictor = Predictor(torch.nn.Identity(), head, list("abc"), max_size=3)
    assert compute_loss(CountsObjective(), predictor, batch)[1] == count_table_loss(head(x), target)
    slots = Predictor(torch.nn.Identity(), Slots(3, 4, slots=3), list("abc"), max_size=3)
    with pytest.raises(ValueError, match=r"must be a count head \(CellCounts, CountTable, .*\) for objective 'counts'"):
        compute_loss(CountsObjective(), slots, batch)
