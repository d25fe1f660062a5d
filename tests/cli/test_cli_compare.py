"""`multiset compare`, which scores several models on the same examples."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Run, runner

from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import CountTable
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy

pytestmark = pytest.mark.slow

CLASSES = ("ant", "bee", "cat")
RECORD = {"input": {"shape": [4], "dtype": "float32", "exif": False}}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Run:
    """Two models and a table; the labels are the second model's predictions in every fifth row, else the first's."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    teacher = Predictor(MLPEncoder(4, (8,)), FeedForwardPolicy(3, 8, hidden=16), CLASSES, max_size=2)
    other = Predictor(MLPEncoder(4, (8,)), CountTable(3, 8, most=2), CLASSES, max_size=2)
    teacher.save("teacher", record=RECORD | {"config": {"objective": "multi"}})
    other.save("other", record=RECORD)
    Predictor(MLPEncoder(4, (8,)), CountTable(2, 8, most=2), CLASSES[:2], max_size=2).save("fewer", record=RECORD)
    inputs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) * 3
    x = torch.from_numpy(inputs)
    truths = [
        theirs if i % 5 == 0 else ours
        for i, (ours, theirs) in enumerate(zip(teacher.predict_labels(x), other.predict_labels(x), strict=True))
    ]
    rows = [",".join([*map(repr, map(float, row)), ";".join(y), "test"]) for row, y in zip(inputs, truths, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,d,labels,split", *rows]))
    return runner(capsys, monkeypatch)


def right(name: str) -> list[bool]:
    rows = [line.split(",") for line in Path("data.csv").read_text().splitlines()[1:]]
    x = torch.tensor([[float(value) for value in row[:4]] for row in rows])
    predicted = Predictor.load(name).predict_labels(x)
    return [
        sorted(ours) == sorted(row[4].split(";") if row[4] else []) for ours, row in zip(predicted, rows, strict=True)
    ]


def test_scores_of_each_model_and_differences_between_them(run):
    code, lines, err = run("compare", "data.csv", "teacher", "other", "--number", "3")
    assert (code, err) == (0, "")
    ours, theirs = right("teacher"), right("other")
    table = [line for line in lines if "-0." in line or "-1." in line]  # with an interval
    assert [line.split()[:3] for line in table] == [
        ["teacher", "multi", f"{sum(ours) / 40:.3f}"],
        ["other", "-", f"{sum(theirs) / 40:.3f}"],
    ]
    wins, losses = (sum(a and not b for a, b in zip(*pair, strict=True)) for pair in ((ours, theirs), (theirs, ours)))
    assert any(line.startswith("teacher is significantly better than other (paired test, p = ") for line in lines)
    only = "of the examples that only one of them predicts correctly"
    assert f"  {only}, it has {wins} and the other {losses}." in lines
    differ = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b][:3]
    shown = [line for line in lines if "✓" in line]
    assert [int(line.split()[0]) for line in shown] == differ
    assert all("✗" in line for line in shown)


def test_json_has_the_paired_test(run):
    code, lines, _ = run("compare", "data.csv", "other", "teacher", "--json")
    assert code == 0
    result = json.loads("\n".join(lines))
    assert [one["model"] for one in result["models"]] == ["other", "teacher"]
    assert result["best"] == "teacher"
    (test,) = result["against"]
    assert test["model"] == "other"
    n, k = test["only_best_right"] + test["only_other_right"], test["only_other_right"]
    assert test["p"] == pytest.approx(2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)  # McNemar's


def test_a_model_does_not_differ_from_itself(run):
    code, lines, _ = run("compare", "data.csv", "teacher", "teacher")
    assert code == 0
    assert any("not significantly better" in line for line in lines)
    assert not any("✓" in line for line in lines)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("data.csv teacher", "comparing needs at least two models"),
        ("data.csv teacher nowhere", "nowhere"),
        ("data.csv teacher other --split train", "data.csv has no train examples: choose test"),
        ("data.csv teacher fewer", "fewer and teacher have different classes"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(run, command, message):
    code, _, err = run("compare", *command.split())
    assert code != 0
    assert message in err
    assert "Traceback" not in err
