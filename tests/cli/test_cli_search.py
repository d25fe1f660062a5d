"""`multiset predict --best`, `--min-confidence`, and calibration in `multiset evaluate`."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from command_line import Run, cells, runner
from PIL import Image

from torchmultiset._install import pip_install
from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import OneStep
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy, LSTMPolicy

pytestmark = pytest.mark.slow

CLASSES = ("ant", "bee", "cat")
INPUT = {"input": {"shape": [4], "dtype": "float32", "exif": False}}


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


def model(policy) -> Predictor:
    predictor = Predictor(MLPEncoder(4, (8,)), policy, CLASSES, max_size=3)
    with torch.no_grad():
        policy.classifier.weight *= 6
        if getattr(predictor, "stop_head", None) is not None:
            predictor.stop_head.linear.bias -= 1
    return predictor.eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models with random weights, and a table in which every second row has the first model's prediction as labels."""
    folder = tmp_path_factory.mktemp("place")
    torch.manual_seed(1)
    model(FeedForwardPolicy(3, 8, hidden=16)).save(folder / "model", record=INPUT)
    model(LSTMPolicy(3, 8, hidden=16)).save(folder / "lstm", record=INPUT)
    model(OneStep(3, 8)).save(folder / "one-step", record=INPUT)
    inputs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) * 2
    np.save(folder / "inputs.npy", inputs)
    predicted = Predictor.load(folder / "model").predict_labels(torch.from_numpy(inputs))
    rows = [
        ",".join([*map(repr, map(float, row)), ";".join(labels if i % 2 else ["ant"]), "test"])
        for i, (row, labels) in enumerate(zip(inputs, predicted, strict=True))
    ]
    (folder / "data.csv").write_text("\n".join(["a,b,c,d,labels,split", *rows]))
    return folder


@pytest.fixture
def cwd(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def predictor(cwd):
    return Predictor.load(cwd / "model")


@pytest.fixture
def x(cwd):
    return torch.from_numpy(np.load(cwd / "inputs.npy"))


def json_lines(result) -> list[dict]:
    code, lines, err = result
    assert (code, err) == (0, "")
    return [json.loads(line) for line in lines]


def by_name(counts) -> dict[str, int]:
    return {name: n for name, n in zip(CLASSES, counts.tolist(), strict=True) if n}


# Predict


def test_confidence_is_the_probability_of_the_multiset(run, predictor, x):
    rows = json_lines(run("predict", "model", "inputs.npy", "--json"))
    counts = predictor.predict(x)
    assert [row["labels"] for row in rows] == [by_name(row) for row in counts]
    expected = predictor.log_probability(x, counts, beam=8).exp().tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(expected, rel=1e-5)
    assert {*rows[0]} == {"input", "labels", "sequence", "confidence"}
    sequences = predictor.explain(x).sequence.tolist()
    assert [row["sequence"] for row in rows] == [[CLASSES[label] for label in row if label >= 0] for row in sequences]


def test_the_best_multisets_come_with_their_probabilities(run, predictor, x):
    rows = json_lines(run("predict", "model", "inputs.npy", "--json", "--best", 3))
    counts, log_probability = predictor.search(x, k=3, beam=8)
    for row, multisets, logs in zip(rows, counts, log_probability.tolist(), strict=True):
        assert [part["labels"] for part in row["best"]] == [by_name(multiset) for multiset in multisets]
        assert [part["probability"] for part in row["best"]] == pytest.approx([math.exp(p) for p in logs], rel=1e-5)
        assert row["labels"] == row["best"][0]["labels"]
        assert row["confidence"] == pytest.approx(row["best"][0]["probability"], rel=1e-12)
    greedy = json_lines(run("predict", "model", "inputs.npy", "--json"))
    other = [i for i in range(len(rows)) if rows[i]["labels"] != greedy[i]["labels"]]
    assert other, "no prediction differs from the greedy one"
    # A sequence is reported only if its labels were emitted in that order.
    assert [i for i in range(len(rows)) if rows[i]["sequence"] is None] == other
    assert all(rows[i]["confidence"] > greedy[i]["confidence"] for i in other)


def test_no_more_multisets_are_returned_than_exist(run, cwd):
    (row, *_) = json_lines(run("predict", "model", "inputs.npy", "--json", "--best", 99, "--beam", 50, "--number", 1))
    assert len(row["best"]) == 1 + 3 + 6 + 10
    assert sum(part["probability"] for part in row["best"]) == pytest.approx(1)


def test_abstained_predictions_are_shown_as_such(run, cwd):
    plain = json_lines(run("predict", "model", "data.csv", "--json"))
    limit = sorted(row["confidence"] for row in plain)[15]
    rows = json_lines(run("predict", "model", "data.csv", "--json", "--min-confidence", limit))
    assert sum(row["abstained"] for row in rows) == 15
    for row, before in zip(rows, plain, strict=True):
        assert row["abstained"] == (before["confidence"] < limit)
        assert (row["confidence"], row["truth"]) == (before["confidence"], before["truth"])
        if row["abstained"]:
            assert (row["labels"], row["sequence"], row["right"]) == (None, None, None)
        else:
            assert row == before | {"abstained": False}
    code, lines, err = run("predict", "model", "data.csv", "--min-confidence", limit)
    assert (code, err) == (0, "")
    assert sum("(abstained)" in line for line in lines) == 15
    right = sum(row["right"] is True for row in rows)
    assert lines[-1] == f"Abstained below confidence {limit:g}: 15 of 40. Of the other 25, {right} are correct."
    assert max(map(len, lines)) <= 80


def test_the_command_and_python_abstain_from_the_same_inputs(run, predictor, x):
    below, above = sorted(predictor.explain(x).confidence.tolist())[14:16]
    limit = (below + above) / 2
    rows = json_lines(run("predict", "model", "inputs.npy", "--json", "--min-confidence", limit))
    accepted = [not row["abstained"] for row in rows]
    assert sum(accepted) == 25
    assert predictor.explain(x).accepted(limit).tolist() == accepted
    assert [answer.proba >= limit for answer in predictor.predict("inputs.npy")] == accepted


def test_the_table_lists_the_most_probable_multisets(run, cwd):
    rows = json_lines(run("predict", "model", "inputs.npy", "--json", "--best", 2, "--number", 4))
    code, lines, _ = run("predict", "model", "inputs.npy", "--best", 2, "--number", 4)
    assert code == 0
    shown = [line for line in lines[2:] if line]
    assert len(shown) == 8
    assert [float(line.split()[-1]) for line in shown] == [
        pytest.approx(part["probability"], abs=0.0051) for row in rows for part in row["best"]
    ]
    _, lines, _ = run("predict", "model", "inputs.npy", "--best", 2, "--number", 4, "--min-confidence", 1)
    assert len([line for line in lines[2:-2] if line]) == 12
    assert lines[-1] == "Abstained below confidence 1: 4 of 4."


def test_recurrent_models_are_searched(run, cwd):
    rows = json_lines(run("predict", "lstm", "inputs.npy", "--json", "--best", 5))
    assert all(len(row["best"]) == 5 for row in rows)
    assert all(0 < part["probability"] <= 1 for row in rows for part in row["best"])


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("predict one-step inputs.npy --best 2", 1, "use a model other than OneStep, which has none"),
        ("predict one-step inputs.npy --min-confidence 0.5", 1, "--min-confidence needs probabilities"),
        ("predict model inputs.npy --best 0", 2, "Must be >= 1"),
        ("predict model inputs.npy --min-confidence 1.5", 2, "Must be <= 1"),
        ("evaluate one-step data.csv --figure c.png", 1, "--figure needs probabilities of multisets"),
        ("evaluate model data.csv --figure c.png --no-calibration", 1, "remove --no-calibration"),
        ("evaluate model data.csv --figure c.jpg", 2, 'must have extension "png"'),
        ("evaluate one-step data.csv --entropy c.png", 1, "--entropy needs a model with a policy"),
        ("evaluate model data.csv --entropy c.jpg", 2, 'must have extension "png"'),
    ],
)
def test_impossible_settings_are_refused_before_training(run, cwd, command, code, message):
    ended, lines, err = run(*command.split())
    assert (ended, lines) == (code, [])
    assert message in err
    assert not (cwd / "c.png").exists()


