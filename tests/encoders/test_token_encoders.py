"""Encoders of text, sets and sequences: results are independent of padding and batch, and depend on order or not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchmultiset import Predictor
from torchmultiset.data.tokens import TokenRows, TokenText
from torchmultiset.encoders import NgramEncoder, SequenceEncoder, SetEncoder, TextEncoder
from torchmultiset.model.build import build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.registry import COUNT_HEADS, OBJECTIVES, POLICIES

D = 3
TEXTS = ["", "a", "aé", "ba", "€uro 漢字", "x" * 40]
ENCODERS = {
    "text": lambda: TextEncoder(width=8, buckets=32),
    "text, attention": lambda: TextEncoder(width=8, buckets=32, attention=1),
    "ngrams": lambda: NgramEncoder(features=16, buckets=64),
    "set": lambda: SetEncoder(D, width=8),
    "set, attention": lambda: SetEncoder(D, width=8, attention=2),
    "set, no layers": lambda: SetEncoder(D, layers=0),
    "sequence": lambda: SequenceEncoder(D, width=8),
    "sequence, attention": lambda: SequenceEncoder(D, width=8, attention=1),
}
every_encoder = pytest.mark.parametrize("name", ENCODERS)


def rows(*lengths: int) -> Tensor:
    values = np.random.default_rng(0).normal(size=(sum(lengths), D))
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return torch.from_numpy(TokenRows(parts)[np.arange(len(lengths))])


def texts(*some: str) -> Tensor:
    return torch.from_numpy(TokenText(some)[np.arange(len(some))])


def inputs(name: str) -> Tensor:
    return texts(*TEXTS) if name.startswith(("text", "ngrams")) else rows(4, 1, 0, 9)


def make(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    encoder = ENCODERS[name]().double().eval()
    encoder.fit_inputs([inputs(name).double()])
    return encoder


@every_encoder
def test_features_do_not_depend_on_padding_or_the_rest_of_the_batch(name):
    x, encoder = inputs(name).double(), make(name)
    together = encoder(x)
    for i, row in enumerate(x):
        n = max(int((row[:, 0] > 0).sum()), 1)
        for length in (n, n + 1, n + 30):
            alone = torch.zeros(1, length, x.shape[2], dtype=torch.float64)
            alone[0, : min(length, len(row))] = row[:length]
            out = encoder(alone)
            if isinstance(out, Tensor):
                torch.testing.assert_close(out[0], together[i])
                continue
            assert out.mask.sum() == (row[:, 0] > 0).sum()
            torch.testing.assert_close(out.values[0, :n], together.values[i, :n])


KINDS = {"text": TextEncoder, "set": SetEncoder, "sequence": SequenceEncoder}


def predictor(encoder: str, objective: str, head: str | None = None, policy: str | None = None) -> Predictor:
    torch.manual_seed(0)
    model = ModelConfig(encoder=encoder, units=(8,), hidden=8, policy=policy, attention=int(objective != "ridge"))
    return build_predictor(
        model,
        ObjectiveConfig(objective, count_head=head),
        shape=(0, 1 if encoder in ("text", "ngrams") else 1 + D),
        classes=("a", "b"),
        max_size=3,
        stop="policy",
    ).double()


def reads_tokens(policy: str) -> bool:
    try:
        return isinstance(predictor("set", "multi", policy=policy), Predictor)
    except ValueError:
        return False


ONE_SHOT = [("counts", head) for head in COUNT_HEADS] + [
    (name, None) for name, kind in OBJECTIVES.items() if kind.one_shot and name not in ("counts", "ridge")
]
MODELS = {
    **{f"{name} {head or ''}": (name, head, None) for name, head in ONE_SHOT},
    **{f"multi {policy}": ("multi", None, policy) for policy in POLICIES if reads_tokens(policy)},
}
EXPENSIVE = (
    "counts cells",
    "counts gaussian",
    "counts mixture",
    "hungarian",
    "power",
    "multi lstm",
    "multi transformer",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(EXPENSIVE)) for name in MODELS]
)
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_predictions_do_not_depend_on_padding_or_the_rest_of_the_batch(kind, model, data):
    objective, head, policy = MODELS[model]
    made = predictor(kind, objective, head, policy)
    assert type(made.encoder) is KINDS[kind]
    x = (texts(*TEXTS) if kind == "text" else rows(4, 1, 0, 9)).double()
    chosen = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=5))
    padding = data.draw(st.integers(0, 40))
    batch = torch.nn.functional.pad(x[chosen], (0, 0, 0, padding))
    together = made.explain(batch)
    alone = [made.explain(x[i : i + 1, : max(int((x[i, :, 0] > 0).sum()), 1)]) for i in chosen]
    assert torch.equal(together.counts, torch.cat([each.counts for each in alone]))
    for i, each in enumerate(alone):
        steps = min(each.probabilities.shape[1], together.probabilities.shape[1])
        torch.testing.assert_close(each.probabilities[0, :steps], together.probabilities[i, :steps])


def test_order_matters_to_sequences_but_not_to_sets():
    x = rows(5).double()
    shuffled = x[:, [3, 0, 4, 1, 2]]
    for name in ("set", "set, attention"):
        encoder = make(name)
        torch.testing.assert_close(encoder(x).values[:, [3, 0, 4, 1, 2]], encoder(shuffled).values)
    for name in ("sequence", "sequence, attention"):
        encoder = make(name)
        assert not torch.allclose(encoder(x).values[:, [3, 0, 4, 1, 2]], encoder(shuffled).values)


def test_order_matters_to_text():
    values = TextEncoder(width=8, buckets=32)(texts("ab", "ba")).values.sum(1)
    assert not torch.allclose(values[0], values[1])


def test_ngram_counts_equal_a_plain_loop():
    some = ["banana", "ana", "", "bé"]
    encoder = NgramEncoder(longest=3, features=500, buckets=2**18)
    x = texts(*some)
    encoder.fit_inputs([x[:2], x[2:]])
    for row, text in zip(encoder(x), some, strict=True):
        symbols = [257, *(byte + 1 for byte in text.encode())]
        padded = [0, 0, *symbols]
        expected = Counter(tuple(padded[i + 2 - n : i + 3]) for i in range(1, len(symbols)) for n in range(3))
        assert sorted(row[row > 0].int().tolist()) == sorted(expected.values())


def test_rare_ngrams_are_left_out():
    encoder = NgramEncoder(longest=1, features=2)
    x = texts("abc", "ab", "a")
    encoder.fit_inputs([x])
    assert encoder(x).tolist() == [[1, 1], [1, 1], [1, 0]]


def test_features_are_standardised_without_padding():
    x = rows(4, 1, 9)
    encoder = SetEncoder(D, layers=0)
    encoder.fit_inputs([x[:2], x[2:]])
    values, mask = encoder(x)
    torch.testing.assert_close(values[mask][:, :D].mean(0), torch.zeros(D), atol=1e-6, rtol=0)
    torch.testing.assert_close(values[mask][:, :D].std(0, correction=0), torch.ones(D))
    assert (values[..., D] == 1).all()


def test_columns_of_a_table_with_text_are_encoded():
    columns = np.array([[0.0, 10.0], [2.0, 30.0]], dtype=np.float32)
    x = torch.from_numpy(TokenText(["same", "same"], columns)[np.arange(2)])
    encoder = TextEncoder(2, width=8, buckets=32)
    encoder.fit_inputs([x])
    assert encoder.standardised.mean.tolist() == [1, 20]
    assert not torch.allclose(encoder(x).values[0, 0], encoder(x).values[1, 0])
    ngrams = NgramEncoder(2, features=8)
    assert ngrams(x)[:, -2:].tolist() == columns.tolist()


def test_ridge_regression_accepts_sets_and_ngrams():
    assert predictor("ngrams", "ridge").predict(texts("ab", "").double()).shape == (2, 2)
    assert predictor("set", "ridge").predict(rows(2, 0).double()).shape == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", "ridge"), "encoder must be 'ngrams' with an objective in closed form"),
        (("sequence", "ridge"), "encoder must be 'set' with an objective in closed form"),
        (("set", "multi", None, "conv-lstm"), "policy must be 'lstm', .* for vectors and tokens"),
        (("mlp", "multi"), "encoder must be 'conv' for inputs of shape"),
    ],
)
def test_incompatible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        predictor(*arguments)


@every_encoder
def test_a_loaded_encoder_gives_the_same_predictions(name, tmp_path):
    encoder = make(name).float()
    width = encoder.features if name == "ngrams" else encoder.width
    from torchmultiset.heads import CountTable

    first = Predictor(encoder, CountTable(2, width, most=3, pool="sum"), ["a", "b"], max_size=3)
    first.save(tmp_path)
    again = Predictor.load(tmp_path)
    x = inputs(name)
    assert torch.equal(first.predict(x), again.predict(x))
    torch.testing.assert_close(first.scores(x), again.scores(x))
