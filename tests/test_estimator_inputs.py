"""`MultisetClassifier` on lists of strings, lists of arrays, and DataFrames with text and categories."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the extra 'sklearn' brings scikit-learn")

import pandas as pd
from sklearn.base import clone

from torchmultiset.estimator import MultisetClassifier

pytestmark = pytest.mark.slow

QUICK = {"units": (16,), "hidden": 8, "random_state": 0, "epochs": 1}


def words():
    texts = ["ab", "a", "b", "aab", ""] * 12
    return texts, [[*text] for text in texts]


def points():
    rng = np.random.default_rng(0)
    sets = [rng.normal(5, 1, size=(n, 2)) for n in rng.integers(0, 3, size=60)]
    return sets, [["point"] * len(each) for each in sets]


def names():
    texts, labels = words()
    frame = pd.DataFrame({"text": texts, "phase": ["gas", "solid"] * 30, "grams": range(60)})
    return frame, [[*row, phase] for row, phase in zip(labels, frame["phase"], strict=True)]


@pytest.mark.parametrize(
    ("make", "encoder"),
    [
        (words, "TextEncoder"),
        (points, "SetEncoder"),
        (names, "TextEncoder"),
    ],
)
def test_text_sets_and_tables_are_fitted_cloned_and_pickled(make, encoder):
    x, y = make()
    some = x[:7]
    model = MultisetClassifier(**QUICK).fit(x, y)
    assert type(model.predictor_.encoder).__name__ == encoder
    predicted, probabilities = model.predict(some), model.predict_proba(some)
    assert [len(predicted), len(probabilities)] == [7, 7]
    assert np.allclose(probabilities.sum(-1), 1)
    again = clone(model).fit(x, y)
    assert np.array_equal(again.predict_proba(some), probabilities)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.predict(some) == predicted
    assert np.array_equal(copy.predict_proba(some), probabilities)
    # A single input, without the padding of a batch.
    assert np.allclose(model.predict_proba(x[:1]), probabilities[:1], atol=1e-5)
    with pytest.raises(ValueError, match="X must be of the kind passed to fit"):
        model.predict(np.zeros((3, 2)))


@pytest.mark.parametrize("make", [words, points])
def test_ridge_regression_fits_text_and_sets(make):
    x, y = make()
    ridge = MultisetClassifier(objective="ridge", random_state=0, validation_fraction=0).fit(x, y)
    assert ridge.score(x, y) == 1.0
    assert pickle.loads(pickle.dumps(ridge)).predict(x) == ridge.predict(x)


def test_a_list_of_arrays_may_be_read_in_order():
    x, y = points()
    model = MultisetClassifier(**QUICK, encoder="sequence").fit(x, y)
    assert type(model.predictor_.encoder).__name__ == "SequenceEncoder"
    assert len(model.predict(x[:3])) == 3


def test_texts_are_unicode_of_any_length():
    model = MultisetClassifier(**QUICK).fit(*words())
    with pytest.warns(UserWarning, match="2 inputs are longer than 2,048 bytes"):
        predicted = model.predict_proba(["", "漢字 é 😀", "x" * 2_049, "x" * 100_000])
    assert np.isfinite(predicted).all()
    assert np.array_equal(predicted[2], predicted[3])
