"""Conformal sets: coverage over resamplings, small cases by hand, and sets compared with an enumeration."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import CLASSES, vectors

from torchmultiset.data import Examples
from torchmultiset.distributions import Ranked
from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import CountTable, OneStep
from torchmultiset.model.conformal import (
    Conformal,
    candidate_scores,
    conformal_quantile,
    contains_truth,
    examples_needed,
    in_set,
    rank_examples,
    split_for_conformal,
    truth_scores,
)
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import from_index, how_many
from torchmultiset.policies import FeedForwardPolicy, LSTMPolicy

COVERAGES = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99])


def head() -> Predictor:
    torch.manual_seed(0)
    return Predictor(MLPEncoder(3, (8,)), CountTable(3, memory=8, most=3), CLASSES, max_size=3)


def policy() -> Predictor:
    torch.manual_seed(0)
    return Predictor(MLPEncoder(3, (8,)), FeedForwardPolicy(3, memory=8), CLASSES, max_size=3)


def recurrent() -> Predictor:
    torch.manual_seed(0)
    return Predictor(MLPEncoder(3, (8,)), LSTMPolicy(4, 8, hidden=8), CLASSES, max_size=3, stop="end")


MODELS = [head, policy, recurrent]


# Threshold


@pytest.mark.parametrize(
    ("scores", "coverage", "expected"),
    [
        (range(1, 10), 0.9, 9),  # ceil(10 * 0.9) = 9, the largest of nine
        (range(1, 11), 0.9, 10),  # ceil(11 * 0.9) = 10
        (range(1, 20), 0.9, 18),
        (range(1, 20), 0.95, 19),
        (range(1, 10), 0.7, 7),  # 10 * 0.7 is exactly 7, not a little more
        (range(1, 100), 0.29, 29),
        ([5.0, 1.0, math.inf], 0.5, 5),
        ([5.0, 1.0, math.inf], 0.75, math.inf),
    ],
)
def test_the_threshold_is_the_conformal_quantile(scores, coverage, expected):
    values = [float(score) for score in scores]
    random.Random(0).shuffle(values)
    assert conformal_quantile(torch.tensor(values), coverage) == expected


@given(COVERAGES)
def test_too_few_examples_are_refused_with_the_number_needed(coverage):
    needed = examples_needed(coverage)
    scores = torch.arange(float(needed))
    assert conformal_quantile(scores, coverage) <= needed - 1
    assert math.ceil(round((needed + 1) * coverage, 9)) <= needed
    if needed > 1:
        with pytest.raises(
            ValueError, match=f"requires at least {needed} calibration examples, but there are {needed - 1}"
        ):
            conformal_quantile(scores[1:], coverage)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_coverage_outside_0_to_1_is_refused(coverage):
    with pytest.raises(ValueError, match="coverage must be between 0 and 1"):
        examples_needed(coverage)


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (19, 0.9), (30, 0.5), (50, 0.8)])
def test_coverage_of_exchangeable_scores_is_as_guaranteed(n, coverage):
    """A new score is within the threshold with probability ceil((n + 1) coverage) / (n + 1), for any distribution."""
    trials, generator = 4_000, torch.Generator().manual_seed(n)
    scores = torch.rand(trials, n + 1, generator=generator, dtype=torch.float64).log()
    covered = sum(row[-1] <= conformal_quantile(row[:-1], coverage) for row in scores)
    expected = math.ceil(round((n + 1) * coverage, 9)) / (n + 1)
    assert expected >= coverage
    assert abs(covered / trials - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)


# Scores


def test_scores_by_hand():
    counts = torch.tensor([[[2, 0], [1, 0], [0, 0]], [[0, 1], [0, 0], [0, 0]]])
    ranked = Ranked(counts, torch.tensor([[0.6, 0.25, 0.05], [1.0, 0.0, 0.0]]).double().log())
    target = torch.tensor([[1, 0], [0, 0]])  # the second target is not among its candidates
    assert truth_scores(ranked, target).tolist() == pytest.approx([-math.log(0.25), math.inf])
    assert truth_scores(ranked, target, "cumulative").tolist() == pytest.approx([0.85, math.inf])
    cumulative = candidate_scores(ranked.log_probability, "cumulative").tolist()
    assert cumulative == [pytest.approx([0.6, 0.85, 0.9]), [1.0, math.inf, math.inf]]


@pytest.mark.usefixtures("without_shape_hook")
def test_unknown_scores_and_targets_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="score must be one of 'probability', 'cumulative', but is 'rank'"):
        candidate_scores(torch.zeros(1, 2), "rank")
    ranked = Ranked(torch.zeros(2, 3, 2, dtype=torch.int64), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="target must be"):
        truth_scores(ranked, torch.zeros(2, 3, dtype=torch.int64))


# Sets


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("score", ["probability", "cumulative"])
def test_sets_equal_an_enumeration(make, score):
    """All multisets are scored one by one, sorted, and compared with the threshold."""
    predictor, examples = make(), vectors(30)
    number = how_many(3, 3, min_size=0)
    conformal = Conformal.calibrate(predictor, examples, score=score, candidates=number, beam=64)
    x = examples.batch(range(6)).x
    sets, threshold = conformal.predict(predictor, x, 0.8), conformal.threshold(0.8)
    every = from_index(torch.arange(number), 3, max_size=3, min_size=0)
    for i in range(len(x)):
        log = predictor.log_probability(x[i : i + 1].repeat(number, 1), every, beam=64).tolist()
        wanted, total = set(), 0.0
        for place, at in enumerate(sorted(range(number), key=lambda at: -log[at])):
            total += math.exp(log[at])
            value = -log[at] if score == "probability" else total
            if value <= threshold + 1e-6 or place == 0:
                wanted.add(tuple(every[at].tolist()))
        inside = sets.counts[i, sets.inside[i]]
        assert {tuple(row.tolist()) for row in inside} == wanted
        assert sets.low[i].tolist() == [min(row[c] for row in wanted) for c in range(3)]
        assert sets.high[i].tolist() == [max(row[c] for row in wanted) for c in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_coverage_of_an_untrained_model_is_as_guaranteed(make):
    """Coverage of a new example, over resamplings, is at least the guaranteed one up to its binomial error."""
    predictor, n, trials = make(), 40, 1_500
    truth, others = rank_examples(predictor, vectors(300), score="probability", candidates=20, beam=8)
    generator = torch.Generator().manual_seed(0)
    covered, plain = 0, 0
    for _ in range(trials):
        order = torch.randperm(300, generator=generator)[: n + 1]
        threshold = conformal_quantile(truth[order[:n]], 0.8)
        new = order[n:]
        covered += int(contains_truth(truth[new], others[new], threshold))
        plain += int(truth[new] <= threshold)
    expected = math.ceil(41 * 0.8) / 41
    deviation = math.sqrt(expected * (1 - expected) / trials)
    assert covered >= plain
    assert covered / trials > 0.8 - 4 * deviation
    assert abs(plain / trials - expected) < 4 * deviation


def test_a_coverage_that_needs_more_candidates_is_refused():
    predictor = head()
    conformal = Conformal.calibrate(predictor, vectors(60), candidates=2)
    known = sum(score < math.inf for score in conformal.scores)
    assert 0 < known < 50
    with pytest.raises(ValueError, match=rf"coverage 0.95 is out of reach: of 60 .* only {known} is among the 2 most"):
        conformal.threshold(0.95)
    assert conformal.threshold(known / 61 - 0.01) < math.inf


def test_the_first_candidate_is_always_in_the_set():
    scores = torch.tensor([[3.0, 4.0, math.inf]])
    assert in_set(scores, 1.0).tolist() == [[True, False, False]]
    assert in_set(scores, 4.0).tolist() == [[True, True, False]]
    assert contains_truth(torch.tensor([3.0]), scores, 1.0).tolist() == [True]
    assert contains_truth(torch.tensor([4.0]), scores, 1.0).tolist() == [False]


def test_another_number_of_candidates_than_in_calibration_is_refused():
    predictor, examples = head(), vectors(20)
    conformal = Conformal.calibrate(predictor, examples, candidates=5)
    with pytest.raises(ValueError, match="ranked must be 5 candidates"):
        conformal.sets(predictor.search(examples.batch([0]).x, k=4), 0.5)


def test_models_and_data_that_cannot_be_calibrated_are_refused():
    torch.manual_seed(0)
    without = Predictor(MLPEncoder(3, (8,)), OneStep(3, memory=8), CLASSES, max_size=3)
    with pytest.raises(ValueError, match="has no probabilities of multisets"):
        Conformal.calibrate(without, vectors(5))
    with pytest.raises(ValueError, match="examples must be at least one calibration example"):
        Conformal.calibrate(head(), vectors(5).subset([]))
    with pytest.raises(ValueError, match="candidates must be at least 1"):
        Conformal.calibrate(head(), vectors(5), candidates=0)


def test_a_calibration_is_saved_with_the_model(tmp_path):
    predictor, examples = head(), vectors(40)
    predictor.record = {"seed": 3}
    conformal = Conformal.calibrate(predictor, examples, candidates=3, score="cumulative")
    assert math.inf in conformal.scores
    conformal.store(predictor)
    predictor.save(tmp_path)
    loaded = Predictor.load(tmp_path)
    assert Conformal.of(loaded) == conformal
    assert loaded.record["seed"] == 3
    assert Conformal.of(head()) is None
    json.loads((tmp_path / "predictor.json").read_text())


# Split


@given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 5))
def test_the_split_has_its_share_and_every_example_once(n, share, seed):
    examples = Examples(np.arange(n, dtype=np.float32)[:, None], np.zeros((n, 1), np.int64), ("a",))
    if not 1 <= round(share * n) < n:
        with pytest.raises(ValueError, match="examples must be enough for"):
            split_for_conformal(examples, share, seed)
        return
    rest, chosen = split_for_conformal(examples, share, seed)
    assert len(chosen) == round(share * n)
    together = [part.batch(range(len(part))).x[:, 0].tolist() for part in (rest, chosen)]
    assert sorted(together[0] + together[1]) == list(range(n))
    assert all(part == sorted(part) for part in together)
    again = split_for_conformal(examples, share, seed)[1]
    assert again.batch(range(len(again))).x[:, 0].tolist() == together[1]


def test_another_seed_gives_another_split():
    examples = vectors(50)
    first, second = (split_for_conformal(examples, 0.5, seed)[1].labels for seed in (0, 1))
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        split_for_conformal(examples, 1.0)
