from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import weights

pytest.importorskip("sklearn", reason="the extra 'sklearn' brings scikit-learn")

import pandas as pd
from sklearn.base import ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from torchmultiset import Predictor
from torchmultiset.encoders import MLPEncoder
from torchmultiset.estimator import MultisetClassifier
from torchmultiset.heads import RegressedCounts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SMALL = {"units": (16,), "hidden": 8, "random_state": 0}
QUICK = {**SMALL, "epochs": 1, "samples": 4}


def pets(n=60):
    """Examples in which x_0 is the number of cats and x_1 that of dogs, 0 or 1."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, n), rng.integers(0, 2, n)], 1).astype(np.float64)
    x[:2] = [[2, 1], [0, 0]]
    return x, [["cat"] * int(cats) + ["dog"] * int(dog) for cats, dog in x]


def matrix(lists):
    return np.array([[row.count("cat"), row.count("dog")] for row in lists])


@pytest.fixture(scope="module")
def fitted():
    x, y = pets()
    return MultisetClassifier(**SMALL, epochs=30, lr=0.02, batch_size=8, validation_fraction=0).fit(x, y)


# scikit-learn's own checks


class AsClassifier(ClassifierMixin, MultisetClassifier):
    """The estimator with the mixin that makes scikit-learn run its checks for classifiers."""


NOT_APPLICABLE = {
    "check_classifier_data_not_an_array",
    "check_classifier_multioutput",
    "check_classifiers_classes",
    "check_classifiers_one_label",
    "check_classifiers_regression_target",
    "check_classifiers_train",
}
"""Checks for classifiers that an estimator of counts cannot pass."""
ALSO_PASSED = {
    "check_classifiers_one_label_sample_weights",
    "check_decision_proba_consistency",
    "check_estimators_partial_fit_n_features",
    "check_non_transformer_estimators_n_iter",
    "check_supervised_y_no_nan",
}
"""Further checks for classifiers, which the estimator passes."""
WITH_ARRAY_API = "check_array_api_input"
"""A check that is skipped if scikit-learn was imported without SCIPY_ARRAY_API=1."""


def name_of(check: Callable[..., object]) -> str:
    return getattr(check, "func", check).__name__


def checks_of(estimator: MultisetClassifier) -> dict[str, list[Callable[..., object]]]:
    """scikit-learn's checks of the estimator by name; a check may run with several arguments."""
    found: dict[str, list[Callable[..., object]]] = {}
    for _, check in estimator_checks_generator(estimator):
        found.setdefault(name_of(check), []).append(check)
    return found


def run_with_array_api(name: str) -> None:
    """Run a check in a new process, because SciPy reads the variable on import."""
    program = f"""if True:
        from sklearn.utils.estimator_checks import estimator_checks_generator
        from torchmultiset.estimator import MultisetClassifier
        for estimator, check in estimator_checks_generator(MultisetClassifier(**{QUICK})):
            if check.func.__name__ == {name!r}:
                check(estimator)
                print("passed")
    """
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, {*ran.stdout.split()}) == (0, {"passed"}), ran.stderr


# No check is marked as an expected failure, and none is skipped.
@parametrize_with_checks([MultisetClassifier(**QUICK)])
def test_the_estimator_passes_the_checks_of_scikit_learn(estimator, check, without_shape_hook):
    if name_of(check) == WITH_ARRAY_API:
        run_with_array_api(name_of(check))
    else:
        check(estimator)


@pytest.mark.parametrize("name", sorted(ALSO_PASSED))
def test_the_estimator_passes_the_checks_for_classifiers_that_apply_to_counts(name, without_shape_hook):
    model = AsClassifier(**QUICK)
    for check in checks_of(model).get(name, []):
        check(model)


