"""Text, sets and sequences from a file to predictions, a figure and an ONNX file, by the command line."""

from __future__ import annotations

import csv
import json
import random
import re

import numpy as np
import pytest
from command_line import runner

from torchmultiset import Predictor

pytestmark = pytest.mark.slow


@pytest.fixture
def multiset(capsys, monkeypatch):
    run = runner(capsys, monkeypatch)

    def told(*tokens: object) -> str:
        code, lines, error = run(*tokens)
        assert code == 0, error
        return " ".join(" ".join([*lines, error]).split()) if "--json" not in tokens else "\n".join(lines)

    return told


SYLLABLES = {"meth": "C", "ox": "O", "ammo": "N"}


def write_names(path, number=120):
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "phase", "grams", "labels"])
        for i in range(number):
            parts = [rng.choice([*SYLLABLES]) for _ in range(rng.randint(1, 3))]
            labels = [SYLLABLES[part] for part in parts] + ["solid"] * (i % 2)
            writer.writerow([f"{'-'.join(parts)} {i}", "gas" if i % 2 == 0 else "solid", i, ";".join(labels)])
    return path


def write_events(path, key="features", number=120):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(number):
        kinds = rng.integers(0, 3, size=2)
        rows = [[3.0 * kind + rng.normal(0, 0.1), rng.normal()] for kind in range(2) for _ in range(kinds[kind])]
        rng.shuffle(rows)
        value = [[0.0, 9.0], *rows]  # a line of features must not be empty
        lines.append(json.dumps({key: value, "labels": {"low": int(kinds[0]), "high": int(kinds[1])}}))
    path.write_text("\n".join(lines))
    return path


def test_a_table_with_text_numbers_and_categories(tmp_path, multiset):
    data, run = write_names(tmp_path / "names.csv"), tmp_path / "run"
    told = multiset("train", data, "--objective", "counts", "--epochs", "12", "--out", run)
    assert re.search(r"text: 'name' \(\d+ different strings\)", told)
    assert "categories: 2 (gas, solid) ('phase' holds text)" in told
    assert "encoder: text (inputs are text)" in told
    assert (run / "predictions.png").exists()
    figure = tmp_path / "figure.png"
    rows = multiset("predict", run, data, "--number", "3", "--json", "--figure", figure).splitlines()
    assert len(rows) == 3
    assert figure.stat().st_size > 1000
    multiset("evaluate", run, data, "--split", "test")
    assert "agrees with PyTorch on all" in multiset("export", run, "--out", tmp_path / "model.onnx", "--data", data)
    predictor = Predictor.load(run)
    again = predictor.predict([{"name": "meth-ox 1", "phase": "gas", "grams": 3}])
    assert again[0].total() >= 1


@pytest.mark.parametrize("key", ["features", "set", "sequence"])
def test_vectors_of_different_number(tmp_path, multiset, key):
    data, run = write_events(tmp_path / "events.jsonl", key), tmp_path / "run"
    told = multiset("train", data, "--objective", "multi", "--epochs", "2", "--out", run)
    assert ("inputs: sets or sequences (arrays differ in length" in told) == (key == "features")
    assert f"encoder: {'sequence' if key == 'sequence' else 'set'}" in told
    predictor = Predictor.load(run)
    vectors = np.array([[0.0, 9.0], [3.0, 0.0]])
    assert predictor.predict(vectors) == predictor.predict([vectors])[0]
    np.save(tmp_path / "event.npy", vectors)
    assert predictor.predict(tmp_path / "event.npy") == predictor.predict(vectors)
    told = multiset("predict", run, tmp_path / "event.npy")
    assert "event.npy" in "".join(told.split())


def test_multisets_too_large_for_the_joint_distribution_are_counted_in_a_sentence(tmp_path, multiset):
    data = write_events(tmp_path / "events.jsonl", "set")
    cells = ["--objective", "counts", "--count-head", "cells", "--epochs", 1]
    told = multiset("train", data, "--out", tmp_path / "few", *cells, "--joint-states", 6)  # 2 and 2 labels have 9
    assert re.search(r"independent for [1-9]\d* of 8\d multisets: they have up to 9 sub-multisets", told), told
    told = multiset("train", data, "--out", tmp_path / "enough", *cells, "--joint-states", 9)
    assert "independent for" not in told


def test_strings_are_texts_for_a_model_of_one_text(tmp_path, multiset):
    lines = ["text,labels", *(f"{'a' * (i % 3)}b{i},{';'.join('a' * (i % 3)) or 'b'}" for i in range(60))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    multiset("train", tmp_path / "data.csv", "--objective", "counts", "--epochs", "2", "--out", tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    one, (same, _) = predictor.predict("aab"), predictor.predict(["aab", ""])
    assert one == same
    assert one.name == "aab"


def test_long_inputs_are_cut_and_the_run_says_so(tmp_path, multiset):
    lines = ["text,labels", *(f"{'x' * (5000 if i == 7 else 3)},a" for i in range(20))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    told = multiset("train", tmp_path / "data.csv", "--objective", "counts", "--epochs", "1", "--out", tmp_path / "run")
    assert "limit: the first 2,048 bytes of text (1 input is longer)" in told


def test_the_portfolio_tries_networks_and_ridge_on_ngrams(tmp_path, multiset):
    data = write_names(tmp_path / "names.csv", number=60)
    multiset("train", data, "--minutes", "0.2", "--epochs", "1", "--out", tmp_path / "run")
    names = [row["name"] for row in json.loads((tmp_path / "run" / "leaderboard.json").read_text())]
    assert {"ridge", "majority baseline", "ridge baseline"} <= {*names}
