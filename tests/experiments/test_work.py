from __future__ import annotations

import json
import re
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmultiset.data.load import load_data
from torchmultiset.encoders import MLPEncoder
from torchmultiset.experiments import work
from torchmultiset.experiments.cells import find
from torchmultiset.experiments.data import make_data
from torchmultiset.experiments.work import Folders, run_cell
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.inputs import open_model
from torchmultiset.policies import LSTMPolicy, TransformerPolicy

RANDOM, TEN = "mnist-multi-4/seq/seed-0", "mnist-multi-10/multi/seed-0"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two cells that were run."""
    base = tmp_path_factory.mktemp("experiments")
    folders = Folders(base / "results", base / "runs", base / "data")
    cells = [find("smoke", name) for name in (RANDOM, TEN)]
    make_data(cells, folders.data)
    for cell in cells:
        run_cell(cell, folders, threads=1)
    return folders


def result(folders: Folders, name: str) -> Path:
    return folders.results / "smoke" / name


def record(folders: Folders, name: str) -> dict:
    return json.loads((result(folders, name) / "record.json").read_text())


def test_what_is_kept(folders):
    always = {"record.json", "epochs.jsonl", "predictions.npz", "worth.json", "model"}
    assert {path.name for path in result(folders, RANDOM).iterdir()} == always
    assert {path.name for path in result(folders, TEN).iterdir()} == always | {"entropy.json"}
    run = folders.runs / "smoke" / RANDOM
    assert (result(folders, RANDOM) / "epochs.jsonl").read_bytes() == (run / "epochs.jsonl").read_bytes()
    assert len((run / "epochs.jsonl").read_text().splitlines()) == 3


def test_a_small_model_is_kept_and_a_large_one_is_not(folders, tmp_path, monkeypatch):
    run = folders.runs / "smoke" / RANDOM / "model"
    kept = result(folders, RANDOM) / "model"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        path.name: path.read_bytes() for path in run.iterdir()
    }
    monkeypatch.setattr("torchmultiset.experiments.work._KEPT_BYTES", 1)
    work._keep_model(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_record_says_what_the_cell_is(folders):
    told = record(folders, RANDOM)
    assert (told["scale"], told["cell"], told["data_set"], told["method"], told["seed"]) == (
        "smoke",
        RANDOM,
        "mnist-multi-4",
        "seq",
        0,
    )
    assert told["tables"] == {
        "table-1": {
            "row": "Random",
            "column": "MNIST Multi (4)",
            "place": [0, 0],
            "split": "validation",
            "paper": {"em": 0.920, "f1": 0.977},
        },
        "table-3": {
            "row": "L_seq",
            "column": "MNIST Multi (4)",
            "place": [4, 0],
            "split": "test",
            "paper": {"em": 0.906, "f1": 0.973},
        },
        "beyond": {
            "row": "L_seq",
            "column": "MNIST Multi (4)",
            "place": [4, 0],
            "split": "test",
            "paper": None,
        },
    }
    assert told["command"] == f"multiset experiment table-1 --scale smoke --only {RANDOM}"


def test_the_record_says_what_the_run_says(folders):
    told = record(folders, RANDOM)
    run = json.loads((folders.runs / "smoke" / RANDOM / "run.json").read_text())
    for name in ("git", "versions", "threads", "machine", "data", "examples", "picked", "parameters", "minutes"):
        assert told["run"][name] == run[name]
    assert told["run"]["finished"] is True
    assert told["run"]["threads"] == 1
    assert told["run"]["examples"] == {"train": 128, "validation": 32, "test": 48}
    assert told["best_epoch"] == run["best_epoch"]
    assert told["metrics"]["test"] == run["test"]
    assert told["metrics"]["validation"]["overall"]["exact_match"] == run["validation_em"]
    assert "auto" not in told["config"].values()
    assert (told["config"]["data"], told["config"]["max_size"], told["config"]["epochs"]) == ("mnist-multi-4", 4, 3)
    model = json.loads((folders.runs / "smoke" / RANDOM / "model" / "predictor.json").read_text())
    assert told["weights_sha256"] == model["weights_sha256"]


def test_what_the_predictions_are_worth(folders):
    told = json.loads((result(folders, RANDOM) / "worth.json").read_text())
    kept = np.load(result(folders, RANDOM) / "predictions.npz")
    examples = load_data(folders.data / "smoke" / "mnist-multi-4")["test"]
    model = open_model(result(folders, RANDOM))
    x = examples.batch(np.arange(len(examples))).x
    truth, predicted = (torch.from_numpy(kept[f"test_{name}"].astype(np.int64)) for name in ("true", "predicted"))
    of_truth = model.log_probability(x, truth, beam=24)  # four labels have as many orders
    assert told["negative_log_likelihood"] == pytest.approx(-float(of_truth.mean()), rel=1e-5)
    sure = model.log_probability(x, predicted, beam=24).exp()
    assert told["calibration"]["confidence"] == pytest.approx(float(sure.mean()), rel=1e-5)
    assert (told["examples"], told["impossible"]) == (48, 0)
    # Ten labels have more orders than anyone can follow.
    assert json.loads((result(folders, TEN) / "worth.json").read_text()) == {}


@pytest.mark.parametrize(
    ("policy", "size", "beam"),
    [("transformer", 10, 252), ("transformer", 4, 6), ("lstm", 4, 24), ("lstm", 10, 3628800)],
)
def test_how_many_prefixes_there_are(policy, size, beam):
    kinds = {"transformer": TransformerPolicy(3, 5, places=1, width=4), "lstm": LSTMPolicy(3, 5, hidden=4)}
    model = Predictor(MLPEncoder(2, (5,)), kinds[policy], ("a", "b", "c"), max_size=size, stop="fixed")
    assert work._widest(model, size) == beam


@pytest.mark.parametrize(("name", "left_out"), [(RANDOM, "worth.json"), (TEN, "worth.json"), (TEN, "entropy.json")])
def test_what_an_older_version_left_out_is_made_up_for(folders, name, left_out):
    cell, path, record_before = find("smoke", name), result(folders, name) / left_out, record(folders, name)
    before = {beside: beside.read_bytes() for beside in path.parent.iterdir() if beside.is_file()}
    path.unlink()
    assert not work.is_done(cell, folders)
    run_cell(cell, folders, threads=1)
    assert work.is_done(cell, folders)
    assert {beside: beside.read_bytes() for beside in path.parent.iterdir() if beside.is_file()} == before
    assert record(folders, name) == record_before


@pytest.mark.parametrize(("name", "splits"), [(RANDOM, ("validation", "test")), (TEN, ("test",))])
def test_the_metrics_are_those_of_the_predictions_kept(folders, name, splits):
    kept = np.load(result(folders, name) / "predictions.npz")
    told = record(folders, name)
    data = load_data(folders.data / "smoke" / told["data_set"])
    assert {*kept} == {"classes"} | {f"{split}_{what}" for split in splits for what in ("predicted", "true")}
    assert kept["classes"].tolist() == [*"0123456789"]
    for split in splits:
        predicted, true = kept[f"{split}_predicted"], kept[f"{split}_true"]
        assert predicted.dtype == true.dtype == np.uint8
        assert (true == data[split].counts).all()  # in order
        scores = told["metrics"][split]["overall"]
        assert scores["exact_match"] == np.mean(
            [p.tolist() == t.tolist() for p, t in zip(predicted, true, strict=True)]
        )
        f1 = [2 * np.minimum(p, t).sum() / (int(p.sum()) + int(t.sum())) for p, t in zip(predicted, true, strict=True)]
        assert scores["f1"] == pytest.approx(np.mean(f1), abs=1e-6)


def test_both_f1s_and_the_best_constant_on_both_splits(folders):
    told = record(folders, RANDOM)
    most = Counter(map(tuple, load_data(folders.data / "smoke" / "mnist-multi-4")["train"].counts.tolist()))
    ((_, times), *_) = most.most_common(1)
    for split in ("validation", "test"):
        metrics = told["metrics"][split]
        assert 0 <= metrics["class_f1"] <= 1
        constant = metrics["constant"]
        multiset = tuple(constant["multiset"].get(digit, 0) for digit in "0123456789")
        assert most[multiset] == times
        assert 0 <= constant["class_f1"] <= 1
        assert constant["scores"]["examples"] == metrics["overall"]["examples"]


def test_the_entropy_of_ten_digits(folders):
    told = json.loads((result(folders, TEN) / "entropy.json").read_text())
    assert (told["split"], told["unit"], told["examples"]) == ("validation", "nats", 32)
    for curve in (told["policy"], *told["oracle"].values(), *told["oracle_on_policy_path"].values()):
        assert curve["examples"] == [32] * 10
        assert len(curve["mean"]) == len(curve["std"]) == len(curve["quantiles"]) == 10
    assert told["oracle"]["instances"]["mean"] == pytest.approx([np.log(10 - t) for t in range(10)], abs=1e-5)


def test_nothing_names_a_place_or_a_machine(folders):
    texts = [path.read_text() for path in folders.results.rglob("*.json*")]
    assert len(texts) == 9
    for text in texts:
        assert str(folders.results.parent) not in text
        assert not re.search(r'"/', text)
        assert f'"{socket.gethostname()}"' not in text


def test_what_is_done_is_left_alone(folders):
    files = [path for folder in (folders.results, folders.runs) for path in folder.rglob("*") if path.suffix != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    run_cell(find("smoke", RANDOM), folders, threads=1)
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_killed_after_training_it_is_only_looked_at_again(folders):
    path, run = result(folders, TEN) / "record.json", folders.runs / "smoke" / TEN
    told, trained = record(folders, TEN), (run / "checkpoint.pt").stat().st_mtime_ns
    path.unlink()
    (path.parent / "entropy.json").unlink()
    run_cell(find("smoke", TEN), folders, threads=1)
    assert record(folders, TEN) == told
    assert (run / "checkpoint.pt").stat().st_mtime_ns == trained
    assert (path.parent / "entropy.json").exists()
