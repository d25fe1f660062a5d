"""Text, sets and sequences on the command line: training, predictions, figures and ONNX export."""

from __future__ import annotations

import csv
import json
import random
import re

import numpy as np
import pytest
from command_line import runner
from workers_here import workers_here

from torchmultiset import Predictor
from torchmultiset.model.inputs import open_inputs
from torchmultiset.pipeline.candidates import candidates
from torchmultiset.pipeline.config import config_of
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.run import train_run

pytestmark = pytest.mark.slow


@pytest.fixture
def multiset(capsys, monkeypatch):
    run = runner(capsys, monkeypatch)

    def run_command(*tokens: object) -> str:
        code, lines, error = run(*tokens)
        assert code == 0, error
        return " ".join(" ".join([*lines, error]).split()) if "--json" not in tokens else "\n".join(lines)

    return run_command


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
        value: object = [[0.0, 9.0], *rows]  # features must not be empty
        if key == "array":  # each example is a file
            np.save(path.with_name(f"{len(lines)}.npy"), value)
            value = f"{len(lines)}.npy"
        lines.append(json.dumps({key: value, "labels": {"low": int(kinds[0]), "high": int(kinds[1])}}))
    path.write_text("\n".join(lines))
    return path


def test_a_table_with_text_numbers_and_categories_is_trained_on(tmp_path, multiset, figures_of_runs):
    data, run = write_names(tmp_path / "names.csv"), tmp_path / "run"
    output = multiset("train", data, "--objective", "counts", "--epochs", "12", "--out", run)
    assert re.search(r"text: 'name' \(\d+ different strings\)", output)
    assert "categories: 2 (gas, solid) ('phase' holds text)" in output
    assert "encoder: text (inputs are text)" in output
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


@pytest.mark.parametrize("key", ["features", "array", "set", "sequence"])
def test_sets_and_sequences_of_vectors_are_trained_on(tmp_path, multiset, key):
    data, run = write_events(tmp_path / "events.jsonl", key), tmp_path / "run"
    output = multiset("train", data, "--objective", "multi", "--epochs", "2", "--out", run)
    assert ("inputs: sets or sequences (arrays differ in length" in output) == (key in ("features", "array"))
    assert f"encoder: {'sequence' if key == 'sequence' else 'set'}" in output
    predictor = Predictor.load(run)
    vectors = np.array([[0.0, 9.0], [3.0, 0.0]])
    assert predictor.predict(vectors) == predictor.predict([vectors])[0]
    np.save(tmp_path / "event.npy", vectors)
    assert predictor.predict(tmp_path / "event.npy") == predictor.predict(vectors)
    output = multiset("predict", run, tmp_path / "event.npy", "--figure", tmp_path / "event.png")
    assert "event.npy" in "".join(output.split())
    assert (tmp_path / "event.png").stat().st_size > 1000
    assert "By size of the true multiset" in multiset("evaluate", run, data, "--split", "test")
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"reads vectors of 2 numbers, but those of .*wide.npy have vectors of 3"):
        predictor.predict(tmp_path / "wide.npy")
    with pytest.raises(ValueError, match=r"reads sets or sequences of vectors, arrays of shape \(any, 2\), but was"):
        predictor.predict([{"x": 1}])


def test_the_number_of_multisets_too_large_for_the_joint_distribution_is_reported(tmp_path, multiset):
    data = write_events(tmp_path / "events.jsonl", "set")
    cells = ["--objective", "counts", "--count-head", "cells", "--epochs", 1]
    output = multiset("train", data, "--out", tmp_path / "few", *cells, "--joint-states", 6)  # 4 labels have up to 9
    assert re.search(r"independent for [1-9]\d* of 8\d multisets, those with more than 3 labels", output), output
    output = multiset("train", data, "--out", tmp_path / "enough", *cells, "--joint-states", 9)
    assert "independent for" not in output