def test_every_check_for_classifiers_is_listed_and_the_documentation_has_those_not_passed():
    ours = {*checks_of(MultisetClassifier())}
    more = {*checks_of(AsClassifier())} - ours
    new = sorted(more - NOT_APPLICABLE - ALSO_PASSED)
    assert new == [], (
        f"scikit-learn {version('scikit-learn')} has new checks for classifiers: can an estimator of counts pass them?"
    )
    pinned = re.search(r"^scikit-learn==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    if version("scikit-learn") == pinned[1]:
        gone = sorted((NOT_APPLICABLE | ALSO_PASSED) - more)
        assert gone == [], f"scikit-learn {pinned[1]} no longer has these checks: remove them from the lists"
    (section,) = re.findall(
        r"^## scikit-learn\n(.*?)^## ", (ROOT / "docs" / "own-data.md").read_text(), flags=re.M | re.S
    )
    assert {*re.findall(r"`(check_\w+)`", section)} == {*NOT_APPLICABLE, WITH_ARRAY_API, "check_estimator"}


# Forms of targets


def test_an_estimator_trained_on_lists_of_labels_predicts_lists_of_labels(fitted):
    assert fitted.classes_.tolist() == ["cat", "dog"]
    assert fitted.max_size_ == 3
    assert fitted.predict([[2, 1], [0, 0], [1, 0]]) == [["cat", "cat", "dog"], [], ["cat"]]
    x, y = pets()
    assert fitted.score(x, y) == 1.0


def test_columns_with_names_may_come_in_any_order(fitted):
    x, y = pets()
    frame = pd.DataFrame(matrix(y), columns=["cat", "dog"])
    assert fitted.score(x, frame) == fitted.score(x, frame[["dog", "cat"]]) == 1.0


def test_targets_may_be_an_iterator():
    x, y = pets()
    model = MultisetClassifier(**{**QUICK, "epochs": 1}).fit(x, map(list, y))
    assert isinstance(model.predict(x[:1])[0], list)


def test_small_images_are_encoded_with_fewer_poolings():
    generator = np.random.default_rng(0)
    for side in (40, 28):  # three poolings would leave a map of one position, or none
        x, y = generator.random((8, 1, side, side)), [["a", "a", "b"], ["b"]] * 4
        model = MultisetClassifier(epochs=1, random_state=0).fit(x, y)
        assert model.predictor_.kind == "CellCounts"
        assert len(model.predictor_.encoder.convs) == 2


def test_every_form_of_targets_gives_the_same_model_and_is_the_form_of_predictions():
    x, lists = pets()
    forms = [lists, [Counter(row) for row in lists], matrix(lists), pd.DataFrame(matrix(lists), columns=["cat", "dog"])]
    models = [MultisetClassifier(**{**QUICK, "epochs": 3}).fit(x, form) for form in forms]
    first = weights(models[0].predictor_)
    for model in models[1:]:
        assert all(torch.equal(first[name], value) for name, value in weights(model.predictor_).items())
    predictions = [model.predict(x) for model in models]
    assert predictions[1] == [Counter(row) for row in predictions[0]]
    assert all(isinstance(row, Counter) for row in predictions[1])
    assert predictions[2].dtype == np.int64
    assert np.array_equal(predictions[2], matrix(predictions[0]))
    assert np.array_equal(predictions[3], predictions[2])
    assert [model.classes_.tolist() for model in models] == [["cat", "dog"], ["cat", "dog"], [0, 1], ["cat", "dog"]]
    scores = {model.score(x, form) for model in models for form in forms}
    assert scores == {np.mean([mine == row for mine, row in zip(predictions[0], lists, strict=True)])}


def test_labels_may_be_numbers_and_rows_arrays():
    x, lists = pets()
    y = [np.array([7 if label == "cat" else 12 for label in row], dtype=np.int64) for row in lists]
    model = MultisetClassifier(**QUICK).fit(x, pd.Series(y))
    assert model.classes_.tolist() == [7, 12]
    assert {label for row in model.predict(x) for label in row} <= {7, 12}
    assert all(type(label) is int for row in model.predict(x) for label in row)


def test_a_target_with_a_label_absent_from_training_counts_as_wrong(fitted):
    right = fitted.score([[1, 0], [1, 0]], [["cat"], ["cat", "unicorn"]])
    assert right == 0.5


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "the target y is None"),
        (["cat", "dog", "cat"], r"y\[0\] is 'cat'$"),
        ([1, 2, 3], r"y\[0\] is 1$"),
        ([["cat"], [1], []], "use only strings or only numbers"),
        ([[], [], []], "y has no labels"),
        ([Counter(cat=1), Counter(cat=-1), Counter()], r"the counts in y\[1\] must be non-negative integers"),
        ([{"cat": 0.5}, {}, {}], r"the counts in y\[0\] must be non-negative integers"),
        (np.array([[1.5], [1.0], [2.0]]), "y must hold counts, but"),
        (np.array([[-1], [1], [2]]), "y must hold counts, but"),
        (np.array([[np.nan], [1], [2]]), "y contains NaN"),
        ([["cat"], ["dog"]], "inconsistent numbers of samples"),
    ],
)
def test_invalid_multisets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        MultisetClassifier(**QUICK).fit(np.zeros((3, 2)), y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_size": 1}, "min_size must be at most 0, the size of the smallest multiset, but is 1"),
        ({"max_size": 1}, "a multiset of 3 labels, but the predictor emits at most 1"),
        ({"stop": "fixed"}, "stop 'fixed' needs multisets of max_size = 3 labels, but one has 0: use"),
        ({"objective": "mutli"}, "objective must be one of"),
        ({"validation_fraction": 1.0}, "validation_fraction must be"),
        ({"epochs": -1}, "epochs must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(options, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        MultisetClassifier(**{**QUICK, **options}).fit(*pets())


@pytest.mark.parametrize("objective", [None, "multi", "one-step"])
def test_no_prediction_is_smaller_than_the_smallest_training_multiset(objective):
    x, y = pets()
    larger = [[*row, "dog", "dog"] for row in y]
    model = MultisetClassifier(**QUICK, objective=objective).fit(x, larger)
    assert (model.min_size_, model.max_size_) == (2, 5)
    elsewhere = np.random.default_rng(0).normal(scale=100, size=(200, 2))
    assert {len(row) for row in model.predict(elsewhere)} <= {2, 3, 4, 5}
    lower = MultisetClassifier(**QUICK, objective=objective, min_size=0).fit(x, larger)
    assert lower.min_size_ == lower.predictor_.min_size == 0


def test_a_min_size_below_a_fixed_size_leaves_the_size_open():
    x, _ = pets()
    model = MultisetClassifier(**QUICK, min_size=1).fit(x, [["cat", "dog"]] * len(x))
    assert (model.predictor_.sizes, model.predictor_.stop) == ((1, 2), "policy")


# Probabilities


def test_probabilities_are_shares_of_counts(fitted):
    x, _ = pets()
    shares = fitted.predict_proba(x)
    assert shares.shape == (len(x), 2, 4)
    assert np.allclose(shares.sum(-1), 1)
    assert (shares >= 0).all()
    # The probabilities are close to 0 and 1, so the most frequent count is nearly always the predicted one.
    assert (shares.argmax(-1) == matrix(fitted.predict(x))).mean() > 0.9


@pytest.mark.parametrize("stop", ["policy", "end"])
def test_probabilities_equal_those_of_the_model(stop):
    """Compare with the sum over all sequences of labels, whose probabilities are products over the steps."""
    x, y = pets()
    settings = {**SMALL, "samples": 4000, "objective": "multi", "epochs": 1}
    model = MultisetClassifier(**settings, stop=stop, max_size=3).fit(x, y)
    row = x[:1]
    expected = np.zeros((2, 4))
    for sequence, chance in sequences(model.predictor_, torch.tensor(row, dtype=torch.float32)):
        for c in range(2):
            expected[c, sequence.count(c)] += chance
    assert np.allclose(expected.sum(-1), 1, atol=1e-5)
    assert np.abs(model.predict_proba(row)[0] - expected).max() < 0.03  # 4,000 draws: a deviation is 0.008 at most


def sequences(predictor, x, emitted=()):
    """Yield every sequence of labels that the model can emit, with its probability."""
    policy, memory = predictor.policy, predictor.encoder(x)
    state, step = policy.start(memory), None
    for label in (None, *emitted):
        step, state = policy.step(state, None if label is None else torch.tensor([label]))
    choices = step.logits.softmax(-1)[0].tolist()
    if len(emitted) == predictor.max_size:
        end = 1.0
    elif predictor.stop == "policy":
        end = predictor.stop_head(step.features).sigmoid().item()
        choices = [choice * (1 - end) for choice in choices]
    else:
        end = choices[2]
    yield emitted, end
    if len(emitted) < predictor.max_size:
        for label in range(2):
            for sequence, chance in sequences(predictor, x, (*emitted, label)):
                yield sequence, choices[label] * chance


def test_multisets_of_a_single_size_are_predicted_with_that_size():
    x, _ = pets()
    y = [["cat", "dog"] if row[1] else ["cat", "cat"] for row in x]
    model = MultisetClassifier(**QUICK).fit(x, y)
    assert model.predictor_.stop == "fixed"
    counts = np.arange(3)
    sizes = (model.predict_proba(x) * counts).sum((1, 2))
    assert np.allclose(sizes, 2)


@pytest.mark.parametrize("objective", ["counts", "hungarian", "power"])
def test_a_one_shot_model_has_probabilities_of_its_counts(objective):
    x, y = pets()
    model = MultisetClassifier(**QUICK, objective=objective).fit(x, y)
    probabilities = model.predict_proba(x)
    assert probabilities.shape == (60, 2, model.max_size_ + 1)
    assert np.allclose(probabilities.sum(-1), 1)
    assert np.allclose(model.predict_proba(x[:1]), probabilities[:1])
    # The expected probabilities are sums over all multisets, weighted by their probabilities.
    found = model.predictor_.search(torch.tensor(np.asarray(x[:5]), dtype=torch.float32), k=30)
    expected = np.zeros((5, 2, model.max_size_ + 1))
    for i, (rows, chances) in enumerate(zip(found.counts.tolist(), found.log_probability.exp().tolist(), strict=True)):
        for row, chance in zip(rows, chances, strict=True):
            for c, n in enumerate(row):
                expected[i, c, n] += chance
    assert np.allclose(probabilities[:5], expected, atol=1e-6)
    assert not hasattr(MultisetClassifier(objective="one-step"), "predict_proba")


def test_a_one_step_model_has_no_probabilities():
    model = MultisetClassifier(**QUICK, objective="one-step").fit(*pets())
    assert not hasattr(model, "predict_proba")
    assert len(model.predict(pets()[0])) == 60


def test_predict_proba_exists_only_for_heads_with_probabilities():
    model = MultisetClassifier(**QUICK).fit(*pets())
    assert hasattr(model, "predict_proba")
    head = RegressedCounts(2, memory=128)
    model.predictor_ = Predictor(MLPEncoder(3), head, classes=["cat", "dog"], max_size=3)
    assert not hasattr(model, "predict_proba")


def test_an_unknown_objective_is_refused_by_fit_only():
    model = MultisetClassifier(objective="nonsense")
    assert hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="objective must be one of"):
        model.fit(*pets())


def test_ridge_regression_is_solved_in_closed_form():
    x, y = pets()
    model = MultisetClassifier(objective="ridge", random_state=0).fit(x, y)
    assert not hasattr(model, "predict_proba")
    assert not hasattr(MultisetClassifier(objective="ridge"), "predict_proba")
    assert len(model.history_) == 1
    assert model.score(x, y) == 1.0  # the counts are linear in the features
    # Least squares on the examples that were not held out; the penalty that was chosen is small.
    numbers = model.predictor_(torch.tensor(x, dtype=torch.float32)).squeeze(-1).detach().numpy()
    assert np.allclose(numbers, matrix(y), atol=0.01)


# Use with scikit-learn


def test_the_estimator_works_in_a_pipeline_in_cross_validation_and_in_a_grid_search():
    x, y = pets()
    pipeline = make_pipeline(StandardScaler(), MultisetClassifier(**QUICK))
    scores = cross_val_score(pipeline, x, y, cv=3)
    assert scores.shape == (3,)
    search = GridSearchCV(pipeline, {"multisetclassifier__epochs": [1, 8]}, cv=2)
    search.set_params(estimator__multisetclassifier__lr=0.02, estimator__multisetclassifier__batch_size=8).fit(x, y)
    assert search.best_params_ == {"multisetclassifier__epochs": 8}
    assert search.predict_proba(x[:5]).shape == (5, 2, 4)
    assert len(search.predict(x[:5])) == 5


def test_a_grid_may_be_an_array_of_numbers(tmp_path):
    x, y = pets()
    grid = {"hidden": np.array([8]), "layers": np.array([1]), "max_size": np.array([4])}
    search = GridSearchCV(MultisetClassifier(**QUICK), {**grid, "objective": ["multi"]}, cv=2).fit(x, y)
    search.best_estimator_.predictor_.save(tmp_path)
    assert Predictor.load(tmp_path).max_size == 4


def test_results_are_reproducible_with_a_seed_and_differ_with_another():
    x, y = pets()
    model = MultisetClassifier(**QUICK).fit(x, y)
    again, other = clone(model).fit(x, y), clone(model).set_params(random_state=1).fit(x, y)
    assert np.array_equal(model.predict_proba(x), again.predict_proba(x))
    assert model.history_[0]["loss"] == again.history_[0]["loss"] != other.history_[0]["loss"]


def test_the_global_random_state_does_not_change():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = MultisetClassifier(**QUICK).fit(*pets())
    model.predict_proba(pets()[0])
    assert torch.equal(torch.rand(3), expected)


def test_the_estimator_can_be_pickled_and_its_predictor_saved(fitted, tmp_path):
    x, _ = pets()
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.predict(x) == fitted.predict(x)
    assert np.array_equal(copy.predict_proba(x[:3]), fitted.predict_proba(x[:3]))
    fitted.predictor_.save(tmp_path)
    emitted = Predictor.load(tmp_path).predict_labels(torch.tensor(x, dtype=torch.float32))
    assert emitted == fitted.predict(x)


def test_one_prediction_does_not_depend_on_the_others(fitted):
    x, y = pets()
    assert np.allclose(fitted.predict_proba(x)[7:8], fitted.predict_proba(x[7:8]), atol=1e-6)
    drawn = MultisetClassifier(**QUICK, objective="multi").fit(x, y)
    assert np.array_equal(drawn.predict_proba(x)[7:8], drawn.predict_proba(x[7:8]))


def test_units_of_measurement_do_not_matter():
    x, y = pets()
    options = {**QUICK, "epochs": 3}
    plain = MultisetClassifier(**options).fit(x, y)
    scaled = MultisetClassifier(**options).fit(x * [1000, 0.001] + [5000, 0], y)
    assert plain.history_[-1]["loss"] == pytest.approx(scaled.history_[-1]["loss"], rel=1e-3)


# Images


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_images_have_four_dimensions(dtype):
    rng = np.random.default_rng(0)
    dark = rng.integers(0, 2, 40)
    x = np.where(dark[:, None, None, None], 200, 20).astype(dtype) * np.ones((1, 3, 16, 16), dtype)
    x = x if dtype is np.uint8 else x / 255
    y = [["lamp"] if light else [] for light in dark]
    model = MultisetClassifier(random_state=0, channels=(4,), hidden=4, epochs=15, lr=0.02, batch_size=8).fit(x, y)
    assert model.predictor_.encoder.in_channels == 3
    assert model.score(x, y) == 1.0
    assert model.predict_proba(x[:2]).shape == (2, 1, 2)
    with pytest.raises(ValueError, match=r"of the shape passed to fit, \(3, 16, 16\)"):
        model.predict(x[:, :, :8])
    with pytest.raises(ValueError, match=r"a table .* or images"):
        clone(model).fit(x[:, 0], y)


# Side effects


def test_fit_has_no_output(capfd):
    MultisetClassifier(**QUICK).fit(*pets())
    assert capfd.readouterr() == ("", "")


def test_prediction_before_fit_is_an_error():
    for name in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError):
            getattr(MultisetClassifier(), name)(np.zeros((1, 2)))


def test_numbers_too_large_for_the_network_are_refused():
    with pytest.raises(ValueError, match="too large for float32"):
        MultisetClassifier(**QUICK).fit(np.full((3, 2), 1e200), [["cat"], [], []])


def test_importing_the_package_does_not_import_scikit_learn():
    code = "import sys, torchmultiset.model.predictor, torchmultiset.training; print('sklearn' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_without_scikit_learn_the_error_has_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "torchmultiset.estimator")
    with pytest.raises(ImportError, match=r'pip install .*\[sklearn\]"'):
        import torchmultiset.estimator  # noqa: F401
