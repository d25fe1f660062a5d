from __future__ import annotations

import json
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from torchmultiset.data import Examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy
from torchmultiset.viz.calibration import calibrate, calibration_tables, log_probabilities
from torchmultiset.viz.calibration_figure import draw_calibration, save_calibration


def draw_predictions(n: int = 400, *, calibrated: bool = True):
    """Confidences, and whether each prediction is right: with that probability, or else with probability 1/2."""
    draw = random.Random(0)
    confidence = [round(draw.random(), 2) for _ in range(n)]
    right = [draw.random() < (p if calibrated else 0.5) for p in confidence]
    return confidence, right


def calibration_of(confidence, right, **options):
    return calibrate(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right), **options)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_the_calibration_error_equals_its_definition(bins):
    confidence, right = draw_predictions()
    expected = 0.0
    for i in range(bins):
        inside = [j for j, p in enumerate(confidence) if i < p * bins <= i + 1 or p == i == 0]
        if inside:
            total, hits = sum(confidence[j] for j in inside), sum(right[j] for j in inside)
            expected += abs(total - hits) / len(confidence)
    result = calibration_of(confidence, right, bins=bins)
    assert result.error == pytest.approx(expected)
    assert sum(part.examples for part in result.bins) == 400
    for part in result.bins:
        assert part.low <= part.confidence <= part.high
        assert part.interval[0] <= part.exact_match <= part.interval[1]
    assert result.exact_match == pytest.approx(sum(right) / 400)
    assert result.confidence == pytest.approx(sum(confidence) / 400)


def test_calibrated_confidences_have_a_small_error_and_a_small_risk():
    calibrated, random_hits = (
        calibration_of(*draw_predictions(4000)),
        calibration_of(*draw_predictions(4000, calibrated=False)),
    )
    assert calibrated.error < 0.05 < 0.2 < random_hits.error
    assert calibrated.area < 0.35 < 0.45 < random_hits.area
    assert calibrated.answered[-1].exact_match > 0.9


def test_the_risk_curve_equals_its_definition_with_ties():
    confidence, right = draw_predictions(60)
    result = calibration_of(confidence, right)
    thresholds = sorted({*confidence}, reverse=True)
    assert len(thresholds) == len(result.curve) < 60
    area = before = 0.0
    for threshold, (coverage, risk) in zip(thresholds, result.curve, strict=True):
        answers = [hit for p, hit in zip(confidence, right, strict=True) if p >= threshold]
        assert coverage == pytest.approx(len(answers) / 60)
        assert risk == pytest.approx(1 - sum(answers) / len(answers))
        area += risk * (coverage - before)
        before = coverage
    assert result.area == pytest.approx(area)
    for part in result.answered:
        answers = [hit for p, hit in zip(confidence, right, strict=True) if p >= part.min_confidence]
        assert (part.examples, part.coverage) == (len(answers), pytest.approx(len(answers) / 60))
        assert part.exact_match == (pytest.approx(sum(answers) / len(answers)) if answers else None)


def test_a_long_curve_is_thinned_but_keeps_its_ends():
    draw = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = calibrate(draw, draw > 0.5)
    assert len(result.curve) == 100
    assert result.curve[0] == (pytest.approx(1 / 5000), 0.0)
    assert result.curve[-1] == (1.0, pytest.approx(1 - result.exact_match))


def test_a_single_example_and_a_single_confidence_are_supported():
    result = calibration_of([1.0], [True])
    assert (result.error, result.area, result.curve) == (0.0, 0.0, [(1.0, 0.0)])
    result = calibration_of([0.0, 0.0], [True, False])
    assert (result.error, result.area, len(result.bins)) == (0.5, 0.5, 1)
    assert result.answered[1].exact_match is None
    json.dumps(asdict(result), allow_nan=False)
    draw_calibration(result)


def test_json_and_tables_have_the_same_content():
    result = calibration_of(*draw_predictions())
    plain = json.loads(json.dumps(asdict(result), allow_nan=False))
    assert plain["error"] == result.error
    assert plain["bins"][3]["exact_match"] == result.bins[3].exact_match
    assert plain["answered"][2]["min_confidence"] == 0.6
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        for table in calibration_tables(result):
            console.print(table)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert f"expected calibration error {result.error:.3f}" in text
    (row,) = (line.split() for line in lines if line.startswith("0.30-0.40"))
    part = result.bins[3]
    assert row[1:4] == [str(part.examples), f"{part.confidence:.3f}", f"{part.exact_match:.3f}"]
    (row,) = (line.split() for line in lines if line.startswith("0.95"))
    assert row[1] == str(result.answered[6].examples)


def test_the_figure_has_both_plots(tmp_path):
    result = calibration_of(*draw_predictions())
    reliability, risk = draw_calibration(result).axes
    (points,) = (line for line in reliability.lines if line.get_marker() == "o")
    assert [*points.get_ydata()] == [part.exact_match for part in result.bins]
    assert [*map(tuple, risk.lines[0].get_xydata().tolist())] == result.curve
    save_calibration(result, tmp_path / "deep" / "c.png")
    with Image.open(tmp_path / "deep" / "c.png") as picture:
        assert picture.size == (1200, 570)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["c.png"]


def test_log_probabilities_are_the_probabilities_of_the_predictions():
    torch.manual_seed(0)
    predictor = Predictor(nn.Identity(), FeedForwardPolicy(3, 4, hidden=8), ["a", "b", "c"], max_size=2)
    inputs = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
    examples = Examples(inputs, np.zeros((11, 1), np.int64), ("a", "b", "c"))
    x = torch.from_numpy(inputs)
    counts, watched = predictor.predict(x), []
    values = log_probabilities(predictor, examples, counts, batch_size=4, watch=watched.append)
    assert watched == [4, 4, 3]
    torch.testing.assert_close(values, predictor.log_probability(x, counts, beam=8))


@pytest.mark.parametrize(
    ("confidence", "right", "message"),
    [
        ([], [], "at least one example"),
        ([0.5, 1.5], [True, True], "confidence must be from 0 to 1"),
        ([0.5, float("nan")], [True, True], "confidence must be from 0 to 1"),
        ([0.5, 0.5], [True], "right must be of shape"),
    ],
)
def test_invalid_input_is_refused(confidence, right, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        calibrate(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right, dtype=torch.bool))