def test_a_model_of_text_predicts_from_strings(tmp_path, multiset):
    lines = ["text,labels", *(f"{'a' * (i % 3)}b{i},{';'.join('a' * (i % 3)) or 'b'}" for i in range(60))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    multiset("train", tmp_path / "data.csv", "--objective", "counts", "--epochs", "2", "--out", tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    one, (same, _) = predictor.predict("aab"), predictor.predict(["aab", ""])
    assert one == same
    assert one.name == "aab"


def test_a_model_trained_on_joined_texts_is_exported(tmp_path, multiset):
    lines = ["text,labels", *(f"{'a' * (i % 3)}b{i},{';'.join('a' * (i % 3)) or 'b'}" for i in range(60))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    settings = ["--objective", "counts", "--count-head", "gaussian", "--mosaic", "0.5", "--epochs", "3"]
    multiset("train", tmp_path / "data.csv", *settings, "--out", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["examples"]["train"] < 60
    output = multiset("export", tmp_path / "run", "--out", tmp_path / "model.onnx", "--data", tmp_path / "data.csv")
    assert "agrees with PyTorch on all" in output


def test_texts_with_other_columns_are_not_joined(tmp_path):
    data = write_names(tmp_path / "names.csv", number=60)
    with pytest.raises(ValueError, match="mosaic must be 0 for text with other columns"):
        prepare(config_of({"data": str(data), "objective": "counts", "mosaic": 0.5}))


@pytest.mark.parametrize(
    ("number", "columns", "joined"), [(6_200, False, True), (6_200, True, False), (300, False, False)]
)
def test_a_candidate_joins_texts_if_they_are_many_and_the_only_column(tmp_path, number, columns, joined):
    lines = ["text,grams,labels" if columns else "text,labels"]
    lines += [f"{'ab'[i % 2]} {i},{f'{i},' if columns else ''}{'ab'[i % 2]};{'ab'[i % 3 % 2]}" for i in range(number)]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    task = prepare(config_of({"data": str(tmp_path / "data.csv")}))
    found = {one.name: "mosaic" in one.values for one in candidates(task)}
    assert found["text"] == joined
    assert not found["text-attention"]  # joining assumes additive counts, so another candidate does without


@pytest.mark.parametrize("installed", [True, False])
def test_embeddings_of_words_are_a_candidate_if_the_extra_is_installed(tmp_path, monkeypatch, installed):
    monkeypatch.setattr("torchmultiset.pipeline.candidates.words_installed", lambda: installed)
    task = prepare(config_of({"data": str(write_names(tmp_path / "names.csv"))}))
    encoders = {one.name: one.values.get("encoder") for one in candidates(task)}
    assert {"text", "text-attention", "ridge"} <= encoders.keys()
    assert (encoders.get("words") == "words") == installed


@pytest.mark.parametrize(
    ("key", "encoders"), [("features", {"set", "sequence"}), ("set", {"set"}), ("sequence", {"sequence"})]
)
def test_the_encoder_of_vectors_depends_on_their_order(tmp_path, key, encoders):
    task = prepare(config_of({"data": str(write_events(tmp_path / "events.jsonl", key))}))
    found = {one.name: one.values.get("encoder") for one in candidates(task)}
    assert {encoder for name, encoder in found.items() if name.endswith(("-table", "-sum"))} == encoders
    assert {"policy", "ridge"} <= found.keys()


@pytest.mark.filterwarnings("always:1 input is longer")
def test_long_inputs_are_truncated_with_a_warning(tmp_path, multiset):
    lines = ["text,labels", *(f"{'x' * (5000 if i == 7 else 3)},a" for i in range(20))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    output = multiset(
        "train", tmp_path / "data.csv", "--objective", "counts", "--epochs", "1", "--out", tmp_path / "run"
    )
    assert "limit: the first 2,048 bytes of text (1 input is longer)" in output
    lines = [json.dumps({"text": text}) for text in ("", "漢字 é", "x" * 100_000)]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    output = multiset("predict", tmp_path / "run", tmp_path / "new.jsonl", "--figure", tmp_path / "figure.png")
    assert "1 input is longer than 2,048 bytes or vectors: only the first part of each is read" in output
    with pytest.warns(UserWarning, match="2 inputs are longer"):
        first, second = Predictor.load(tmp_path / "run").predict(["x" * 2_049, "x" * 100_000])
    assert first == second


def test_a_text_instead_of_a_file_gets_a_hint(tmp_path):
    (tmp_path / "data.csv").write_text("\n".join(["text,labels", *(f"{'ab'[i % 2]}{i},a" for i in range(20))]))
    train_run(config_of({"data": str(tmp_path / "data.csv"), "objective": "ridge"}), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"no file or folder ethanol: write texts to a .csv or .jsonl file, as"):
        open_inputs(Predictor.load(tmp_path / "run"), ["ethanol"])
    with pytest.raises(FileNotFoundError, match=r"write texts to a .csv or .jsonl file"):
        open_inputs(Predictor.load(tmp_path / "run"), ["ethanol " * 50])  # longer than the name of a file can be


def test_a_long_text_that_ends_like_the_name_of_a_table_is_a_text(tmp_path):
    (tmp_path / "data.csv").write_text("\n".join(["text,labels", *(f"{'ab'[i % 2]}{i},a" for i in range(20))]))
    train_run(config_of({"data": str(tmp_path / "data.csv"), "objective": "ridge"}), tmp_path / "run")
    answer = Predictor.load(tmp_path / "run").predict("see the table " * 30 + "results.csv")
    assert answer.name.startswith("see the table")


def test_the_portfolio_of_text_includes_ridge_regression_on_ngrams(tmp_path, multiset):
    data = write_names(tmp_path / "names.csv", number=60)
    with workers_here():
        multiset("train", data, "--minutes", "0.2", "--epochs", "1", "--out", tmp_path / "run")
    names = [row["name"] for row in json.loads((tmp_path / "run" / "leaderboard.json").read_text())]
    assert {"ridge", "majority baseline", "ridge baseline"} <= {*names}
