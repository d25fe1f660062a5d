from __future__ import annotations

import json
import re
import shutil
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from paper import keep as module
from paper.cells import find
from paper.data import make_data
from paper.keep import Folders, forget_cell, state_of
from torchmultiset.data.load import load_data
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.inputs import open_model
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import to_dict
from torchmultiset.pipeline.workers import Job, work
from torchmultiset.policies import LSTMPolicy, TransformerPolicy

pytestmark = pytest.mark.slow

RANDOM, TEN = "mnist-multi-4/seq/seed-0", "mnist-multi-10/multi/seed-0"


def run_cell(name: str, folders: Folders) -> None:
    """Run a cell in this process with the function of workers."""
    cell = find("smoke", name)
    arguments = {"scale": "smoke", "results": str(folders.results)}
    config = to_dict(cell.config(folders.data))
    command = ("python", "-m", "paper", "run")
    work(Job(name, str(Path.cwd()), str(folders.run(cell)), config, 1, command, "paper.keep:keep", arguments))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders with two finished cells."""
    base = tmp_path_factory.mktemp("experiments")
    folders = Folders(base / "results", base / "runs", base / "data")
    make_data([find("smoke", name) for name in (RANDOM, TEN)], folders.data)
    for name in (RANDOM, TEN):
        run_cell(name, folders)
    return folders


def result(folders: Folders, name: str) -> Path:
    return folders.results / "smoke" / name


def record(folders: Folders, name: str) -> dict:
    return json.loads((result(folders, name) / "record.json").read_text())


def test_results_have_the_expected_files(folders):
    always = {"record.json", "epochs.jsonl", "predictions.npz", "worth.json", "model"}
    assert {path.name for path in result(folders, RANDOM).iterdir()} == always
    assert {path.name for path in result(folders, TEN).iterdir()} == always | {"entropy.json"}
    run = folders.runs / "smoke" / RANDOM
    assert (result(folders, RANDOM) / "epochs.jsonl").read_bytes() == (run / "epochs.jsonl").read_bytes()
    assert len((run / "epochs.jsonl").read_text().splitlines()) == 3


def test_only_small_models_are_kept(folders, tmp_path, monkeypatch):
    run = folders.runs / "smoke" / RANDOM / "model"
    kept = result(folders, RANDOM) / "model"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        path.name: path.read_bytes() for path in run.iterdir()
    }
    monkeypatch.setattr(module, "_KEPT_BYTES", 1)
    module._keep_model(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_record_describes_its_cell(folders):
    content = record(folders, RANDOM)
    assert (content["scale"], content["cell"], content["data_set"], content["method"], content["seed"]) == (
        "smoke",
        RANDOM,
        "mnist-multi-4",
        "seq",
        0,
    )
    assert content["tables"] == {
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
    assert content["command"] == f"python -m paper run table-1 --scale smoke --only {RANDOM}"


def test_the_record_of_a_cell_agrees_with_that_of_its_run(folders):
    content = record(folders, RANDOM)
    run = json.loads((folders.runs / "smoke" / RANDOM / "run.json").read_text())
    for name in ("git", "versions", "threads", "machine", "data", "examples", "picked", "parameters", "minutes"):
        assert content["run"][name] == run[name]
    assert content["run"]["finished"] is True
    assert content["run"]["threads"] == 1
    assert content["run"]["examples"] == {"train": 128, "validation": 32, "test": 48}
    assert content["best_epoch"] == run["best_epoch"]
    assert content["metrics"]["test"] == run["test"]
    assert content["metrics"]["validation"]["overall"]["exact_match"] == run["validation_em"]
    assert "auto" not in content["config"].values()
    assert (content["config"]["data"], content["config"]["max_size"], content["config"]["epochs"]) == (
        "mnist-multi-4",
        4,
        3,
    )
    model = json.loads((folders.runs / "smoke" / RANDOM / "model" / "predictor.json").read_text())
    assert content["weights_sha256"] == model["weights_sha256"]


def test_likelihood_and_calibration_equal_those_of_the_model(folders):
    content = json.loads((result(folders, RANDOM) / "worth.json").read_text())
    kept = np.load(result(folders, RANDOM) / "predictions.npz")
    examples = load_data(folders.data / "smoke" / "mnist-multi-4")["test"]
    model = open_model(result(folders, RANDOM))
    x = examples.batch(np.arange(len(examples))).x
    truth, predicted = (torch.from_numpy(kept[f"test_{name}"].astype(np.int64)) for name in ("true", "predicted"))
    of_truth = model.log_probability(x, truth, beam=24)  # four labels have 24 orders
    assert content["negative_log_likelihood"] == pytest.approx(-float(of_truth.mean()), rel=1e-5)
    confidence = model.log_probability(x, predicted, beam=24).exp()
    assert content["calibration"]["confidence"] == pytest.approx(float(confidence.mean()), rel=1e-5)
    assert (content["examples"], content["impossible"]) == (48, 0)
    # Ten labels have too many orders to enumerate.
    assert json.loads((result(folders, TEN) / "worth.json").read_text()) == {}


@pytest.mark.parametrize(
    ("policy", "size", "beam"),
    [("transformer", 10, 252), ("transformer", 4, 6), ("lstm", 4, 24), ("lstm", 10, 3628800)],
)
def test_an_exact_beam_has_all_prefixes(policy, size, beam):
    kinds = {"transformer": TransformerPolicy(3, 5, places=1, width=4), "lstm": LSTMPolicy(3, 5, hidden=4)}
    model = Predictor(MLPEncoder(2, (5,)), kinds[policy], ("a", "b", "c"), max_size=size, stop="fixed")
    assert model.exact_beam(size) == beam


@pytest.mark.parametrize("name", [RANDOM, TEN])
def test_the_metrics_match_the_kept_predictions(folders, name):
    splits = ("validation", "test")
    kept = np.load(result(folders, name) / "predictions.npz")
    content = record(folders, name)
    data = load_data(folders.data / "smoke" / content["data_set"])
    assert {*kept} == {"classes"} | {f"{split}_{what}" for split in splits for what in ("predicted", "true")}
    assert kept["classes"].tolist() == [*"0123456789"]
    for split in splits:
        predicted, true = kept[f"{split}_predicted"], kept[f"{split}_true"]
        assert predicted.dtype == true.dtype == np.uint8
        assert (true == data[split].counts).all()  # in order
        scores = content["metrics"][split]["overall"]
        assert scores["exact_match"] == np.mean(
            [p.tolist() == t.tolist() for p, t in zip(predicted, true, strict=True)]
        )
        f1 = [2 * np.minimum(p, t).sum() / (int(p.sum()) + int(t.sum())) for p, t in zip(predicted, true, strict=True)]
        assert scores["f1"] == pytest.approx(np.mean(f1), abs=1e-6)


def test_records_have_both_f1_scores_and_the_majority_baseline(folders):
    content = record(folders, RANDOM)
    most = Counter(map(tuple, load_data(folders.data / "smoke" / "mnist-multi-4")["train"].counts.tolist()))
    ((_, times), *_) = most.most_common(1)
    for split in ("validation", "test"):
        metrics = content["metrics"][split]
        assert 0 <= metrics["class_f1"] <= 1
        constant = metrics["constant"]
        multiset = tuple(constant["multiset"].get(digit, 0) for digit in "0123456789")
        assert most[multiset] == times
        assert 0 <= constant["class_f1"] <= 1
        assert constant["scores"]["examples"] == metrics["overall"]["examples"]


def test_the_entropy_of_ten_digits_is_recorded(folders):
    content = json.loads((result(folders, TEN) / "entropy.json").read_text())
    assert (content["split"], content["unit"], content["examples"]) == ("validation", "nats", 32)
    for curve in (content["policy"], *content["oracle"].values(), *content["oracle_on_policy_path"].values()):
        assert curve["examples"] == [32] * 10
        assert len(curve["mean"]) == len(curve["std"]) == len(curve["quantiles"]) == 10
    assert content["oracle"]["instances"]["mean"] == pytest.approx([np.log(10 - t) for t in range(10)], abs=1e-5)


def test_no_record_contains_a_path_or_a_host_name(folders):
    texts = [path.read_text() for path in folders.results.rglob("*.json*")]
    assert len(texts) == 9
    for text in texts:
        assert str(folders.results.parent) not in text
        assert not re.search(r'"/', text)
        assert f'"{socket.gethostname()}"' not in text


def test_the_test_data_is_evaluated_once(folders, monkeypatch, tmp_path):
    evaluated = []
    for place in ("torchmultiset.pipeline.finish.evaluate", "torchmultiset.training.evaluation.evaluate"):
        monkeypatch.setattr(place, lambda *_, **__: evaluated.append(1))
    other = Folders(tmp_path, folders.runs, folders.data)
    run_cell(RANDOM, other)  # trained and tested, but not kept yet
    assert evaluated == []
    assert record(other, RANDOM)["metrics"] == record(folders, RANDOM)["metrics"]


def test_a_cell_killed_after_training_is_not_trained_again(folders):
    path, run = result(folders, TEN) / "record.json", folders.runs / "smoke" / TEN
    content, trained = record(folders, TEN), (run / "checkpoint.pt").stat().st_mtime_ns
    path.unlink()
    (path.parent / "entropy.json").unlink()
    run_cell(TEN, folders)
    assert record(folders, TEN) == content
    assert (run / "checkpoint.pt").stat().st_mtime_ns == trained
    assert (path.parent / "entropy.json").exists()


# State of a cell


@pytest.fixture
def copied(folders, tmp_path):
    """A copy of the results of both cells, which tests may change."""
    shutil.copytree(folders.results, tmp_path / "results")
    return Folders(tmp_path / "results", tmp_path / "runs", folders.data)


def edit(folders: Folders, name: str, change) -> None:
    content = record(folders, name)
    change(content)
    (result(folders, name) / "record.json").write_text(json.dumps(content))


def test_a_cell_is_done_if_it_has_its_record(folders, copied):
    cell, other = find("smoke", RANDOM), find("smoke", "mnist-multi-4/rl/seed-0")
    assert state_of(cell, copied) == (True, 3, [])
    assert state_of(other, copied) == (False, 0, [])
    forget_cell(cell, copied)
    assert state_of(cell, copied) == (False, 0, [])
    assert state_of(find("smoke", TEN), copied).recorded
    assert state_of(cell, Folders(copied.results, folders.runs, folders.data)) == (False, 3, [])  # trained, not kept


def test_a_cell_with_another_config_is_stale(copied):
    edit(copied, RANDOM, lambda content: content["config"].update(epochs=30, lr=0.5, max_size=7))
    changed = state_of(find("smoke", RANDOM), copied).changed
    assert changed == ["epochs was 30 and is now 3", "lr was 0.5 and is now 0.006"]


def test_a_cell_with_other_data_is_stale(copied, tmp_path):
    edit(copied, RANDOM, lambda content: content["run"]["data"].update(sha256="0" * 64))
    (changed,) = state_of(find("smoke", RANDOM), copied).changed
    assert changed.startswith("the data was 000000000000... and is now ")
    # Without the data, only the rule can be compared.
    elsewhere = Folders(copied.results, copied.runs, tmp_path / "nowhere")
    assert state_of(find("smoke", RANDOM), elsewhere).changed == []
    edit(copied, RANDOM, lambda content: content["rule"].update(canvas=61))
    assert state_of(find("smoke", RANDOM), elsewhere).changed == ["canvas was 61 and is now 60"]


def test_a_record_without_a_rule_is_stale_if_the_numbers_of_examples_differ(copied, tmp_path):
    """Older records, such as those of COCO Medium, do not have the rule."""
    cell = find("small", "coco-medium/multi/seed-0")
    folder = copied.result(cell)
    folder.mkdir(parents=True)
    content = {"config": to_dict(cell.config()), "run": {"examples": {"train": 1992, "validation": 351, "test": 775}}}
    (folder / "record.json").write_text(json.dumps(content))
    assert state_of(cell, Folders(copied.results, copied.runs, tmp_path / "nowhere")).changed == [
        "the number of train examples was 1,992 and is now 3,350",
        "the number of validation examples was 351 and is now 591",
        "the number of test examples was 775 and is now 1,290",
    ]


def test_a_damaged_record_is_reported(copied):
    path = result(copied, RANDOM) / "record.json"
    for content in ('{"config"', '{"cell": "x"}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"record.json is damaged.*: delete it"):
            state_of(find("smoke", RANDOM), copied)


def test_a_record_has_the_rule_of_its_data(folders):
    content = record(folders, RANDOM)["rule"]
    assert (content["canvas"], content["train"], content["rare"], content["tested"]) == (60, 128, [], None)
    assert find("small", "coco-medium/multi/seed-0").data.rule("coco-medium")["mixed"] == "drop-label"
