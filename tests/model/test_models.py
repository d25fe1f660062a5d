"""The included models and their cards."""

import re
from pathlib import Path

import pytest
import torch

from tools.ship_model import card as written
from torchmultiset import Predictor
from torchmultiset.model.inputs import input_kind, open_model
from torchmultiset.model.shipped import NAMES, locate

pytestmark = pytest.mark.slow


def test_models_of_the_three_variants_of_the_paper_are_included():
    assert {*NAMES} >= {"mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10"}


@pytest.mark.parametrize("name", NAMES)
def test_each_model_is_loaded_by_name_and_its_card_matches_its_record(name):
    predictor = Predictor.load(name)
    assert predictor.predict(torch.zeros(2, *input_kind(predictor).shape, dtype=torch.uint8)).shape == (2, 10)
    card = (locate(name) / "README.md").read_text()
    metrics = predictor.record["metrics"]["test"]
    (row,) = re.findall(r"^\| all \|.*$", card, flags=re.MULTILINE)
    assert f"| {metrics['overall']['exact_match']:.3f} (" in row
    assert row.endswith(f") | {metrics['overall']['f1']:.3f} | {metrics['class_f1']:.3f} |")
    assert "licence" in card
    assert re.search(r"`multiset train .*`", card)
    assert card == written(name, predictor)
    assert sum(path.stat().st_size for path in locate(name).iterdir()) < 1_000_000


def test_a_folder_takes_precedence_over_an_included_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(NAMES[0]).mkdir()
    assert locate(NAMES[0]) == Path(NAMES[0])
    with pytest.raises(FileNotFoundError, match=r"predictor\.json is missing"):
        open_model(NAMES[0])


def test_an_unknown_model_gets_a_hint():
    with pytest.raises(FileNotFoundError, match="did you mean mnist-multi-4"):
        open_model("mnist-multi4")
    with pytest.raises(FileNotFoundError, match=r"included models are .*mnist-multi-4"):
        Predictor.load("nowhere/at/all")
