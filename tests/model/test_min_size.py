"""The smallest size of predictions: policies do not stop before it, and probabilities account for it."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.encoders import MLPEncoder
from torchmultiset.losses import marginal_loss, parts_of
from torchmultiset.model.objectives import MarginalObjective, MultisetObjective, ReinforceObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.serialization import DESCRIPTION
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy
from torchmultiset.rollout import forced

C, LEAST, MOST = 3, 2, 3
CLASSES = ["ant", "bee", "cat"]
POLICIES = {
    "feed-forward": lambda k: FeedForwardPolicy(k, 8, hidden=8),
    "lstm": lambda k: LSTMPolicy(k, 8, hidden=8),
}
policies = pytest.mark.parametrize("name", POLICIES)
stops = pytest.mark.parametrize("stop", ["policy", "end"])


def make(name: str, stop: str, number: int = 6, least: int | None = LEAST) -> tuple[Predictor, Tensor]:
    """A predictor that without the restriction would often stop too early."""
    torch.manual_seed(0)
    policy = POLICIES[name](C + (stop == "end"))
    predictor = Predictor(MLPEncoder(5, (8,)), policy, CLASSES, max_size=MOST, stop=stop, min_size=least, baseline=True)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    with torch.no_grad():
        (predictor.stop_head.linear.bias if stop == "policy" else policy.classifier.bias[-1:]).add_(2.0)
    return predictor.double().eval(), torch.randn(number, 5, dtype=torch.float64)


def multisets(least: int) -> list[tuple[int, ...]]:
    return [
        labels for size in range(least, MOST + 1) for labels in itertools.combinations_with_replacement(range(C), size)
    ]


def counts_of(labels: tuple[int, ...]) -> list[int]:
    return [labels.count(c) for c in range(C)]


@torch.no_grad()
def enumerated(predictor: Predictor, x: Tensor, labels: tuple[int, ...]) -> float:
    """Probability of a multiset: a sum over its orders, from an unrestricted policy with the same weights."""
    free = make_free(predictor)
    total = []
    for order in sorted(set(itertools.permutations(labels))):
        output = free(x[None], forced(torch.tensor([[*order, *[0] * (MOST + 1 - len(order))]])))
        chances = output.logits[0].softmax(-1).tolist()
        chance = 1.0
        for t, label in enumerate(order):
            not_end = 1.0 if t >= LEAST or free.stop == "policy" else 1 - chances[t][C]
            chance *= chances[t][label] / not_end
            if free.stop == "policy" and t >= LEAST:
                chance *= 1 - float(output.stop[0, t].sigmoid())
        if len(order) < MOST:
            n = len(order)
            chance *= float(output.stop[0, n].sigmoid()) if free.stop == "policy" else chances[n][C]
        total.append(chance)
    return math.fsum(total)


def make_free(predictor: Predictor) -> Predictor:
    name = "lstm" if predictor.kind == "LSTMPolicy" else "feed-forward"
    free, _ = make(name, predictor.stop, least=None)
    free.load_state_dict(predictor.state_dict())
    return free


@policies
@stops
def test_no_prediction_is_smaller_than_min_size(name, stop):
    predictor, x = make(name, stop, 60)
    free = make_free(predictor)
    assert predictor.sizes == (LEAST, MOST)
    assert free.sizes == (0, MOST)
    assert free.predict(x).sum(-1).min() < LEAST
    assert predictor.predict(x).sum(-1).min() == LEAST
    prediction = predictor.explain(x, best=3)
    assert prediction.counts.sum(-1).min() >= LEAST
    assert (predictor.explain(x).sequence >= 0).sum(-1).min() == LEAST
    assert predictor.graph_outputs(x)["counts"].equal(predictor.predict(x))
    drawn = predictor.count_probabilities(x, samples=20, generator=torch.Generator().manual_seed(0))
    expected_size = (drawn * torch.arange(MOST + 1)).sum((1, 2))
    assert expected_size.min() >= LEAST - 1e-9


@pytest.mark.slow
@policies
@stops
def test_probabilities_equal_an_enumeration_with_the_restriction(name, stop):
    predictor, x = make(name, stop, 2)
    for one in x:
        found = {
            labels: predictor.log_probability(one[None], torch.tensor([counts_of(labels)]), beam=100).exp().item()
            for labels in multisets(0)
        }
        assert math.fsum(found.values()) == pytest.approx(1)
        for labels, chance in found.items():
            expected = enumerated(predictor, one, labels) if len(labels) >= LEAST else 0.0
            assert chance == pytest.approx(expected, rel=1e-8, abs=1e-12)
        ranked = predictor.search(one[None], k=20, beam=100)
        assert ranked.log_probability.exp().sum().item() == pytest.approx(1)


@stops
@torch.no_grad()
def test_the_marginal_loss_equals_the_negative_log_probability(stop):
    predictor, x = make("feed-forward", stop, 1)
    target = torch.tensor([counts_of(labels) for labels in multisets(LEAST)])
    x = x.expand(len(target), -1)
    parts = parts_of(target)
    output = predictor.at(x, torch.nn.functional.pad(parts, (0, 1)) if stop == "end" else parts)
    loss = marginal_loss(output.logits, target, output.stop, end=stop == "end", max_size=MOST, reduction="none")
    torch.testing.assert_close(-loss, predictor.log_probability(x, target, beam=100))


@stops
@pytest.mark.parametrize(
    "objective",
    [MultisetObjective(), MultisetObjective("stochastic"), ReinforceObjective(), MarginalObjective()],
    ids=lambda objective: type(objective).__name__,
)
def test_losses_and_gradients_stay_finite(stop, objective):
    predictor, x = make("feed-forward", stop)
    target = torch.tensor([counts_of(labels) for labels in multisets(LEAST)])[:6]
    labels = torch.full((6, MOST), -1)
    loss = objective.loss(predictor, Batch(x, target, labels), torch.Generator().manual_seed(0))
    loss.backward()
    assert loss.isfinite()
    for parameter in predictor.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_min_size_is_saved_and_zero_in_older_models(tmp_path):
    predictor, x = make("lstm", "policy", 40)
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path)
    assert loaded.sizes == (LEAST, MOST)
    assert torch.equal(loaded.predict(x), predictor.predict(x))
    path = tmp_path / DESCRIPTION
    description = json.loads(path.read_text())
    del description["min_size"], description["description_sha256"]
    path.write_text(json.dumps(description))
    old = Predictor.load(tmp_path)
    assert old.sizes == (0, MOST)
    assert torch.equal(old.predict(x), make_free(predictor).predict(x))


def test_with_a_fixed_size_min_size_equals_max_size():
    policy = ConvLSTMPolicy(C, (2, 3, 3), hidden=4)
    assert Predictor(torch.nn.Identity(), policy, CLASSES, max_size=3, stop="fixed").sizes == (3, 3)
    with pytest.raises(ValueError, match="min_size must be max_size = 3 or None with stop 'fixed', but is 2"):
        Predictor(torch.nn.Identity(), policy, CLASSES, max_size=3, stop="fixed", min_size=2)
    with pytest.raises(ValueError, match="min_size must be from 0 to max_size = 3, but is 4"):
        Predictor(torch.nn.Identity(), policy, CLASSES, max_size=3, min_size=4)
