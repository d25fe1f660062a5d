"""Bootstrap intervals over examples."""

import numpy as np
import pytest
import torch

from torchmultiset.metrics import class_f1, exact_match, f1
from torchmultiset.viz.intervals import bootstrap


def some_counts(n, seed=0, right=0.7):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, (n, 4)).astype(np.uint8)
    predicted = np.where(rng.random((n, 1)) < right, true, rng.integers(0, 3, (n, 4))).astype(np.uint8)
    return predicted, true


def scores_of(counts):
    predicted, true = (torch.from_numpy(part).long() for part in counts)
    alone = {"em": exact_match(predicted, true), "f1": f1(predicted, true)}
    return {name: float(each.mean()) for name, each in alone.items()} | {"class_f1": float(class_f1(predicted, true))}


def test_the_interval_of_one_example_is_its_score():
    counts = some_counts(1)
    assert bootstrap([counts]) == {name: pytest.approx((score, score)) for name, score in scores_of(counts).items()}


def test_classes_that_do_not_occur_are_ignored():
    predicted, true = some_counts(30)
    true[:, 2] = 0
    predicted[:, 2] = 1
    low, high = bootstrap([(predicted, true)])["class_f1"]
    without = np.delete(predicted, 2, 1), np.delete(true, 2, 1)
    assert (low, high) == pytest.approx(bootstrap([without])["class_f1"])


def test_the_width_of_an_interval_agrees_with_theory():
    counts = some_counts(2_000)
    intervals, share = bootstrap([counts]), scores_of(counts)["em"]
    low, high = intervals["em"]
    assert high - low == pytest.approx(2 * 1.96 * (share * (1 - share) / 2_000) ** 0.5, rel=0.1)


def test_every_score_is_in_its_interval():
    counts = some_counts(300)
    intervals, scores = bootstrap([counts]), scores_of(counts)
    assert {*intervals} == {*scores}
    assert all(low < scores[name] < high for name, (low, high) in intervals.items())


def test_an_example_is_resampled_with_the_predictions_of_all_seeds():
    first, second = some_counts(400, right=0.5), some_counts(400, right=0.5)
    # The same predictions twice are not more evidence.
    assert bootstrap([first, first]) == pytest.approx(bootstrap([first]))
    other = (second[0][::-1].copy(), second[1])
    widths = [high - low for low, high in (bootstrap([first])["em"], bootstrap([first, other])["em"])]
    assert widths[1] < widths[0]


def test_intervals_are_reproducible():
    assert bootstrap([some_counts(100)]) == bootstrap([some_counts(100)])
