from __future__ import annotations

from dataclasses import asdict

from torchmultiset.data._columns import Column
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import LSTMPolicy
from torchmultiset.viz.card import model_card

SCORES = {"examples": 4, "exact_match": 0.5, "f1": 0.6, "interval": (0.2, 0.8)}
RECORD = {
    "data": {"name": "t.csv", "sha256": "0" * 64},
    "examples": {"train": 8, "test": 4},
    "command": "multiset train t.csv",
    "seed": 0,
    "best_epoch": 3,
    "validation_em": 0.5,
    "parameters": 100,
    "minutes": 1.0,
    "processes": 1,
    "device": "cpu",
    "test": {"sizes": {}, "overall": SCORES, "class_f1": 0.7},
}


def test_a_model_of_a_table_is_described_by_its_columns():
    predictor = Predictor(MLPEncoder(3, (4,)), LSTMPolicy(2, 4, hidden=4), ("a", "b"), max_size=2)
    columns = [asdict(Column("colour", categories=("blue", "red"))), asdict(Column("metres"))]
    predictor.record = {"input": {"shape": [3], "dtype": "float32", "exif": True}, "columns": columns}
    predictor.record["config"] = {"objective": "multi"}
    card = model_card("t", RECORD, predictor)
    assert "Predicts multisets of labels from tables with the columns colour, metres: " in card
    assert "| all | 4 | 0.500 (0.200 to 0.800) | 0.600 | 0.700 |" in card
