"""One-shot heads: distributions, compared with an enumeration of all outcomes in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import reference
import torch
from torch import Tensor, nn

from torchmultiset.heads import CellCounts, CountTable, OneShotHead, PoissonCounts, PowerMultiset, Slots
from torchmultiset.losses import (
    cell_count_loss,
    count_table_loss,
    hungarian_loss,
    poisson_count_loss,
    power_loss,
)
from torchmultiset.model.predictor import Predictor

C, D, MOST = 2, 5, 3
VECTOR, MAP = (D,), (D, 1, 3)  # three cells
MADE = {
    "cells": (lambda least: CellCounts(C, D, hidden=8, layers=1), MAP, (3, C + 1)),
    "cells, normalised": (lambda least: CellCounts(C, D, hidden=8, norm="batch"), MAP, (3, C + 1)),
    "table": (lambda least: CountTable(C, D, most=MOST), VECTOR, (C, MOST + 1)),
    "table of a map": (lambda least: CountTable(C, D, most=MOST), MAP, (C, MOST + 1)),
    "poisson": (lambda least: PoissonCounts(C, D), VECTOR, (C, 1)),
    "poisson of a map": (lambda least: PoissonCounts(C, D), MAP, (C, 1)),
    "slots": (lambda least: Slots(C, D, slots=MOST, width=8, heads=2, layers=1), VECTOR, (MOST, C + 1)),
    "slots of a map": (lambda least: Slots(C, D, slots=MOST, places=3, width=8, heads=2), MAP, (MOST, C + 1)),
    "more slots": (lambda least: Slots(C, D, slots=5, width=8, heads=2, layers=1), VECTOR, (5, C + 1)),
    "power": (lambda least: PowerMultiset(C, D, max_size=MOST, min_size=least, hidden=8), VECTOR, None),
    "power of a map": (lambda least: PowerMultiset(C, D, max_size=MOST, min_size=least, hidden=8), MAP, None),
}
every = pytest.mark.parametrize("name", MADE)
sizes = pytest.mark.parametrize("stop", ["policy", "fixed"])
Multiset = tuple[int, ...]


def make(name: str, stop: str = "policy", number: int = 6) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    build, shape, _ = MADE[name]
    policy = build(MOST if stop == "fixed" else 0)
    for parameter in policy.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.8)
    predictor = Predictor(nn.Identity(), policy, ["ant", "bee"], max_size=MOST, stop=stop)
    return predictor.double().eval(), torch.randn(number, *shape, dtype=torch.float64)


def all_multisets(least: int) -> list[Multiset]:
    return [counts for counts in itertools.product(range(MOST + 1), repeat=C) if least <= sum(counts) <= MOST]


def cell_count_probabilities(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Distribution of the count of each class, summed over all combinations of the cells' predictions."""
    chances = [reference.softmax(row) for row in scores]
    counts = [[0.0] * (len(scores) + 1) for _ in range(C)]
    for outcome in itertools.product(range(C + 1), repeat=len(scores)):
        together = math.prod(chances[cell][what] for cell, what in enumerate(outcome))
        for c in range(C):
            counts[c][outcome.count(c)] += together
    return counts


def expected(name: str, scores: Sequence[Sequence[float]], least: int) -> dict[Multiset, float]:
    """Probability of each multiset."""
    if name.startswith("power"):
        order = [
            labels
            for size in range(least, MOST + 1)
            for labels in sorted(
                itertools.combinations_with_replacement(range(C), size), key=lambda labels: labels[::-1]
            )
        ]
        return {
            tuple(labels.count(c) for c in range(C)): chance
            for labels, chance in zip(order, reference.softmax(scores[0]), strict=True)
        }
    if name.startswith("table"):
        counts = [reference.softmax(row) for row in scores]
    elif name.startswith("poisson"):
        rates = [math.exp(row[0]) for row in scores]
        counts = [[math.exp(-rate) * rate**n / math.factorial(n) for n in range(MOST + 1)] for rate in rates]
    else:
        counts = cell_count_probabilities(scores)
    weights = {multiset: math.prod(counts[c][n] for c, n in enumerate(multiset)) for multiset in all_multisets(least)}
    total = math.fsum(weights.values())
    return {multiset: weight / total for multiset, weight in weights.items()}


@every
@sizes
def test_distributions_equal_an_enumeration(name, stop):
    predictor, x = make(name, stop)
    least = MOST if stop == "fixed" else 0
    scores, shape = predictor(x), MADE[name][2]
    assert shape is None or scores.shape == (len(x), *shape)
    count_probabilities = predictor.belief(x).count_probabilities()
    found = {
        multiset: predictor.log_probability(x, torch.tensor([multiset]).expand(len(x), -1)).exp().tolist()
        for multiset in all_multisets(0)
    }
    ranked = predictor.search(x, k=12)
    for i, row in enumerate(scores.tolist()):
        by_multiset = expected(name, row, least)
        assert len(by_multiset) == len(all_multisets(least))
        for multiset, chances in found.items():
            assert chances[i] == pytest.approx(by_multiset.get(multiset, 0.0), rel=1e-8, abs=1e-15)
        order = sorted(by_multiset, key=by_multiset.__getitem__, reverse=True)
        assert [tuple(counts) for counts in ranked.counts[i, : len(order)].tolist()] == order
        for c, n in itertools.product(range(C), range(MOST + 1)):
            chance = math.fsum(by_multiset[multiset] for multiset in by_multiset if multiset[c] == n)
            assert float(count_probabilities[i, c, n]) == pytest.approx(chance, abs=1e-10)


