"""A mixture of count tables, compared with an enumeration of all multisets in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import reference
import torch
from torch import Tensor, nn

from torchmultiset.data import Batch
from torchmultiset.distributions import IndependentCounts, MixtureBelief
from torchmultiset.heads import CountMixture, CountTable
from torchmultiset.losses import count_mixture_loss, count_table_loss
from torchmultiset.model.objectives import CountsObjective
from torchmultiset.model.predictor import Predictor

B, C, D, K, LEAST, MOST = 4, 2, 5, 3, 1, 3
MULTISETS = [m for m in itertools.product(range(MOST + 1), repeat=C) if LEAST <= sum(m) <= MOST]


def make(potential: bool) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    head = CountMixture(C, D, sizes=(LEAST, MOST), components=K, size_potential=potential)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    predictor = Predictor(nn.Identity(), head, ["ant", "bee"], max_size=MOST, min_size=LEAST)
    return predictor.double().eval(), 2 * torch.randn(B, D, dtype=torch.float64)


def enumerated(predictor: Predictor, scores: Tensor) -> dict[tuple[int, ...], float]:
    """Probabilities of all multisets: each component is normalised over them, then they are mixed."""
    head = predictor.head
    of_size = [0.0] * (MOST + 1) if head.size_scores is None else head.size_scores.tolist()
    gates = reference.softmax(scores[:, -1].tolist())
    total = dict.fromkeys(MULTISETS, 0.0)
    for k in range(K):
        tables = [reference.softmax(row) for row in scores[k, :-1].view(C, MOST + 1).tolist()]
        weights = {m: math.exp(of_size[sum(m)]) * math.prod(tables[c][n] for c, n in enumerate(m)) for m in MULTISETS}
        whole = math.fsum(weights.values())
        for m in MULTISETS:
            total[m] += gates[k] * weights[m] / whole
    return total


@pytest.mark.parametrize("potential", [False, True])
def test_belief_and_loss_equal_an_enumeration(potential):
    predictor, x = make(potential)
    belief, ranked = predictor.belief(x), predictor.search(x, k=12)
    size_probabilities, count_probabilities = belief.size_probabilities(), belief.count_probabilities()
    losses = {}
    for m in MULTISETS:
        target = torch.tensor([m]).expand(B, -1)
        losses[m] = (
            CountsObjective().loss(predictor, Batch(x, target, torch.full((B, MOST), -1)), torch.Generator()).item()
        )
        assert losses[m] == pytest.approx(-predictor.log_probability(x, target).mean().item())
    for i, scores in enumerate(predictor(x)):
        by_hand = enumerated(predictor, scores)
        assert math.fsum(by_hand.values()) == pytest.approx(1)
        for m in [*MULTISETS, (0, 0), (2, 2)]:
            found = belief.log_probability(torch.tensor([m]).expand(B, -1))[i].exp().item()
            assert found == pytest.approx(by_hand.get(m, 0.0))
        order = sorted(by_hand, key=by_hand.__getitem__, reverse=True)
        assert [tuple(row) for row in ranked.counts[i, : len(order)].tolist()] == order
        assert (ranked.log_probability[i, len(order) :] == -math.inf).all()
        assert tuple(predictor.predict(x)[i].tolist()) == order[0]
        for n in range(MOST + 1):
            share = math.fsum(p for m, p in by_hand.items() if sum(m) == n)
            assert size_probabilities[i, n].item() == pytest.approx(share, abs=1e-12)
            for c in range(C):
                share = math.fsum(p for m, p in by_hand.items() if m[c] == n)
                assert count_probabilities[i, c, n].item() == pytest.approx(share, abs=1e-12)
        left = {m: p for m, p in by_hand.items() if sum(m) == 2}
        known = belief.given_size(2)
        for m, p in left.items():
            found = known.log_probability(torch.tensor([m]).expand(B, -1))[i].exp().item()
            assert found == pytest.approx(p / math.fsum(left.values()))


def test_classes_can_depend_on_each_other():
    """Two labels of the first class or two of the second, each with probability 1/2, are not independent counts."""
    surely = torch.tensor([[[-9.0, -9.0, 9.0], [9.0, -9.0, -9.0]], [[9.0, -9.0, -9.0], [-9.0, -9.0, 9.0]]])
    belief = MixtureBelief(torch.zeros(1, 2), [IndependentCounts(table[None], 2, 2) for table in surely])
    chances = [belief.log_probability(torch.tensor([m])).exp().item() for m in ([2, 0], [0, 2], [1, 1])]
    assert chances == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)


def test_a_mixture_of_one_component_equals_a_table():
    torch.manual_seed(0)
    tables, gates, target = torch.randn(3, 1, C, 4), torch.randn(3, 1), torch.tensor([[1, 0], [0, 2], [1, 2]])
    for scores in (None, torch.randn(4), torch.randn(3, 4)):
        torch.testing.assert_close(
            count_mixture_loss(tables, gates, target, min_size=1, size_scores=scores),
            count_table_loss(tables[:, 0], target, min_size=1, size_scores=scores),
        )
    assert CountMixture(C, D, sizes=(1, 3)).classifier.out_features == 4 * (
        CountTable(C, D, most=3).classifier.out_features + 1
    )


def test_gradients_of_the_mixture_loss_pass_gradcheck():
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, K, C, 4), (2, K), (4,))]
    target = torch.tensor([[1, 0], [0, 2]])
    assert torch.autograd.gradcheck(
        lambda t, g, s: count_mixture_loss(t, g, target, min_size=1, size_scores=s, reduction="none"), inputs
    )


def test_a_loaded_mixture_gives_the_same_predictions(tmp_path):
    predictor, x = make(potential=True)
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path, encoder=nn.Identity())
    assert torch.equal(loaded.predict(x), predictor.predict(x))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CountMixture(C, D, sizes=(1, 3), components=0), "components must be at least 1"),
        (lambda: CountMixture(C, D, sizes=(0, 0)), "sizes must be up to at least 1 label"),
        (lambda: MixtureBelief(torch.zeros(1, 2), []), r"log_gates must be of shape \(B, 0\)"),
        (lambda: make(False)[0].belief(torch.zeros(1, D).double()).ranked(0), "k must be at least 1"),
        (
            lambda: count_mixture_loss(torch.zeros(1, 2, C, 3), torch.zeros(1, 3), torch.tensor([[1, 0]])),
            "gates must be",
        ),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
