"""Ridge regression, which is trained in closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tiny_problem import MOST, C, draw

from torchmultiset.data import Examples
from torchmultiset.model.build import build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.predictor import Predictor
from torchmultiset.training.solve import solve


def examples(n: int, seed: int) -> Examples:
    batch = draw(n, seed)
    return Examples(batch.x.numpy(), batch.labels.numpy(), tuple("abcd"))


def ridge(shape: tuple[int, ...] = (16,)) -> Predictor:
    return build_predictor(
        ModelConfig(), ObjectiveConfig("ridge"), shape=shape, classes=list("abcd"), max_size=MOST, stop="policy"
    )


def test_a_linear_problem_is_solved_and_the_model_saved(tmp_path):
    predictor = ridge()
    progress = solve(predictor, examples(200, 1), examples(50, 2), tmp_path)
    fresh = draw(300, 3)
    counts = predictor.predict(fresh.x)
    assert (counts == fresh.target).all(1).double().mean() > 0.99
    kept = Predictor.load(tmp_path / "best")
    assert torch.equal(kept.predict(fresh.x), counts)
    (line,) = (json.loads(text) for text in (tmp_path / "epochs.jsonl").read_text().splitlines())
    assert progress.history == [line]
    assert kept.record["validation_em"] == line["validation_em"] > 0.99


def test_predictions_equal_those_of_least_squares_without_noise(tmp_path):
    train = examples(60, 1)
    predictor = ridge()
    solve(predictor, train, train, tmp_path)
    x, y = np.asarray(train.inputs, dtype=np.float64), train.counts.astype(np.float64)
    exact = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]  # no noise, so a small penalty
    with predictor.evaluating(), torch.no_grad():
        fitted = predictor.scores(torch.from_numpy(x).float()).squeeze(-1).numpy()
    np.testing.assert_allclose(fitted, np.c_[x, np.ones(len(x))] @ exact, atol=0.05)
    assert fitted.shape == (60, C)


def test_images_without_a_backbone_are_refused():
    with pytest.raises(ValueError, match="objective must be another one for images without a frozen backbone"):
        ridge((3, 32, 32))


def test_another_head_is_refused(tmp_path):
    other = build_predictor(
        ModelConfig(), ObjectiveConfig("counts"), shape=(16,), classes=list("abcd"), max_size=MOST, stop="policy"
    )
    with pytest.raises(ValueError, match="one with the head RidgeCounts"):
        solve(other, examples(5, 1), examples(5, 2), tmp_path)
