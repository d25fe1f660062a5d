from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch
from rich.console import Console
from tiny_runs import CLASSES, vectors

from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import CountTable
from torchmultiset.model.conformal import Conformal, rank_examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.viz.conformal import ConformalReport, Resampled, conformal_report, conformal_table, resample


@pytest.fixture
def predictor() -> Predictor:
    torch.manual_seed(0)
    return Predictor(MLPEncoder(3, (8,)), CountTable(3, memory=8, most=3), CLASSES, max_size=3)


def lines(report) -> list[str]:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(conformal_table(report))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_resampling_has_the_requested_coverage_and_reports_the_size(predictor):
    truth, others = rank_examples(predictor, vectors(200), score="probability", candidates=20, beam=8)
    few, many = (resample(truth, others, coverage) for coverage in (0.5, 0.9))
    for result, coverage in ((few, 0.5), (many, 0.9)):
        assert (result.resamplings, result.calibration, result.unbounded) == (200, 100, 0)
        assert coverage - 0.02 < result.coverage < coverage + 0.04
        assert result.coverage_range[0] <= result.coverage <= result.coverage_range[1]
        assert result.size_range[0] <= result.size <= result.size_range[1]
    assert 1 <= few.size < many.size <= 20
    assert resample(truth, others, 0.9) == many
    assert resample(truth, others, 0.9, seed=1) != many


def test_resampling_equal_scores_keeps_all_candidates():
    """With equal scores, every threshold is that score, so each set has both candidates and the truth."""
    result = resample(torch.full((40,), 2.0), torch.tensor([[1.0, 2.0, 3.0]]).repeat(40, 1), 0.9, resamplings=5)
    assert (result.coverage, result.size) == (1.0, 2.0)
    with pytest.raises(ValueError, match="at least 9 calibration examples, but there are 5"):
        resample(torch.zeros(10), torch.zeros(10, 2), 0.9)
    with pytest.raises(ValueError, match="resamplings must be at least 1"):
        resample(torch.zeros(40), torch.zeros(40, 2), 0.9, resamplings=0)


def test_sets_without_bound_are_reported():
    truth = torch.tensor([1.0, math.inf]).repeat(20)
    result = resample(truth, torch.tensor([[1.0, 2.0]]).repeat(40, 1), 0.9, resamplings=7)
    assert (result.unbounded, result.size, result.size_range, result.coverage) == (7, None, None, 1.0)


def test_the_report_has_the_calibration_of_the_model_and_fits_80_columns(predictor):
    calibration, test = vectors(80, seed=1), vectors(60, seed=2)
    uncalibrated = conformal_report(predictor, test, 0.8, resamplings=20)
    assert uncalibrated.stored is None
    Conformal.calibrate(predictor, calibration).store(predictor)
    progress = []
    report = conformal_report(predictor, test, 0.8, resamplings=20, watch=progress.append)
    assert sum(progress) == 60
    sets = Conformal.of(predictor).predict(predictor, test.batch(range(60)).x, 0.8)
    target = test.batch(range(60)).target
    hits = [bool((s[i] == t).all(-1).any()) for s, i, t in zip(sets.counts, sets.inside, target, strict=True)]
    assert report.stored.coverage == pytest.approx(sum(hits) / 60)
    assert report.stored.size == pytest.approx(float(sets.inside.sum(1).double().mean()))
    assert report.stored.examples == 80
    assert report.resampled == uncalibrated.resampled
    json.dumps(asdict(report), allow_nan=False)
    shown = lines(report)
    assert max(map(len, shown)) <= 80
    assert any(line.startswith("of the model") and f"{sum(hits) / 60:.3f}" in line for line in shown)
    assert any(line.startswith("20 resamplings") for line in shown)


def test_the_table_reports_sets_without_bound():
    resampled = Resampled(200, 30, 0.95, (0.9, 1.0), None, None, 3)
    shown = lines(ConformalReport(0.9, "probability", 32, None, resampled))
    assert max(map(len, shown)) <= 80
    assert "in 3 of them, too many true multisets are not among the 32 candidates" in " ".join(shown)


def test_a_calibration_that_does_not_reach_the_coverage_is_refused(predictor):
    Conformal.calibrate(predictor, vectors(80, seed=1), candidates=1).store(predictor)
    with pytest.raises(ValueError, match="out of reach"):
        conformal_report(predictor, vectors(60), 0.9)
