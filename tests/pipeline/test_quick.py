"""`torchmultiset.train`, which trains a model on a file in one call."""

from __future__ import annotations

import pytest
from pet_table import FAST, write_pets

import torchmultiset
from torchmultiset.pipeline.candidates import Candidate
from torchmultiset.pipeline.quick import run_folder

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_returns_a_model_that_predicts(here, capsys):
    write_pets(here)
    model = torchmultiset.train("pets.csv", minutes=0, **FAST)
    assert isinstance(model, torchmultiset.Predictor)
    assert (here / "runs" / "pets" / "run.json").is_file()
    assert "exact match" in capsys.readouterr().out
    answer = model.predict({"a": 1.0, "b": 0.0, "c": 2.0})
    assert set(answer) <= {"cat", "dog", "fox"}
    again = torchmultiset.train("pets.csv", minutes=0, resume=True, **FAST)
    assert again.predict({"a": 1.0, "b": 0.0, "c": 2.0}) == answer
    with pytest.raises(FileExistsError, match=r"resume=True.*out=\.\.\."):
        torchmultiset.train("pets.csv", minutes=0, **FAST)


def test_with_a_budget_models_are_compared(here, monkeypatch, capsys):
    pets = write_pets(here, examples=1_200)  # enough examples to do without cross-validation
    few = [Candidate("ridge", {"objective": "ridge"}, "regression")]
    monkeypatch.setattr("torchmultiset.pipeline.auto.candidates", lambda _: few)
    model = torchmultiset.train(pets, minutes=1, out=here / "kept")
    out = capsys.readouterr().out
    assert "Winner: ridge" in out
    assert "majority" in out
    assert model.predict(pets)[0].total() >= 0
    assert (here / "kept" / "leaderboard.json").is_file()


@pytest.mark.usefixtures("figures_of_runs")
def test_ridge_regression_has_no_epochs_and_no_curve(here, capsys):
    torchmultiset.train(write_pets(here), objective="ridge", holdout="none")
    out = capsys.readouterr().out
    assert "with ridge, in closed form" in out
    assert " train and validation, " in out  # each counted once
    assert "epoch" not in out
    assert not (here / "runs" / "pets" / "curve.png").exists()
    assert (here / "runs" / "pets" / "predictions.png").exists()


def test_invalid_arguments_are_refused_before_training(here):
    pets = write_pets(here)
    with pytest.raises(ValueError, match="there is no setting epoch: see `multiset train --help-all`"):
        torchmultiset.train(pets, epoch=3)
    with pytest.raises(ValueError, match="minutes must be a number of at least 0, but is -1"):
        torchmultiset.train(pets, minutes=-1)
    with pytest.raises(ValueError, match="minutes is the budget for comparing models"):
        torchmultiset.train(pets, minutes=3, objective="counts")
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        torchmultiset.train("no.csv")
    assert not (here / "runs").exists()


def test_the_default_folder_has_the_name_of_the_data(here):
    assert run_folder(here / "photos" / "labels.csv") == run_folder(here / "photos") == run_folder("x/photos.jsonl")
