"""Training on data from which little can be learned gives a model and a verdict."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from workers_here import workers_here

from torchmultiset.data import Examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import finish
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate
from torchmultiset.pipeline.config import DataConfig, ResolvedConfig, ResolvedData, RunConfig
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.run import train_run
from torchmultiset.pipeline.standings import read_standings
from torchmultiset.training.config import OptimConfig

PETS = ("cat", "dog", "owl")


def one_class(rng):
    return [["cat"] * rng.randint(1, 4) for _ in range(60)]


def all_equal(_):
    return [["cat", "dog"]] * 60


def many_classes(rng):
    names = [f"c{i}" for i in range(200)]
    return [[name] for name in names] + [rng.choices(names, k=rng.randint(1, 4)) for _ in range(100)]


def noise(rng):
    return [[rng.choice(PETS) for _ in range(rng.randint(1, 4))] for _ in range(80)]


def few(rng):
    return [[rng.choice(PETS)] for _ in range(40)]


cases = pytest.mark.parametrize(
    ("make", "expected"),
    [
        (one_class, r"baseline.* Most likely to help: more examples \(\d+ for 1 class\)"),
        (all_equal, "^All training examples have the same labels, so there is nothing to learn: add examples"),
        (many_classes, r"read F1 and the count error first.* more examples .* fewer classes \(merge the rare ones\)"),
        (noise, "(a difference that can be chance|this model only).*Most likely to help: more examples"),
        (few, r"Most likely to help: more examples \(\d+ for 3 classes\)"),
    ],
)


@pytest.mark.slow
@cases
def test_a_run_on_unusual_data_ends_with_a_model_and_a_verdict(make, expected, tmp_path):
    rng = random.Random(0)
    lines = [f"{rng.random():.3f},{rng.randrange(10)},{';'.join(labels)}" for labels in make(rng)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,labels", *lines]) + "\n")
    config = replace(RunConfig(DataConfig(str(tmp_path / "data.csv"))), optim=OptimConfig(epochs=2))
    result = train_run(config, tmp_path / "run")
    sizes = {len(labels) for labels in make(random.Random(0))}
    assert re.search(expected, result.record["verdict"]), result.record["verdict"]
    predicted = Predictor.load(tmp_path / "run").predict_labels([[0.5, 3.0], [0.1, 9.0]])
    assert {len(labels) for labels in predicted} <= set(range(min(sizes), max(sizes) + 1))
    if make is all_equal:
        assert predicted == [["cat", "dog"]] * 2


QUICK = {"objective": "counts", "epochs": 1, "batch_size": 64, "channels": (4, 4, 8)}
ONLY = [
    Candidate("cells", {**QUICK, "count_head": "cells", "hidden": 8}, "each cell of a map counts"),
    Candidate("table", {**QUICK, "count_head": "table"}, "a distribution of each class's count"),
]


@pytest.mark.slow
@cases
def test_a_portfolio_on_unusual_data_ends_with_a_model_and_a_verdict(make, expected, tmp_path):
    lines, labels = ["image,labels"], make(random.Random(0))
    pixels = np.random.default_rng(0).integers(256, size=(len(labels), 24, 24, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{';'.join(labels[i])}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    config = RunConfig(DataConfig(str(tmp_path / "labels.csv")))
    with workers_here():
        result, standings = train_portfolio(config, tmp_path / "run", only=ONLY)
    assert re.search(expected, result.record["verdict"]), result.record["verdict"]
    assert result.record["finished"]
    assert {"cells", "table", "ridge baseline"} <= {one.name for one in standings}
    assert read_standings(tmp_path / "run") == standings
    assert all(0 <= one.exact_match <= one.f1 <= 1 for one in standings)
    predicted = Predictor.load(tmp_path / "run").predict([tmp_path / "0.png", tmp_path / "1.png"])
    sizes = {len(each) for each in labels}
    assert {answer.total() for answer in predicted} <= set(range(min(sizes), max(sizes) + 1))
    if make is all_equal:
        assert predicted == [{"cat": 1, "dog": 1}] * 2


FINETUNE, LARGER = "fine-tuning (--finetune most --minutes 45)", "larger images (--image-size {})"


@pytest.mark.parametrize(
    ("side", "changes", "expected"),
    [
        (1_000, {}, [FINETUNE, LARGER.format(512)]),
        (300, {}, [FINETUNE, LARGER.format(300)]),
        (256, {}, [FINETUNE]),  # enlarged images would not help
        (1_000, {"finetune": "most", "image_size": 448}, ["longer " + FINETUNE]),
        (1_000, {"backbone": "features.onnx"}, [LARGER.format(512)]),  # cannot be fine-tuned
        (1_000, {"backbone": "none", "image_size": 128}, ["a pretrained network (", LARGER.format(256)]),
        (100, {"backbone": "none", "image_size": 100}, []),
        (0, {"backbone": "none", "image_size": 224}, []),  # a table
    ],
)
def test_the_advice_depends_on_the_images(side, changes, expected):
    data = replace(ResolvedData(backbone="efficientnet-lite0", image_size=256), **changes)
    split = Examples(np.zeros((200, 4, 8, 8), np.float16), np.tile([[0], [1]], (100, 1)), classes=("a", "b"))
    splits = {"train": split}
    task = Task(ResolvedConfig(data), splits, splits, (4, 8, 8), (3, 256, 256), (), {}, None, side=side)
    advice = finish._advice(task, tuned=False)
    assert [part in advice for part in expected] == [True] * len(expected)
    assert advice.count("(") == len(expected)
    assert ("inputs with more information" in advice) == (len(expected) < 2)
    assert FINETUNE not in finish._advice(task, tuned=True)