@every
@sizes
def test_heads_without_their_own_rule_predict_the_most_probable_multiset(name, stop):
    predictor, x = make(name, stop, 40)
    counts = predictor.predict(x)
    assert len({tuple(row) for row in counts.tolist()}) > 1
    if "slots" in name or "poisson" in name:
        return  # these have their own rules, which other tests check
    assert torch.equal(counts, predictor.belief(x).best())
    assert torch.equal(counts, predictor.search(x, k=1).counts[:, 0])


@pytest.mark.parametrize("name", ["slots", "more slots"])
@sizes
def test_slots_predict_their_most_probable_joint_outcome_of_an_allowed_size(name, stop):
    predictor, x = make(name, stop, 40)
    least = MOST if stop == "fixed" else 0
    plain = []
    for row, counts in zip(predictor(x).tolist(), predictor.predict(x).tolist(), strict=True):
        chances = [reference.softmax(scores) for scores in row]
        scored = {
            answer: math.prod(chances[slot][what] for slot, what in enumerate(answer))
            for answer in itertools.product(range(C + 1), repeat=len(row))
        }
        best = max(
            (answer for answer in scored if least <= sum(what < C for what in answer) <= MOST), key=scored.__getitem__
        )
        assert counts == [best.count(c) for c in range(C)]
        freely = max(scored, key=scored.__getitem__)
        plain.append(counts == [freely.count(c) for c in range(C)])
    assert any(plain)
    if name == "more slots" or stop == "fixed":
        assert not all(plain), "the sizes make no difference"


@pytest.mark.parametrize("name", ["poisson", "poisson of a map"])
@sizes
def test_poisson_heads_round_the_expected_counts_if_their_size_is_allowed(name, stop):
    predictor, x = make(name, stop, 40)
    least, most = predictor.sizes
    fitting = []
    best = predictor.belief(x).best().tolist()
    for row, counts, instead in zip(predictor(x).tolist(), predictor.predict(x).tolist(), best, strict=True):
        nearest = [round(math.exp(log_rate)) for (log_rate,) in row]
        fitting.append(least <= sum(nearest) <= most)
        assert counts == (nearest if fitting[-1] else instead)
    assert any(fitting)
    assert not all(fitting)


@every
@sizes
def test_explain_returns_confidence_and_counts(name, stop):
    predictor, x = make(name, stop)
    prediction = predictor.explain(x)
    assert torch.equal(prediction.counts, predictor.predict(x))
    torch.testing.assert_close(prediction.confidence, predictor.log_probability(x, prediction.counts).exp())
    assert (prediction.sequence, prediction.rows) == (None, "at least")
    exactly = predictor.belief(x).count_probabilities()
    assert prediction.probabilities.shape == (len(x), MOST, C)
    for t in range(MOST):
        torch.testing.assert_close(prediction.probabilities[:, t], exactly[..., t + 1 :].sum(-1))
    torch.testing.assert_close(prediction.entropy[:, 0], -(exactly * exactly.clamp(min=1e-300).log()).sum((1, 2)))
    best = predictor.explain(x, best=3)
    assert torch.equal(best.best.counts, predictor.search(x, k=3).counts)
    assert torch.equal(best.counts, predictor.belief(x).best())


@every
def test_a_batch_equals_its_examples(name):
    predictor, x = make(name)
    scores = predictor(x)
    for i in range(len(x)):
        torch.testing.assert_close(predictor(x[i : i + 1])[0], scores[i])
    assert predictor(x[:0]).shape == (0, *scores.shape[1:])
    assert predictor.predict(x[:0]).shape == (0, C)


LOSSES = {
    "cells": cell_count_loss,
    "table": count_table_loss,
    "poisson": lambda scores, target: poisson_count_loss(scores.squeeze(-1), target),
    "slots": hungarian_loss,
    "power": lambda scores, target: power_loss(scores[:, 0], target, max_size=MOST),
}


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
@every
def test_heads_learn_a_few_multisets(name):
    predictor, x = make(name, number=4)
    predictor.train()
    target = torch.tensor([[0, 0], [2, 0], [1, 2], [0, 1]])
    loss = LOSSES[name.split(",")[0].split()[0].replace("more", "slots")]
    adam = torch.optim.Adam(predictor.parameters(), lr=0.03)
    for _ in range(300):
        value = loss(predictor(x), target)
        adam.zero_grad()
        value.backward()
        adam.step()
    if "normalised" not in name:  # statistics of four examples differ from the running averages
        predictor.eval()
    with torch.no_grad():
        assert torch.equal(predictor.decode(x).counts, target)


