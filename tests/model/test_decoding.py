"""The attribute `decoding`: greedy steps or the most probable multiset."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import PoissonCounts, RegressedCounts, Slots
from torchmultiset.metrics import f1
from torchmultiset.model.predictor import BEAM, Predictor
from torchmultiset.model.serialization import DESCRIPTION
from torchmultiset.policies import FeedForwardPolicy, LSTMPolicy

CLASSES = ["ant", "bee", "cat"]
MADE = {
    "lstm": lambda: LSTMPolicy(3, 8, hidden=8),
    "feed-forward": lambda: FeedForwardPolicy(3, 8, hidden=8),
    "slots": lambda: Slots(3, 8, slots=3, width=8, heads=2),
    "poisson": lambda: PoissonCounts(3, 8),
}
every = pytest.mark.parametrize("name", MADE)


def make(name: str) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    predictor = Predictor(MLPEncoder(5, (8,)), MADE[name](), CLASSES, max_size=3)
    for parameter in predictor.parameters():
        nn.init.normal_(parameter, std=0.6)
    if predictor.steps:
        with torch.no_grad():
            predictor.stop_head.linear.bias.fill_(-2.0)
    return predictor.eval(), torch.randn(60, 5)


@every
def test_search_predicts_the_most_probable_multiset(name):
    predictor, x = make(name)
    greedy = predictor.predict(x)
    best = predictor.search(x, k=1, beam=BEAM)
    plain = predictor.explain(x)
    assert predictor.decoding == "greedy"
    predictor.decoding = "search"
    found = predictor.predict(x)
    assert torch.equal(found, best.counts[:, 0])
    assert not torch.equal(found, greedy), "search and greedy decoding agree"
    assert torch.equal(predictor.decode(x).counts, found)
    prediction = predictor.explain(x)
    assert torch.equal(prediction.counts, found)
    assert prediction.best is None
    torch.testing.assert_close(prediction.confidence, best.log_probability[:, 0].exp())
    assert (prediction.confidence >= plain.confidence - 1e-9).all()
    assert predictor.explain(x, best=2).best.counts.shape == (60, 2, 3)
    predictor.decoding = "greedy"
    assert torch.equal(predictor.predict(x), greedy)


@every
def test_the_decoding_is_saved_and_is_greedy_in_older_models(name, tmp_path):
    predictor, x = make(name)
    predictor.decoding = "search"
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path)
    assert loaded.decoding == "search"
    assert torch.equal(loaded.predict(x), predictor.predict(x))
    path = tmp_path / DESCRIPTION
    description = json.loads(path.read_text())
    del description["decoding"], description["description_sha256"]
    path.write_text(json.dumps(description))
    assert Predictor.load(tmp_path).decoding == "greedy"


@pytest.mark.usefixtures("without_shape_hook")
def test_unsupported_decodings_are_refused():
    for value, module, message in (
        ("search", RegressedCounts(3, 8), "decoding must be 'greedy' for RegressedCounts, which supports no other"),
        ("f1", RegressedCounts(3, 8), "decoding must be 'greedy' for RegressedCounts, which supports no other"),
        ("f1", LSTMPolicy(3, 8), "must be 'greedy' or 'search' for LSTMPolicy, which supports no other"),
        ("beam", LSTMPolicy(3, 8), "decoding must be one of 'greedy', 'search', 'f1', but is 'beam'"),
    ):
        with pytest.raises(ValueError, match=message):
            Predictor(MLPEncoder(5, (8,)), module, CLASSES, max_size=3, decoding=value)


def test_a_policy_cannot_be_exported_with_search():
    predictor, x = make("lstm")
    predictor.decoding = "search"
    with pytest.raises(ValueError, match=r"set predictor.decoding = 'greedy'"):
        predictor.graph_outputs(x)
    heads, x = make("slots")
    heads.decoding = "search"
    assert torch.equal(heads.graph_outputs(x)["counts"], heads.predict(x))


def test_f1_decoding_predicts_with_a_higher_expected_f1_and_is_exported(tmp_path):
    predictor, x = make("poisson")
    belief, expected = predictor.belief(x), {}
    for decoding in predictor.decodings:
        predictor.decoding = decoding
        counts = predictor.predict(x)
        every = belief.ranked(20)  # all multisets of up to three labels
        scores = f1(counts[:, None].expand(-1, 20, -1).flatten(0, 1), every.counts.flatten(0, 1)).view(-1, 20)
        expected[decoding] = (scores * every.log_probability.exp()).sum(1).mean()
        torch.testing.assert_close(predictor.explain(x).confidence, belief.log_probability(counts).exp())
        assert torch.equal(predictor.graph_outputs(x)["counts"], counts)
    assert max(expected, key=expected.__getitem__) == "f1"
    predictor.save(tmp_path)
    assert torch.equal(Predictor.load(tmp_path).predict(x), counts)
