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


def made(n: int = 400, *, honest: bool = True):
    """Predictions that are right as often as they say, or always as if by a coin."""
    draw = random.Random(0)
    confidence = [round(draw.random(), 2) for _ in range(n)]
    right = [draw.random() < (p if honest else 0.5) for p in confidence]
    return confidence, right


def told(confidence, right, **options):
    return calibrate(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right), **options)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_the_error_is_that_of_its_definition(bins):
    confidence, right = made()
    expected = 0.0
    for i in range(bins):
        inside = [j for j, p in enumerate(confidence) if i < p * bins <= i + 1 or p == i == 0]
        if inside:
            sure, hits = sum(confidence[j] for j in inside), sum(right[j] for j in inside)
            expected += abs(sure - hits) / len(confidence)
    shown = told(confidence, right, bins=bins)
    assert shown.error == pytest.approx(expected)
    assert sum(part.examples for part in shown.bins) == 400
    for part in shown.bins:
        assert part.low <= part.confidence <= part.high
        assert part.interval[0] <= part.exact_match <= part.interval[1]
    assert shown.exact_match == pytest.approx(sum(right) / 400)
    assert shown.confidence == pytest.approx(sum(confidence) / 400)


def test_honest_confidence_has_a_small_error_and_is_good_for_abstaining():
    honest, coin = told(*made(4000)), told(*made(4000, honest=False))
    assert honest.error < 0.05 < 0.2 < coin.error
    assert honest.area < 0.35 < 0.45 < coin.area
    assert honest.answered[-1].exact_match > 0.9


def test_risk_is_that_of_the_surest_and_ties_are_answered_together():
    confidence, right = made(60)
    shown = told(confidence, right)
    thresholds = sorted({*confidence}, reverse=True)
    assert len(thresholds) == len(shown.curve) < 60
    area = before = 0.0
    for threshold, (coverage, risk) in zip(thresholds, shown.curve, strict=True):
        answers = [hit for p, hit in zip(confidence, right, strict=True) if p >= threshold]
        assert coverage == pytest.approx(len(answers) / 60)
        assert risk == pytest.approx(1 - sum(answers) / len(answers))
        area += risk * (coverage - before)
        before = coverage
    assert shown.area == pytest.approx(area)
    for part in shown.answered:
        answers = [hit for p, hit in zip(confidence, right, strict=True) if p >= part.min_confidence]
        assert (part.examples, part.coverage) == (len(answers), pytest.approx(len(answers) / 60))
        assert part.exact_match == (pytest.approx(sum(answers) / len(answers)) if answers else None)


def test_a_long_curve_is_thinned_out_but_keeps_its_ends():
    draw = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shown = calibrate(draw, draw > 0.5)
    assert len(shown.curve) == 100
    assert shown.curve[0] == (pytest.approx(1 / 5000), 0.0)
    assert shown.curve[-1] == (1.0, pytest.approx(1 - shown.exact_match))


def test_one_example_and_one_confidence():
    shown = told([1.0], [True])
    assert (shown.error, shown.area, shown.curve) == (0.0, 0.0, [(1.0, 0.0)])
    shown = told([0.0, 0.0], [True, False])
    assert (shown.error, shown.area, len(shown.bins)) == (0.5, 0.5, 1)
    assert shown.answered[1].exact_match is None
    json.dumps(asdict(shown), allow_nan=False)
    draw_calibration(shown)


def test_json_and_tables_say_the_same():
    shown = told(*made())
    plain = json.loads(json.dumps(asdict(shown), allow_nan=False))
    assert plain["error"] == shown.error
    assert plain["bins"][3]["exact_match"] == shown.bins[3].exact_match
    assert plain["answered"][2]["min_confidence"] == 0.6
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        for table in calibration_tables(shown):
            console.print(table)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert f"expected calibration error {shown.error:.3f}" in text
    (row,) = (line.split() for line in lines if line.startswith("0.30-0.40"))
    part = shown.bins[3]
    assert row[1:4] == [str(part.examples), f"{part.confidence:.3f}", f"{part.exact_match:.3f}"]
    (row,) = (line.split() for line in lines if line.startswith("0.95"))
    assert row[1] == str(shown.answered[6].examples)


def test_the_picture_has_both_plots(tmp_path):
    shown = told(*made())
    reliability, risk = draw_calibration(shown).axes
    (points,) = (line for line in reliability.lines if line.get_marker() == "o")
    assert [*points.get_ydata()] == [part.exact_match for part in shown.bins]
    assert [*map(tuple, risk.lines[0].get_xydata().tolist())] == shown.curve
    save_calibration(shown, tmp_path / "deep" / "c.png")
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
    sure = log_probabilities(predictor, examples, counts, batch_size=4, watch=watched.append)
    assert watched == [4, 4, 3]
    torch.testing.assert_close(sure, predictor.log_probability(x, counts, beam=8))


@pytest.mark.parametrize(
    ("confidence", "right", "message"),
    [
        ([], [], "at least one example"),
        ([0.5, 1.5], [True, True], "confidence must be from 0 to 1"),
        ([0.5, float("nan")], [True, True], "confidence must be from 0 to 1"),
        ([0.5, 0.5], [True], "right must be of shape"),
    ],
)
def test_wrong_input_is_refused(confidence, right, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        calibrate(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right, dtype=torch.bool))