def test_heads_of_vectors_read_the_mean_of_a_map():
    torch.manual_seed(0)
    memory = torch.rand(2, D, 2, 3)
    for head in (CountTable(C, D, most=MOST), PoissonCounts(C, D)):
        torch.testing.assert_close(head(memory), head(memory.mean((2, 3))))


def test_the_sizes_of_a_predictor_depend_on_how_it_stops():
    assert make("cells")[0].sizes == (0, MOST)
    assert make("cells", "fixed")[0].sizes == (MOST, MOST)


class Coin(OneShotHead):
    """A user-defined head: the memory holds the count of each class."""

    num_classes = C
    probabilistic = False

    def forward(self, memory: Tensor) -> Tensor:
        return memory[:, None]

    def counts(self, scores: Tensor, least: int, most: int) -> Tensor:
        return scores[:, 0].long()

    def probabilities(self, scores: Tensor, least: int, most: int) -> Tensor:
        return scores


def test_a_user_defined_head_predicts():
    predictor = Predictor(nn.Identity(), Coin(), ["ant", "bee"], max_size=MOST)
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert predictor.predict_labels(x) == [["ant", "bee", "bee"], []]
    assert predictor.explain(x).confidence.isnan().all()
    with pytest.raises(ValueError, match="Coin has no probabilities of multisets: train with an objective that has"):
        predictor.belief(x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CellCounts(C, D)(torch.rand(2, D)), "memory must be a map .*, not a vector"),
        (lambda: CellCounts(0, D), "num_classes must be at least 1"),
        (lambda: CellCounts(C, D, kernel=2), "kernel must be an odd number"),
        (lambda: CellCounts(C, D, layers=-1), "layers must be at least 0"),
        (lambda: CellCounts(C, D, norm="layer"), "norm must be one of"),
        (lambda: CountTable(C, D, most=0), "most must be at least 1"),
        (
            lambda: CountTable(C, D, most=3).believe(torch.zeros(1, C, 4), 0, 2),
            "most must be 3, the value the head was built",
        ),
        (lambda: PoissonCounts(C, D)(torch.rand(2, D + 1)), "memory must be"),
        (lambda: Slots(C, D, slots=0), "slots must be at least 1"),
        (lambda: Slots(C, D, slots=2, width=10), "width must be a multiple of heads = 4"),
        (lambda: Slots(C, D, slots=2, places=2)(torch.rand(1, D, 1, 3)), "memory must be a map of at most 2 positions"),
        (
            lambda: PowerMultiset(80, D, max_size=10),
            r"0 to 10 labels of 80 classes make 5,720,645,481,903 multisets, too many .*choose another objective",
        ),
        (
            lambda: PowerMultiset(C, D, max_size=3).believe(torch.zeros(1, 1, 10), 0, 2),
            "sizes must be 0 to 3, the sizes the head was built with",
        ),
        (lambda: make("table")[0].search(torch.zeros(1, D).double(), k=0), "k must be at least 1"),
    ],
)
def test_invalid_input_is_reported_with_the_argument(build, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        build()


def test_gaussian_counts_follow_a_normal_distribution_around_a_sum():
    import math

    from torchmultiset.heads import GaussianCounts

    torch.manual_seed(0)
    head = GaussianCounts(2, 3, most=4, pool="sum").double()
    memory = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    found = head.believe(head(memory), 0, 4)
    for row, scores in zip(memory, head(memory).softmax(-1).tolist(), strict=True):
        for c in range(2):
            number = sum(
                math.fsum(w * v for w, v in zip(head.classifier.weight[c].tolist(), row[:, i, j].tolist(), strict=True))
                for i in range(2)
                for j in range(2)
            )
            masses = [math.exp(-math.e * (n - number / 10) ** 2) for n in range(5)]
            assert scores[c] == pytest.approx([mass / math.fsum(masses) for mass in masses])
    assert found.ranked(15).log_probability.exp().sum(1).tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("kind", ["gaussian", "poisson", "regression"])
def test_numbers_are_not_rounded_in_mixed_precision(kind):
    from torchmultiset.heads import GaussianCounts, RegressedCounts

    torch.manual_seed(0)
    heads = {
        "gaussian": lambda: GaussianCounts(2, 3, most=30, pool="sum"),
        "poisson": lambda: PoissonCounts(2, 3, pool="sum"),
        "regression": lambda: RegressedCounts(2, 3, pool="sum"),
    }
    head = heads[kind]()
    head.classifier.weight.data.uniform_(0.9, 1.1)
    memory = torch.rand(4, 3, 8, 8).bfloat16()  # 64 positions, so sums are about 10
    exact = head(memory.float())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head(memory)
        rounded = head.classifier(memory.float().sum((2, 3)) / 10)[..., None]
        assert not torch.equal(rounded, exact)
    torch.testing.assert_close(mixed, exact)
