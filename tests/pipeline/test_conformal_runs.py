"""`multiset train --conformal`: separate calibration examples, and sets with guaranteed coverage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmultiset.data.digits import load_digits
from torchmultiset.data.mnist_multi import MnistMulti, build
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.conformal import Conformal
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.candidates import candidates
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.run import train_run
from torchmultiset.training.config import OptimConfig


def write_table(path: Path, number: int) -> Path:
    """Write a table of noisy counts of two classes, with distinct rows."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, (number, 2))
    counts[:, 0] += counts.sum(1) == 0
    noisy = counts + rng.normal(0, 0.6, counts.shape)
    lines = [f"{a:.6f},{b:.6f},cat:{i};dog:{j}" for (a, b), (i, j) in zip(noisy, counts, strict=True)]
    path.write_text("\n".join(["a,b,labels", *lines]))
    return path


@pytest.fixture
def config(tmp_path) -> RunConfig:
    path = write_table(tmp_path / "pets.csv", 400)
    return RunConfig(
        DataConfig(str(path), conformal=True),
        ModelConfig(units=(16,)),
        ObjectiveConfig("counts"),
        OptimConfig(20, 32, lr=0.01),
    )


def test_a_fifth_of_the_training_examples_is_for_calibration_with_any_holdout(config):
    whole = {*prepare(replace(config, data=replace(config.data, conformal=False))).splits["train"].ids}
    first = prepare(config).splits
    assert len(first["calibration"]) == round(len(whole) / 5)
    assert {*first["calibration"].ids} | {*first["train"].ids} == whole
    for holdout in ("1/3", "2/3", "none"):
        splits = prepare(replace(config, data=replace(config.data, holdout=holdout))).splits
        assert {*splits["calibration"].ids} == {*first["calibration"].ids}
        assert {*splits["calibration"].ids}.isdisjoint({*splits["train"].ids, *splits["validation"].ids})


@pytest.mark.parametrize("changes", [{"conformal": True}, {"holdout": "2/3"}])
def test_held_out_images_are_not_trained_on_with_fresh_images(changes, tmp_path):
    digits = MnistMulti(sizes=(1, 2), digit_px=(12, 14), canvas=28, clutter=1, train=60, validation=8, test=8)
    build(tmp_path / "digits", digits, load_digits("bundled"), fresh="plain")
    task = prepare(RunConfig(DataConfig(str(tmp_path / "digits"), **changes), objective=ObjectiveConfig("counts")))
    held_out = task.splits["calibration" if "conformal" in changes else "validation"]
    kept = {image.tobytes() for image in held_out.inputs[np.arange(len(held_out))]}
    assert len(kept) == len(held_out) > 0
    for epoch in (0, 1):
        trained = task.fresh(epoch)
        assert len(trained) == len(task.splits["train"])
        assert kept.isdisjoint(image.tobytes() for image in trained.inputs[np.arange(len(trained))])


@pytest.mark.slow
def test_the_sets_of_a_run_have_the_requested_coverage(config, tmp_path, monkeypatch):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)  # no figures, which are slow
    train_run(config, tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run" / "model")
    conformal = Conformal.of(predictor)
    assert conformal is not None
    splits = prepare(config).splits
    assert len(conformal.scores) == len(splits["calibration"])
    # Scores of the calibration examples, computed from the probabilities of their labels.
    calibration = splits["calibration"].batch(np.arange(len(splits["calibration"])))
    expected = -predictor.log_probability(calibration.x, calibration.target).double()
    torch.testing.assert_close(
        torch.tensor(conformal.scores, dtype=torch.float64), expected.sort().values, rtol=1e-4, atol=1e-4
    )
    fresh = prepare(
        replace(config, data=DataConfig(str(write_table(tmp_path / "more.csv", 3000)), fractions=(0.02, 0.02, 0.96)))
    ).splits["test"]
    batch = fresh.batch(np.arange(len(fresh)))
    for coverage in (0.6, 0.9):
        sets = conformal.predict(predictor, batch.x, coverage)
        hit = ((sets.counts == batch.target[:, None]).all(-1) & sets.inside).any(1).double().mean()
        assert coverage - 0.12 < hit <= 1  # the standard deviation with 55 calibration examples is 0.065 at 0.6


def test_too_few_examples_and_models_without_probabilities_are_refused(config, tmp_path):
    few = replace(config, data=replace(config.data, data=str(write_table(tmp_path / "few.csv", 40))))
    with pytest.raises(ValueError, match=r"conformal sets a fifth of them aside: for a coverage of 0\.9 at least 45"):
        prepare(few)
    with pytest.raises(ValueError, match="conformal needs probabilities"):
        train_run(replace(config, objective=ObjectiveConfig("ridge")), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_no_candidate_without_probabilities_is_tried(config):
    names = [one.name for one in candidates(prepare(replace(config, objective=ObjectiveConfig())))]
    assert "ridge" not in names
    assert names
