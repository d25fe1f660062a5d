"""Training, evaluation and prediction from the command line, with every objective."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
import torch
from command_line import Run, runner
from jaxtyping import config
from PIL import Image
from tiny_runs import images, vectors

from torchmultiset.cli import main
from torchmultiset.data.examples import Examples
from torchmultiset.model.config import ObjectiveName
from torchmultiset.model.inputs import open_model

pytestmark = pytest.mark.slow

OBJECTIVES = get_args(ObjectiveName)
WITHOUT_PROBABILITIES = ("one-step", "ridge")
QUICK = ["--units", "16", "--channels", "4", "8", "--hidden", "8", "--batch-size", "16", "--epochs", "1"]
SPLITS = ("train", "validation", "test")


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


def label_list(examples: Examples, i: int) -> str:
    return ";".join(examples.classes[label] for label in examples.labels[i] if label >= 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table of numbers, a folder of images, and a run of each objective on the table."""
    folder = tmp_path_factory.mktemp("place")
    examples = vectors(150)
    rows = [
        ",".join([*(f"{x:.3f}" for x in examples.inputs[[i]][0]), label_list(examples, i), SPLITS[max(0, i % 5 - 2)]])
        for i in range(150)
    ]
    (folder / "table.csv").write_text("\n".join(["x,y,z,labels,split", *rows]))
    pictures = images(60)
    (folder / "pictures").mkdir()
    lines = ["image,labels,split"]
    for i in range(60):
        Image.fromarray(pictures.inputs[[i]][0, 0]).save(folder / "pictures" / f"{i}.png")
        lines.append(f"{i}.png,{label_list(pictures, i)},{SPLITS[max(0, i % 5 - 2)]}")
    (folder / "pictures" / "labels.csv").write_text("\n".join(lines))
    for objective in OBJECTIVES:
        out = str(folder / objective)
        assert main(["train", str(folder / "table.csv"), "--objective", objective, "--out", out, *QUICK]) == 0
    return folder


@pytest.fixture
def cwd(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def json_lines(result: tuple[int, list[str], str]) -> list[dict]:
    code, lines, err = result
    assert (code, err) == (0, "")
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_evaluate_reports_scores_and_calibration_for_each_objective(run, cwd, objective):
    code, lines, err = run("evaluate", objective, "table.csv", "--json")
    assert (code, err) == (0, "")
    scores = json.loads("\n".join(lines))
    assert 0 <= scores["overall"]["exact_match"] <= scores["overall"]["f1"] <= 1
    assert ("calibration" in scores) == (objective not in WITHOUT_PROBABILITIES)
    _, shown, _ = run("evaluate", objective, "table.csv")
    assert any("Abstention" in line for line in shown) == (objective not in WITHOUT_PROBABILITIES)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_baselines_are_scored_with_each_objective(cwd, objective):
    scores = json.loads((cwd / objective / "run.json").read_text())["test"]
    assert {*scores["baselines"]} == {"ridge regression", "nearest neighbour"}
    assert scores["constant"]["scores"]["examples"] == scores["overall"]["examples"]


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name not in WITHOUT_PROBABILITIES])
def test_predict_prints_the_most_probable_multisets_and_abstains_from_uncertain_inputs(run, cwd, objective):
    rows = json_lines(
        run("predict", objective, "table.csv", "--split", "test", "--json", "--best", 3, "--min-confidence", 0.4)
    )
    assert len(rows) == 30
    for row in rows:
        chances = [one["probability"] for one in row["best"]]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1 + 1e-6
        assert row["confidence"] == pytest.approx(chances[0], rel=1e-5)
        assert row["abstained"] == (chances[0] < 0.4)
        assert row["labels"] == (None if row["abstained"] else row["best"][0]["labels"])


@pytest.mark.parametrize("objective", ["counts", "hungarian", "power"])
def test_the_confidence_is_the_probability_of_the_predicted_multiset(run, cwd, objective):
    rows = json_lines(run("predict", objective, "table.csv", "--split", "test", "--json"))
    every = json_lines(run("predict", objective, "table.csv", "--split", "test", "--json", "--best", 20))
    for row, other in zip(rows, every, strict=True):
        chance = {str(sorted(one["labels"].items())): one["probability"] for one in other["best"]}
        assert sum(chance.values()) == pytest.approx(1)
        assert row["confidence"] == pytest.approx(chance[str(sorted(row["labels"].items()))], rel=1e-4)


@pytest.mark.parametrize("objective", ["counts", "hungarian", "power", "marginal"])
def test_models_of_images_are_trained_and_their_predictions_drawn(run, cwd, objective, tmp_path, figures_of_runs):
    out = tmp_path / "run"
    code, lines, _ = run("train", "pictures", "--objective", objective, "--out", out, *QUICK)
    assert code == 0
    with Image.open(out / "predictions.png") as picture:
        assert picture.size[0] > 300
    code, shown, _ = run("predict", out, "pictures", "--number", 3, "--figure", tmp_path / "p.png")
    assert code == 0
    one_by_one = objective == "marginal"  # one-shot heads have no order to show
    assert any(" order" in line for line in shown) == one_by_one
    rows = json_lines(run("predict", out, "pictures", "--number", 3, "--json"))
    assert [row["sequence"] is not None for row in rows] == [one_by_one] * 3
    policies = {"counts": "CellCounts", "hungarian": "Slots", "power": "PowerMultiset", "marginal": "TransformerPolicy"}
    assert open_model(str(out)).kind == policies[objective]
    if objective == "marginal":
        assert any("transformer" in line and "sees only counts" in line for line in lines)


def test_a_count_head_is_exported(run, cwd, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from torchmultiset.export import open_onnx

    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)  # shape checks would turn symbolic shapes into numbers
    try:
        code, _, err = run("export", "counts", "--out", tmp_path / "counts.onnx", "--number", 50)
    finally:
        config.update("jaxtyping_disable", before)
    assert (code, err) == (0, "")
    x = vectors(200, seed=3).inputs[np.arange(200)]
    found = open_onnx(tmp_path / "counts.onnx").run(["counts"], {"inputs": x})[0]
    assert np.array_equal(found, open_model("counts").predict(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--objective power --max-size 90", "1 to 90 labels of 3 classes make 129,765 multisets, too many"),
        ("--objective marginal --policy lstm", "which needs a policy that sees only counts, but is 'lstm'"),
        ("--objective counts --policy lstm", "policy must be left out with objective 'counts'"),
        ("--objective counts --count-head cells", "count_head must be 'table', 'poisson' or 'regression' for vectors"),
        ("--objective hungarian --stop end", "stop 'end' cannot be used with objective 'hungarian'"),
        ("--objective hungarian --nothing-weight -1", "nothing_weight must be at least 0"),
        ("--objective marginal --marginal-bound 0", "marginal_bound must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_in_one_line_and_nothing_is_written(run, cwd, tmp_path, flags, message):
    code, _, err = run("train", "table.csv", "--out", tmp_path / "run", *QUICK, *flags.split())
    assert code != 0
    assert message in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_stop_end_selects_the_multiset_loss(run, cwd, tmp_path):
    assert run("train", "table.csv", *QUICK, "--stop", "end", "--out", tmp_path / "run")[0] == 0
    saved = (tmp_path / "run" / "config.toml").read_text()
    assert 'objective = "multi"' in saved
    assert 'stop = "end"' in saved