# Evaluate


@pytest.mark.parametrize("name", ["model", "lstm"])
def test_evaluate_reports_confidence_and_accuracy(run, cwd, name, tmp_path):
    rows = json_lines(run("predict", name, "data.csv", "--json"))
    code, lines, err = run("evaluate", name, "data.csv", "--json", "--figure", tmp_path / "c.png")
    assert (code, err) == (0, "")
    calibration = json.loads("\n".join(lines))["calibration"]
    assert calibration["examples"] == 40
    assert calibration["confidence"] == pytest.approx(sum(row["confidence"] for row in rows) / 40, rel=1e-5)
    assert calibration["exact_match"] == pytest.approx(sum(row["right"] for row in rows) / 40)
    for part in calibration["answered"]:
        kept = [row["right"] for row in rows if row["confidence"] >= part["min_confidence"]]
        assert part["examples"] == len(kept)
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size == (1200, 570)
    _, shown, _ = run("evaluate", name, "data.csv")
    assert max(map(len, shown)) <= 80
    assert cells(shown, "all")[0] == "40"
    assert any("Abstention" in line for line in shown)


@pytest.mark.parametrize("command", ["one-step data.csv", "model data.csv --no-calibration"])
def test_calibration_is_omitted_without_probabilities_or_on_request(run, cwd, command):
    code, lines, _ = run("evaluate", *command.split(), "--json")
    assert code == 0
    assert "calibration" not in json.loads("\n".join(lines))
    code, lines, _ = run("evaluate", *command.split())
    assert code == 0
    assert not any("Abstention" in line for line in lines)


def test_evaluate_draws_the_entropy_at_each_step(run, cwd, tmp_path):
    figure = tmp_path / "deep" / "entropy.png"
    command = ("evaluate", "lstm", "data.csv", "--no-calibration", "--entropy", figure)
    entropy = json.loads("\n".join(run(*command, "--json")[1]))["entropy"]
    rows = json_lines(run("predict", "lstm", "data.csv", "--split", "test", "--json"))
    lengths = [len(row["sequence"]) for row in rows]
    assert entropy["policy"]["examples"] == [sum(length > t for length in lengths) for t in range(max(lengths))]
    sizes = [sum(row["truth"].values()) for row in rows]
    assert entropy["oracle"]["instances"]["mean"][0] == pytest.approx(sum(map(math.log, sizes)) / len(sizes), rel=1e-5)
    with Image.open(figure) as picture:
        assert picture.size == (750, 570)
    assert run(*command)[1][-1] == f"{figure} shows the entropy of the policy and of the oracle at each step."


@pytest.mark.parametrize(("flag", "module"), [("--figure", "calibration_figure"), ("--entropy", "entropy_figure")])
def test_without_matplotlib_only_drawing_fails(run, cwd, monkeypatch, flag, module):
    monkeypatch.delitem(sys.modules, f"torchmultiset.viz.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    assert run("evaluate", "model", "data.csv")[0] == 0
    code, lines, err = run("evaluate", "model", "data.csv", flag, "c.png")
    assert (code, lines) == (1, [])
    assert err == f"multiset: Figures need matplotlib, which is not installed: {pip_install('report')}\n"
