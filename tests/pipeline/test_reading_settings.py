"""Settings for reading a file: classes, fractions, seed of the split, unreadable images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from torchmultiset.data import manifest
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.inputs import open_examples, open_model
from torchmultiset.pipeline import prepare as prepare_module
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.run import train_run
from torchmultiset.training.config import OptimConfig


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "trips.csv"
    lines = [f"{i},{i % 7},{'bus' if i % 2 else 'bus;tram'}" for i in range(60)]
    path.write_text("\n".join(["people,hours,labels", *lines]))
    return path


def task_of(path: Path, **settings: object) -> Task:
    model = ModelConfig(units=(4,), hidden=4)
    return prepare(RunConfig(DataConfig(str(path), **settings), model, ObjectiveConfig("counts"), OptimConfig(1, 16)))


def ids_of(task: Task) -> dict[str, set[str]]:
    return {name: {*examples.ids} for name, examples in task.splits.items()}


def test_a_file_is_parsed_once_per_process(table, monkeypatch):
    calls, original = [], manifest.read_records
    monkeypatch.setattr(manifest, "read_records", lambda *args, **kw: calls.append(args) or original(*args, **kw))
    first, second = task_of(table), task_of(table, split_seed=1)
    assert len(calls) == 1
    assert ids_of(first) != ids_of(second)
    assert ids_of(first) == ids_of(task_of(table))
    task_of(table, classes=("tram", "ferry", "bus"))
    task_of(table, skip_unreadable=True)  # because its image files may have changed
    assert len(calls) == 3
    table.write_text(f"{table.read_text()}\n60,4,bus\n")
    assert sum(len(examples) for examples in task_of(table).splits.values()) == 61
    assert len(calls) == 4
    monkeypatch.setattr(prepare_module, "_LARGEST_KEPT", 10)
    monkeypatch.setattr(prepare_module, "_parsed", {})
    assert ids_of(task_of(table)) == ids_of(task_of(table))
    assert len(calls) == 6


def test_the_split_depends_on_fractions_and_seed(table):
    plain, half, other = task_of(table), task_of(table, fractions=(0.4, 0.3, 0.3)), task_of(table, split_seed=1)
    sizes = [len(task.splits["train"]) / 60 for task in (plain, half, other)]
    assert sizes[0] > 0.55 > sizes[1] > 0.25
    assert ids_of(plain) != ids_of(other)
    assert ids_of(other) == ids_of(task_of(table, split_seed=1))
    assert all(set.union(*ids_of(task).values()) == set.union(*ids_of(plain).values()) for task in (half, other))


def test_classes_have_the_given_order_and_other_labels_are_errors(table):
    assert task_of(table, classes=("tram", "ferry", "bus")).splits["train"].classes == ("tram", "ferry", "bus")
    with pytest.raises(ValueError, match="the label 'tram' is not one of the classes"):
        task_of(table, classes=("bus",))


def test_built_data_has_its_own_classes(tmp_path, digits_store):
    with pytest.raises(ValueError, match=r"classes must be left out, as .* is a built data set"):
        task_of(digits_store, classes=("a",))


@pytest.fixture
def digits_store(tmp_path) -> Path:
    from torchmultiset.data.digits import load_digits
    from torchmultiset.data.mnist_multi import MnistMulti, build

    small = MnistMulti(sizes=(1, 1), digit_px=(12, 12), canvas=28, clutter=0, train=8, validation=2, test=2)
    build(tmp_path / "digits", small, load_digits("bundled"))
    return tmp_path / "digits"


def test_a_model_splits_a_file_as_in_its_training(table, tmp_path, monkeypatch):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)  # no figures, which are slow
    data = DataConfig(str(table), fractions=(0.5, 0.2, 0.3), split_seed=3)
    config = RunConfig(data, ModelConfig(units=(4,)), ObjectiveConfig("counts"), OptimConfig(1, 16))
    train_run(config, tmp_path / "run")
    predictor = open_model(tmp_path / "run")
    expected = ids_of(prepare(config))
    opened = {name: {*examples.ids} for name, examples in open_examples(predictor, table).items()}
    assert opened == expected
    assert opened != ids_of(prepare(replace(config, data=DataConfig(str(table)))))
    whole = open_examples(predictor, table, whole=True)
    assert {name: len(examples) for name, examples in whole.items()} == {"train": 60, "validation": 0, "test": 0}


def test_unreadable_images_stop_a_run_or_are_skipped_with_a_warning(tmp_path):
    lines = ["image,labels"]
    for i in range(20):
        Image.new("RGB", (64, 64), (i, 0, 0)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{'a' if i % 2 else 'b'}")
    (tmp_path / "7.png").write_bytes(b"no image")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"line 9: .*7\.png"):
        task_of(tmp_path, backbone="none")
    with pytest.warns(UserWarning, match=r"skipped 1 of 20 examples"):
        task = task_of(tmp_path, backbone="none", skip_unreadable=True)
    assert sum(map(len, task.splits.values())) == 19
