"""The allowed sizes in the likelihood of count heads and in the rounding of regressed counts."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from torch import Tensor, nn

from torchmultiset.data import Batch
from torchmultiset.heads import CellCounts, CountTable, OneStep, PoissonCounts, RegressedCounts, nearest_counts
from torchmultiset.losses import cell_count_loss, poisson_count_loss
from torchmultiset.model.objectives import CountsObjective
from torchmultiset.model.predictor import Predictor

C, D, LEAST, MOST = 2, 5, 1, 3
MADE = {
    "table": (lambda **sizes: CountTable(C, D, most=MOST, **sizes), (D,)),
    "cells": (lambda **sizes: CellCounts(C, D, hidden=8, layers=1, **sizes), (D, 1, 4)),
}
every = pytest.mark.parametrize("name", MADE)
MULTISETS = [m for m in itertools.product(range(MOST + 1), repeat=C) if LEAST <= sum(m) <= MOST]


def make(name: str, potential: bool) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    build, shape = MADE[name]
    head = build(sizes=(LEAST, MOST), size_potential=potential)
    if potential:
        nn.init.normal_(head.size_scores)
    predictor = Predictor(nn.Identity(), head, ["ant", "bee"], max_size=MOST, min_size=LEAST)
    return predictor.double().eval(), torch.randn(3, *shape, dtype=torch.float64)


def make_size_head(joint_states: int = 0) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    head = CellCounts(C, D, hidden=8, layers=1, sizes=(LEAST, MOST), size_head=True, joint_states=joint_states)
    nn.init.normal_(head.size_head.classifier.weight)
    predictor = Predictor(nn.Identity(), head, ["ant", "bee"], max_size=MOST, min_size=LEAST)
    return predictor.double().eval(), torch.randn(3, D, 1, 4, dtype=torch.float64)


def batch(x: Tensor, target: Tensor) -> Batch:
    labels = torch.full((len(target), MOST), -1)
    for i, row in enumerate(target.tolist()):
        emitted = [c for c, n in enumerate(row) for _ in range(n)]
        labels[i, : len(emitted)] = torch.tensor(emitted)
    return Batch(x, target, labels)


@pytest.mark.parametrize(
    "made",
    [
        *(lambda name=name, potential=potential: make(name, potential) for name in MADE for potential in (False, True)),
        make_size_head,
        lambda: make_size_head(joint_states=64),
    ],
)
def test_the_loss_is_the_negative_log_probability_which_sums_to_one(made):
    predictor, x = made()
    chances = []
    for multiset in MULTISETS:
        target = torch.tensor([multiset]).expand(3, -1)
        loss = CountsObjective().loss(predictor, batch(x, target), torch.Generator())
        log_probability = predictor.log_probability(x, target)
        assert loss.item() == pytest.approx(-log_probability.mean().item())
        chances.append(log_probability.exp())
    torch.testing.assert_close(torch.stack(chances).sum(0), torch.ones(3).double())
    assert predictor.log_probability(x, torch.zeros(3, C).long()).tolist() == [-math.inf] * 3
    best = predictor.predict(x).tolist()
    for i, counts in enumerate(best):
        assert tuple(counts) == max(zip(chances, MULTISETS, strict=True), key=lambda one: one[0][i].item())[1]


@every
def test_the_potential_starts_at_zero_receives_gradients_and_is_saved(name, tmp_path):
    torch.manual_seed(0)
    build, shape = MADE[name]
    head = build(sizes=(LEAST, MOST), size_potential=True)
    assert head.size_scores.tolist() == [0.0] * (MOST + 1)
    predictor = Predictor(nn.Identity(), head, ["ant", "bee"], max_size=MOST, min_size=LEAST)
    x, target = torch.randn(3, *shape), torch.tensor([[1, 0], [0, 1], [1, 0]])
    CountsObjective().loss(predictor, batch(x, target), torch.Generator()).backward()
    assert head.size_scores.grad[LEAST:].abs().min() > 0
    with torch.no_grad():
        head.size_scores.normal_()
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path, encoder=nn.Identity())
    assert loaded.sizes == (LEAST, MOST)
    assert loaded.head.sizes == (LEAST, MOST)
    torch.testing.assert_close(loaded.log_probability(x, target), predictor.log_probability(x, target))


@pytest.mark.parametrize("joint_states", [0, 64])
def test_a_size_head_weighs_the_sizes_of_each_input_by_its_pooled_features(joint_states):
    predictor, x = make_size_head(joint_states)
    head = predictor.head
    pooled = torch.cat([x.flatten(2).mean(-1), x.flatten(2).amax(-1)], 1)
    angles = [[math.pi * (n + 0.5) * k / (MOST + 1) for n in range(MOST + 1)] for k in range(MOST + 1)]
    cosines = [[math.cos(angle) for angle in row] for row in angles]
    basis = torch.tensor([[x / math.hypot(*row) for x in row] for row in cosines], dtype=torch.float64)
    torch.testing.assert_close(basis @ basis.T, torch.eye(MOST + 1).double())  # a complete basis for few sizes
    weights = (pooled @ head.size_head.classifier.weight.T @ basis).exp()
    assert head.counted_places(head(x)).shape == (3, 4, C)
    with torch.no_grad():
        plain = {m: predictor.log_probability(x, torch.tensor([m]).expand(3, -1)).exp() for m in MULTISETS}
        nn.init.zeros_(head.size_head.classifier.weight)
        without = {m: predictor.log_probability(x, torch.tensor([m]).expand(3, -1)).exp() for m in MULTISETS}
    for i in range(3):
        scaled = {m: without[m][i].item() * weights[i, sum(m)].item() for m in MULTISETS}
        total = math.fsum(scaled.values())
        assert [plain[m][i].item() for m in MULTISETS] == pytest.approx(
            [scaled[m] / total for m in MULTISETS], rel=1e-5
        )


def test_scores_of_many_sizes_are_smooth():
    head = CellCounts(C, D, sizes=(1, 30), size_head=True)
    nn.init.normal_(head.size_head.classifier.weight)
    _, scores = head.split(head(torch.randn(4, D, 6, 6)))
    assert scores.shape == (4, 31)
    changes = scores.diff(dim=1)
    assert (changes[:, 1:] * changes[:, :-1] < 0).sum(1).max() <= 7  # number of turning points


def test_a_size_head_is_saved_and_gets_gradients(tmp_path):
    predictor, x = make_size_head()
    target = torch.tensor([[1, 0], [0, 2], [1, 2]])
    CountsObjective().loss(predictor, batch(x, target), torch.Generator()).backward()
    assert predictor.head.size_head.classifier.weight.grad.abs().amin() > 0
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path, encoder=nn.Identity()).double()
    torch.testing.assert_close(loaded.log_probability(x, target), predictor.log_probability(x, target))


def make_poisson(sizes: tuple[int, int] | None, number: int = 3) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    predictor = Predictor(
        nn.Identity(), PoissonCounts(C, D, sizes=sizes), ["ant", "bee"], max_size=MOST, min_size=LEAST
    )
    return predictor.double().eval(), 3 * torch.randn(number, D, dtype=torch.float64)


def test_poisson_counts_are_normalised_over_the_sizes_in_training_and_prediction():
    predictor, x = make_poisson((LEAST, MOST))
    chances = []
    for multiset in MULTISETS:
        target = torch.tensor([multiset]).expand(3, -1)
        loss = CountsObjective().loss(predictor, batch(x, target), torch.Generator())
        log_probability = predictor.log_probability(x, target)
        assert loss.item() == pytest.approx(-log_probability.mean().item())
        chances.append(log_probability.exp())
    torch.testing.assert_close(torch.stack(chances).sum(0), torch.ones(3).double())


def test_poisson_counts_predict_the_multiset_nearest_to_the_expected_counts_of_the_sizes():
    predictor, x = make_poisson((LEAST, MOST), 200)
    n = torch.arange(MOST + 1, dtype=torch.float64)
    expected = predictor.belief(x).count_probabilities() @ n
    assert torch.equal(predictor.predict(x), nearest_counts(expected, LEAST, MOST))
    free = predictor(x).squeeze(-1).exp()
    assert not torch.equal(predictor.predict(x), nearest_counts(free, LEAST, MOST))


def test_a_poisson_head_saved_without_sizes_is_loaded_and_trained_without_them(tmp_path):
    predictor, x = make_poisson(None)
    predictor.save(tmp_path)
    path = tmp_path / "predictor.json"
    description = json.loads(path.read_text())
    del description["head"]["arguments"]["sizes"], description["description_sha256"]
    path.write_text(json.dumps(description))
    loaded = Predictor.load(tmp_path, encoder=nn.Identity()).double()
    assert torch.equal(loaded.predict(x), predictor.predict(x))
    target = torch.tensor([[1, 0], [0, 2], [1, 1]])
    loss = CountsObjective().loss(loaded, batch(x, target), torch.Generator())
    torch.testing.assert_close(loss, poisson_count_loss(loaded(x).squeeze(-1), target))

    predictor, x = make_poisson((LEAST, MOST))
    predictor.save(tmp_path)
    assert Predictor.load(tmp_path, encoder=nn.Identity()).head.sizes == (LEAST, MOST)


@every
def test_without_sizes_heads_have_no_size_parameters_and_the_plain_loss(name):
    build, shape = MADE[name]
    head = build()
    assert not any("size" in key for key in head.state_dict())
    predictor = Predictor(nn.Identity(), head, ["ant", "bee"], max_size=MOST)
    assert predictor.sizes == (0, MOST)
    if name == "cells":
        x, target = torch.randn(2, *shape), torch.tensor([[1, 0], [0, 0]])
        loss = CountsObjective().loss(predictor, batch(x, target), torch.Generator())
        torch.testing.assert_close(loss, cell_count_loss(head(x), target))


def test_regressed_counts_are_rounded_to_the_nearest_multiset_of_an_allowed_size():
    torch.manual_seed(0)
    rates = 1.5 * torch.randn(300, 3) + 0.5
    found = nearest_counts(rates, 1, 3).tolist()
    allowed = [m for m in itertools.product(range(4), repeat=3) if 1 <= sum(m) <= 3]
    sizes = set()
    for row, counts in zip(rates.tolist(), found, strict=True):
        distance = {m: math.fsum((n - r) ** 2 for n, r in zip(m, row, strict=True)) for m in allowed}
        assert distance[tuple(counts)] == pytest.approx(min(distance.values()))
        sizes.add(sum(max(round(r), 0) for r in row))
    assert min(sizes) == 0  # the limits make a difference
    assert max(sizes) > 3
    assert nearest_counts(rates[:0], 1, 3).shape == (0, 3)


@pytest.mark.parametrize("head", [OneStep(3, D), RegressedCounts(3, D)])
def test_heads_that_round_respect_the_sizes(head):
    torch.manual_seed(0)
    predictor = Predictor(nn.Identity(), head, ["a", "b", "c"], max_size=2, min_size=1)
    sizes = predictor.predict(5 * torch.randn(50, D)).sum(-1)
    assert sizes.min() >= 1
    assert sizes.max() <= 2


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CountTable(C, D, most=3, size_potential=True), "sizes must be given with size_potential=True"),
        (lambda: CellCounts(C, D, size_head=True), "sizes must be given with size_head=True"),
        (lambda: CountTable(C, D, most=3, sizes=(1, 4)), "sizes must be None or up to most = 3"),
        (lambda: CellCounts(C, D, sizes=(4, 1)), r"sizes must be None or \(smallest, largest\)"),
        (
            lambda: CellCounts(C, D, sizes=(1, 3)).believe(torch.zeros(1, 4, C + 1), 0, 3),
            "sizes must be 1 to 3, the sizes the head was built with",
        ),
        (
            lambda: Predictor(nn.Identity(), CountTable(C, D, most=3, sizes=(1, 3)), ["a", "b"], max_size=3),
            r"head must be built for the predictor's sizes, \(0, 3\), but is \(1, 3\)",
        ),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
