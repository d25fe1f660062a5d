"""Data from which little can be learned ends with a model and a sentence that says so."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.run import train
from torchmultiset.training.config import OptimConfig

PETS = ("cat", "dog", "owl")


def one_class(rng):
    return [["cat"] * rng.randint(1, 4) for _ in range(60)]


def all_equal(_):
    return [["cat", "dog"]] * 60


def many_classes(rng):
    return [[f"c{rng.randrange(200)}" for _ in range(rng.randint(1, 4))] for _ in range(300)]


def noise(rng):
    return [[rng.choice(PETS) for _ in range(rng.randint(1, 4))] for _ in range(200)]


def few(rng):
    return [[rng.choice(PETS)] for _ in range(40)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (one_class, r"baseline.* Most likely to help: more examples \(\d+ for 1 class\)"),
        (all_equal, "^All training examples have the same labels, so there is nothing to learn: add examples"),
        (many_classes, r"read F1 and the count error first.* more examples .* fewer classes \(merge the rare ones\)"),
        (noise, "(not ahead of|scores higher than).*Most likely to help: more examples"),
        (few, r"Most likely to help: more examples \(\d+ for 3 classes\)"),
    ],
)
def test_the_run_ends_with_a_model_and_a_sentence(make, expected, tmp_path):
    rng = random.Random(0)
    lines = [f"{rng.random():.3f},{rng.randrange(10)},{';'.join(labels)}" for labels in make(rng)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,labels", *lines]) + "\n")
    config = replace(RunConfig(DataConfig(str(tmp_path / "data.csv"))), optim=OptimConfig(epochs=2))
    result = train(config, tmp_path / "run")
    sizes = {len(labels) for labels in make(random.Random(0))}
    assert re.search(expected, result.record["verdict"]), result.record["verdict"]
    predicted = Predictor.load(tmp_path / "run").predict_labels([[0.5, 3.0], [0.1, 9.0]])
    assert {len(labels) for labels in predicted} <= set(range(min(sizes), max(sizes) + 1))
    if make is all_equal:
        assert predicted == [["cat", "dog"]] * 2
