from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import shutil
import socket
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version
from PIL import Image
from run_figures import drawn

import torchmultiset
from torchmultiset.data.digits import load_digits
from torchmultiset.data.load import load_data
from torchmultiset.data.mnist_multi import MnistMulti, build
from torchmultiset.encoders import make_backbone
from torchmultiset.metrics import exact_match
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import presets
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import (
    differences,
    environment,
    portable,
    portable_command,
    read_config,
    read_record,
    translated,
    write_record,
)
from torchmultiset.pipeline.run import fitting_devices, train_run
from torchmultiset.training import local_fabric
from torchmultiset.training.config import OptimConfig

pytestmark = pytest.mark.slow

TINY = MnistMulti(
    sizes=(1, 2), digit_px=(12, 14), canvas=28, clutter=1, classes=(0, 1), train=48, validation=16, test=20
)
MODEL = ModelConfig(channels=(6, 6), hidden=8)
OPTIM = OptimConfig(epochs=2, batch_size=16, precision="32-true")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    build(folder, TINY, load_digits("bundled"))
    return folder


@pytest.fixture
def config(digits):
    return RunConfig(DataConfig(data=str(digits)), MODEL, ObjectiveConfig(), OPTIM, seed=3)


@pytest.fixture
def pets(tmp_path):
    """A folder of images whose colour is their class, each with two labels."""
    folder = tmp_path / "pets"
    folder.mkdir()
    lines = ["image,labels,split"]
    for i in range(12):
        Image.new("RGB", (40, 30), [(200, 30, 30), (30, 30, 200)][i % 2]).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{['cat:2', 'dog:2'][i % 2]},{['train', 'train', 'validation'][i // 4]}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


# Settings chosen from the data


def test_automatic_settings_are_chosen_from_the_training_data(config, pets):
    task = prepare(config)
    assert [pick[:2] for pick in task.choices] == [
        ("objective", "counts"),
        ("encoder", "conv"),
        ("min_size", "1"),
        ("max_size", "2"),
    ]
    assert (task.config.model.stop, task.config.model.max_size) == ("policy", 2)
    assert prepare(task.config).choices == ()

    sequential = prepare(replace(config, objective=ObjectiveConfig("multi")))
    assert ("policy", "conv-lstm") in [pick[:2] for pick in sequential.choices]
    assert sequential.choices[-1] == ("stop", "policy", "training multisets have 1 to 2 labels")

    same = prepare(replace(config, data=DataConfig(data=str(pets), image_size=32)))
    assert ("stop", "fixed", "all training multisets have 2 labels") in same.choices
    assert same.shape == (3, 32, 32)

    room = replace(config, data=DataConfig(data=str(pets), image_size=32), model=replace(config.model, max_size=5))
    larger = prepare(replace(room, objective=ObjectiveConfig("multi")))
    assert ("stop", "policy", "training multisets have 2 labels, and max_size is 5") in larger.choices
    assert "stop" not in {pick.what for pick in prepare(room).choices}  # a count head has no policy that stops


def test_a_policy_is_chosen_if_the_map_is_too_coarse_to_count(config):
    coarse = replace(config, model=ModelConfig(channels=(2, 2), max_size=99))
    picks = {pick.what: pick for pick in prepare(coarse).choices}
    assert picks["objective"].value == "multi"
    assert "too coarse to count 99 labels" in picks["objective"].reason
    heads = ObjectiveConfig(count_head="poisson")  # needs no map
    assert prepare(replace(coarse, objective=heads)).config.objective.objective == "counts"


def test_linear_layers_and_a_count_head_or_an_lstm_are_chosen_for_vectors(tmp_path, config):
    (tmp_path / "t.csv").write_text("a,b,labels,split\n1,2,x,train\n3,4,x;y,train\n5,6,y,validation\n")
    config = replace(config, data=DataConfig(data=str(tmp_path / "t.csv")))
    for objective, picked in ((None, {"objective": "counts"}), ("multi", {"policy": "lstm"})):
        task = prepare(replace(config, objective=ObjectiveConfig(objective)))
        assert {pick.what: pick.value for pick in task.choices}.items() >= {"encoder": "mlp", **picked}.items()
    assert "policy" not in {pick.what for pick in prepare(config).choices}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ModelConfig(max_size=1)}, "max_size must be at least 2"),
        ({"model": ModelConfig(stop="fixed")}, "stop 'fixed' needs multisets of max_size = "),
        ({"data": DataConfig()}, "no data set is specified"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(replace(config, **change))


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        (OptimConfig, {"epochs": -1}, "epochs must be at least 1"),
        (OptimConfig, {"lr": 0.0}, "lr must be more than 0"),
        (OptimConfig, {"lr": math.nan}, "lr must be more than 0"),
        (OptimConfig, {"clip": math.inf}, "clip must be at least 0"),
        (ModelConfig, {"hidden": 0}, "hidden must be at least 1"),
        (ModelConfig, {"channels": ()}, "channels must be at least one number"),
        (ModelConfig, {"units": (8, 0)}, "units must be at least one number, each at least 1"),
        (ObjectiveConfig, {"stop_weight": -1.0}, "stop_weight must be at least 0"),
        (DataConfig, {"strides": ()}, "strides must be at least one number"),
        (RunConfig, {"seed": -1}, "seed must be at least 0"),
    ],
)
def test_each_part_of_a_config_checks_its_settings_when_it_is_created(part, values, message):
    with pytest.raises(ValueError, match=message):
        part(**values)


def test_data_without_validation_examples_is_refused(config, tmp_path):
    (tmp_path / "t.csv").write_text("a,labels,split\n1,x,train\n3,x;y,test\n")
    with pytest.raises(ValueError, match="no validation examples to select the best epoch with"):
        prepare(replace(config, data=DataConfig(data=str(tmp_path / "t.csv"))))


def test_a_missing_mnist_multi_is_built(config, tmp_path, monkeypatch, digits):
    monkeypatch.setenv("TORCHMULTISET_MNIST", "bundled")
    tiny = replace(presets.PRESETS["demo"], digits=TINY, least_digits=0)
    monkeypatch.setattr(presets, "PRESETS", {**presets.PRESETS, "demo": tiny})
    folder = tmp_path / "new" / "demo"
    presets.build_missing("demo", folder)
    task = prepare(replace(config, data=DataConfig(data=str(folder))))
    assert {name: len(examples) for name, examples in task.splits.items()} == {
        "train": 48,
        "validation": 16,
        "test": 20,
    }
    assert task.data["sha256"] == prepare(config).data["sha256"]
    before = (folder / "manifest.json").stat().st_mtime_ns
    presets.build_missing("demo", folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    presets.build_missing("coco-easy", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(ValueError, match="the preset demo builds a data set in a folder, but data is the file"):
        presets.build_missing("demo", tmp_path / "pets.csv")


def test_few_digits_are_distorted_in_training_images(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMULTISET_MNIST", "bundled")
    plain = replace(presets.PRESETS["demo"], digits=TINY, least_digits=0)
    stores = []
    for least in (0, 4_000, 4_001):
        monkeypatch.setattr(presets, "PRESETS", {**presets.PRESETS, "demo": replace(plain, least_digits=least)})
        presets.build_missing("demo", tmp_path / str(least))
        stores.append(load_data(tmp_path / str(least)))
    none, enough, more = ({name: one.inputs[np.arange(len(one))] for name, one in store.items()} for store in stores)
    np.testing.assert_array_equal(none["train"], enough["train"])
    assert (none["train"] != more["train"]).any()
    np.testing.assert_array_equal(none["test"], more["test"])  # test images have the original digits


# Runs


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    config = RunConfig(DataConfig(data=str(digits)), MODEL, ObjectiveConfig(), OPTIM, seed=3)
    messages: list[str] = []
    command = ["multiset", "train", "--data", str(digits), f"--out={folder}"]
    with drawn():
        result = train_run(config, folder, command=command, say=messages.append)
    return config, folder, result, messages


def test_the_folder_of_a_run_has_all_files(finished):
    _, folder, result, messages = finished
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "run.json", "epochs.jsonl", "predictions.npz", "checkpoint.pt", "best", "model", "curve.png",
        "predictions.png",
    }  # fmt: skip
    assert [json.loads(line)["epoch"] for line in (folder / "epochs.jsonl").read_text().splitlines()] == [1, 2]
    record = read_record(folder)
    assert record == json.loads(json.dumps(result.record))
    assert record["finished"]
    assert record["seed"] == 3
    assert record["threads"] == torch.get_num_threads()
    assert release(record["versions"]["torch"]) == release(torch.__version__)
    assert record["machine"]["cores"] == os.cpu_count()
    assert record["examples"] == {"train": 48, "validation": 16, "test": 20}
    assert record["git"] is None or re.fullmatch(r"[0-9a-f]{40}(\+changes)?", record["git"])
    assert record["data"]["name"] == "digits"
    assert record["minutes"] > 0
    assert any(line.startswith("  max_size: 2 (") for line in messages)


def release(version: str) -> str:
    """A version without its build, such as 2.13.0 for 2.13.0+cpu."""
    return Version(version).public


@pytest.mark.parametrize("build", ["", "+cpu", "+cu130"])
def test_the_record_has_the_release_of_pytorch_for_any_build(monkeypatch, build):
    """The default wheel of PyTorch is 2.13.0 for pip, but its __version__ is 2.13.0+cu130."""
    monkeypatch.setattr(torch, "__version__", release(torch.__version__) + build)
    recorded = environment()["versions"]["torch"]
    assert recorded == importlib.metadata.version("torch")
    assert release(recorded) == release(torch.__version__)


def test_the_record_has_the_version_of_the_code_that_runs(monkeypatch):
    """The version known to pip may be older if the install is editable."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.0")
    assert environment()["versions"]["torchmultiset"] == torchmultiset.__version__


def test_no_file_contains_a_path(finished, digits):
    _, folder, _, _ = finished
    for file in ("config.toml", "run.json", "model/predictor.json", "best/predictor.json"):
        text = (folder / file).read_text()
        assert str(digits.parent) not in text
        assert str(Path.home()) + "/" not in text
        assert socket.gethostname() not in text
    assert read_record(folder)["command"] == "multiset train --data digits --out=first"
    assert read_config(folder / "config.toml")["data"] == "digits"


def test_the_model_is_the_best_one_with_its_test_scores(finished, digits):
    _, folder, result, _ = finished
    model = Predictor.load(folder / "model")
    best = Predictor.load(folder / "best")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), best.state_dict().values(), strict=True))
    history = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    assert result.record["validation_em"] == max(line["validation_em"] for line in history)
    splits = load_data(digits)
    batch = splits["test"].batch(np.arange(20))
    em = float(exact_match(model.predict(batch.x), batch.target).mean())
    assert result.report.overall.exact_match == pytest.approx(em)
    assert model.record["metrics"]["test"]["overall"]["exact_match"] == pytest.approx(em)
    assert model.record["input"] == {"shape": [1, 28, 28], "dtype": "uint8", "exif": False}
    rows = [tuple(row) for row in splits["train"].counts.tolist()]
    assert rows.count(tuple(model.record["constant"])) == max(map(rows.count, rows))


def test_the_model_has_a_card(finished):
    _, folder, result, _ = finished
    card = (folder / "model" / "README.md").read_text()
    report = result.report
    (row,) = re.findall(r"^\| all \|.*$", card, flags=re.MULTILINE)
    assert row.startswith(f"| all | 20 | {report.overall.exact_match:.3f} (")
    assert row.endswith(f") | {report.overall.f1:.3f} | {report.class_f1:.3f} |")
    assert re.findall(r"^\| [12] \|.* \| - \|$", card, flags=re.MULTILINE)  # there is no class F1 by size
    assert result.record["command"] in card
    assert "1 x 28 x 28" in card


def test_a_run_is_reproduced_from_its_config(finished, tmp_path):
    config, folder, result, _ = finished
    saved = read_config(folder / "config.toml")
    resolved = to_dict(prepare(config).config)
    assert differences(saved, translated(resolved)) == []
    assert saved.keys() == translated(resolved).keys()
    again = train_run(prepare(config).config, tmp_path / "again")
    assert again.report == result.report
    weights = [Predictor.load(run / "model").state_dict() for run in (folder, tmp_path / "again")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_folder_with_a_run_is_refused_unless_resumed(finished):
    config, folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(FileExistsError, match="contains a finished run"):
        train_run(config, folder)
    result = train_run(config, folder, resume=True)
    assert (result.record["finished"], result.report) == (True, None)
    other = replace(config, optim=replace(OPTIM, epochs=5, lr=0.1), seed=4)
    with pytest.raises(ValueError, match=r"epochs was 2 and is now 5; lr was 0\.003 and is now 0\.1; seed was 3"):
        train_run(other, folder, resume=True)
    with pytest.raises(ValueError, match="precision was 32-true and is now bf16-mixed"):
        train_run(replace(config, optim=replace(OPTIM, precision="bf16-mixed")), folder, resume=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_older_than_a_setting_resumes(finished, tmp_path):
    config, folder, _, _ = finished
    shutil.copytree(folder, tmp_path / "old")
    lines = (folder / "config.toml").read_text().splitlines()
    younger = ("count_head", "views", "augment")
    (tmp_path / "old" / "config.toml").write_text("\n".join(line for line in lines if not line.startswith(younger)))
    assert train_run(config, tmp_path / "old", resume=True).record["finished"]


def test_a_run_with_a_removed_setting_resumes_if_it_had_no_effect(finished, tmp_path):
    config, folder, _, _ = finished
    shutil.copytree(folder, tmp_path / "old")
    saved = tmp_path / "old" / "config.toml"
    lines = saved.read_text()
    saved.write_text(lines + "coaching = 0.0\n")
    assert train_run(config, tmp_path / "old", resume=True).record["finished"]
    saved.write_text(lines + "coaching = 0.5\n")
    with pytest.raises(
        ValueError, match=r"config\.toml has coaching = 0\.5, but this setting was removed: .* default, 0\.0"
    ):
        train_run(config, tmp_path / "old", resume=True)
    saved.write_text(lines.replace('strategy = "greedy"', 'strategy = "mixed"'))
    with pytest.raises(ValueError, match="strategy was mixed and is now greedy"):
        train_run(config, tmp_path / "old", resume=True)


def test_an_interrupted_run_resumes_exactly(finished, tmp_path):
    config, folder, result, _ = finished

    class Stop(Exception):
        pass

    def stop_after_an_epoch(progress):
        if progress.epoch == 1 and progress.step == 2:
            raise Stop

    with pytest.raises(Stop):
        train_run(config, tmp_path / "run", watch=lambda _: stop_after_an_epoch)
    assert not read_record(tmp_path / "run")["finished"]
    with pytest.raises(FileExistsError, match="contains an unfinished run"):
        train_run(config, tmp_path / "run")
    stopped = read_record(tmp_path / "run") | {"minutes": 100.0}
    (tmp_path / "run" / "run.json").write_text(json.dumps(stopped))
    resumed = train_run(config, tmp_path / "run", resume=True)
    assert resumed.report == result.report
    assert 100 <= resumed.record["minutes"] < 200
    weights = [Predictor.load(run / "model").state_dict() for run in (folder, tmp_path / "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_can_start_from_the_weights_of_another(finished, config, tmp_path):
    _, folder, _, _ = finished
    messages: list[str] = []
    slow = replace(OPTIM, epochs=1, lr=1e-12)  # so the weights hardly change
    later = replace(config, model=replace(MODEL, start_from=str(folder)), optim=slow, seed=4)
    command = ["multiset", "train", "--start-from", str(folder)]
    result = train_run(later, tmp_path / "later", command=command, say=messages.append)
    begun, ended = (Predictor.load(run / "model").state_dict() for run in (folder, tmp_path / "later"))
    learned = [name for name in begun if "running" not in name and "tracked" not in name]
    assert all(torch.allclose(begun[name], ended[name], atol=1e-6) for name in learned)
    assert "Starting from the weights of first: all of them." in messages
    assert result.record["start"]["anew"] == ()
    assert result.record["start"]["data"]["name"] == "digits"
    assert (
        "- Initialised with the weights of first, trained on digits, "
        in (tmp_path / "later/model/README.md").read_text()
    )
    for file in ("config.toml", "run.json", "model/predictor.json", "model/README.md"):
        assert str(folder.parent) not in (tmp_path / "later" / file).read_text()
    assert len(result.record["start"]["weights_sha256"]) == 64
    with pytest.raises(ValueError, match="start_from was first and is now not set"):
        train_run(replace(later, model=MODEL), tmp_path / "later", resume=True)


def test_a_resumed_run_does_not_load_the_initial_weights_again(finished, config, tmp_path):
    shutil.copytree(finished[1], tmp_path / "first")
    later = replace(config, model=replace(MODEL, start_from=str(tmp_path / "first")))

    def stop(progress):
        if progress.epoch == 1:
            raise KeyboardInterrupt

    whole = train_run(later, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_run(later, tmp_path / "run", watch=lambda _: stop)
    other = replace(config, model=replace(MODEL, start_from="mnist-multi-4"))
    with pytest.raises(ValueError, match="start_from was first and is now mnist-multi-4"):
        train_run(other, tmp_path / "run", resume=True)
    shutil.rmtree(tmp_path / "first")  # only the checkpoint is needed
    resumed = train_run(later, tmp_path / "run", resume=True)
    assert resumed.report == whole.report
    assert resumed.record["start"] == json.loads(json.dumps(whole.record["start"]))


def test_a_model_to_start_from_must_have_the_same_columns(config, tmp_path):
    table = "{},{},labels,split\n1,2,x,train\n3,4,y,train\n5,6,y,validation\n"
    runs = {}
    for name, columns in {"first": "ab", "same": "ab", "turned": "ba"}.items():
        (tmp_path / f"{name}.csv").write_text(table.format(*columns))
        runs[name] = replace(config, data=DataConfig(data=str(tmp_path / f"{name}.csv")), model=ModelConfig())
    train_run(runs["first"], tmp_path / "first")
    begun = ModelConfig(start_from=str(tmp_path / "first"))
    train_run(replace(runs["same"], model=begun), tmp_path / "same")
    with pytest.raises(ValueError, match="reads the columns a, b, but the data has b, a"):
        train_run(replace(runs["turned"], model=begun), tmp_path / "turned")


def test_with_other_classes_only_the_encoder_is_initialised(finished, config, tmp_path):
    build(tmp_path / "others", replace(TINY, classes=(2, 3)), load_digits("bundled"))
    other = replace(config, data=DataConfig(data=str(tmp_path / "others")), optim=replace(OPTIM, epochs=1))
    messages: list[str] = []
    result = train_run(
        replace(other, model=replace(MODEL, start_from=str(finished[1]))), tmp_path / "r", say=messages.append
    )
    anew = result.record["start"]["anew"]
    assert anew
    assert all(name.startswith("head.") for name in anew)
    assert any(f"all but {len(anew)} tensors, which do not fit" in line for line in messages)

    wider = replace(config, model=replace(MODEL, channels=(7, 6), start_from=str(finished[1])))
    with pytest.raises(ValueError, match=r"has another encoder: the shapes of encoder\..*leave out start_from"):
        train_run(wider, tmp_path / "wider")
    assert not (tmp_path / "wider").exists()
    nowhere = replace(config, model=replace(MODEL, start_from="nowhere"))
    with pytest.raises(FileNotFoundError, match="there is no model nowhere"):
        train_run(nowhere, tmp_path / "nowhere")


def test_another_data_set_of_the_same_name_is_not_resumed(config, digits, tmp_path):
    build(tmp_path / "digits", replace(TINY, seed=1), load_digits("bundled"))

    def stop(progress):
        if progress.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run", watch=lambda _: stop)
    with pytest.raises(ValueError, match=r"the data was .* and is now"):
        train_run(replace(config, data=DataConfig(data=str(tmp_path / "digits"))), tmp_path / "run", resume=True)


def test_a_run_that_failed_before_training_can_be_started_again(config, pets, tmp_path):
    own = replace(config, data=DataConfig(data=str(pets), image_size=32))
    with pytest.raises(ValueError, match="rank 'area' needs areas"):
        train_run(replace(own, objective=ObjectiveConfig(objective="seq", rank="area")), tmp_path / "run")
    assert train_run(own, tmp_path / "run").record["finished"]


def test_own_images_without_test_examples_are_tested_on_validation(config, pets, tmp_path):
    own = replace(config, data=DataConfig(data=str(pets), image_size=32))
    result = train_run(own, tmp_path / "run")
    assert result.report.split == "validation"
    assert "validation" in result.record
    assert Predictor.load(tmp_path / "run" / "model").record["input"]["exif"]


def test_predictions_of_vectors_are_drawn_as_bars(config, tmp_path, figures_of_runs):
    rows = [f"{i},{i % 3},{'x' * (i % 2) or 'y'},{['train', 'validation', 'test'][i % 3]}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,labels,split", *rows]))
    result = train_run(replace(config, data=DataConfig(data=str(tmp_path / "t.csv"))), tmp_path / "run")
    assert result.report.overall.examples == 4
    assert (tmp_path / "run" / "curve.png").exists()
    assert (tmp_path / "run" / "predictions.png").exists()


def test_features_of_a_backbone_replace_images(config, pets, tmp_path, figures_of_runs):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    data = DataConfig(data=str(pets / "labels.csv"), backbone="efficientnet-lite0", image_size=64)
    own = replace(config, data=data, model=ModelConfig(hidden=8, units=(8,)))
    result = train_run(own, tmp_path / "run")
    assert (pets / "labels-efficientnet-lite0-64" / "features.f16").exists()
    model = Predictor.load(tmp_path / "run" / "model")
    assert model.record["input"]["shape"] == [3, 64, 64]
    assert model.encoder.fingerprint == make_backbone("efficientnet-lite0").fingerprint()
    assert result.report.overall.examples == 4
    assert (tmp_path / "run" / "predictions.png").exists()


def test_cached_features_stay_with_their_images_if_the_splits_change(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    build(tmp_path / "digits", replace(TINY, train=6, validation=3, test=1), load_digits("bundled"))
    data = DataConfig(data=str(tmp_path / "digits"), backbone="efficientnet-lite0")
    backbone = make_backbone("efficientnet-lite0", strides=data.strides or (32,))
    for holdout in ("1/3", "validation", "2/3"):
        task = prepare(RunConfig(data=replace(data, holdout=holdout)))
        images, features = (task_splits["train"].batch(range(6)).x for task_splits in (task.pictures, task.splits))
        torch.testing.assert_close(features.float(), backbone(images), rtol=0, atol=0.01)
    (index,) = tmp_path.glob("digits-*/index.jsonl")
    assert len(index.read_text().splitlines()) == 10


def test_features_of_data_on_a_read_only_disk_are_cached_for_the_user(config, pets, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr("os.access", lambda *_: False)
    data = DataConfig(data=str(pets / "labels.csv"), backbone="efficientnet-lite0", image_size=64)
    task = prepare(replace(config, data=data, model=ModelConfig(hidden=8, units=(8,))))
    assert task.shape == (1280, 2, 2)
    (folder,) = (tmp_path / "caches" / "torchmultiset" / "features").iterdir()
    assert folder.name.startswith("labels-efficientnet-lite0-64-")
    assert not (pets / "labels-efficientnet-lite0-64").exists()


def test_boxes_refer_to_the_height_of_images_not_of_features(config, pets, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    heights = []

    def stop_here(*_, height, **__):
        heights.append(height)
        raise KeyboardInterrupt

    monkeypatch.setattr("torchmultiset.pipeline.run.build_objective", stop_here)
    data = DataConfig(data=str(pets / "labels.csv"), backbone="efficientnet-lite0", image_size=64)
    with pytest.raises(KeyboardInterrupt):
        train_run(replace(config, data=data, model=ModelConfig(hidden=8, units=(8,))), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run")
    assert heights == [64, 28]


def test_every_objective_of_the_paper_is_trained(config, tmp_path, monkeypatch):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)  # no figures, which are slow
    for name in ("multi", "rl", "dm-l1", "dm-kl", "seq", "one-step"):
        short = replace(config, objective=ObjectiveConfig(objective=name), optim=replace(OPTIM, epochs=1))
        assert train_run(short, tmp_path / name).record["finished"]


def test_tensorboard_receives_each_epoch_once(config, tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_scalar(self, name, value, step):
            written.append((Path(self.folder).name, name, value, step))

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("torchmultiset.pipeline.record.find_spec", lambda name: name == "tensorboard" or None)
    train_run(config, tmp_path / "run")
    history = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    ems = [
        (value, step) for folder, name, value, step in written if name == "validation_em" and folder == "tensorboard"
    ]
    assert ems == [(line["validation_em"], line["epoch"]) for line in history]


def test_without_matplotlib_no_figures_are_drawn(config, tmp_path, monkeypatch, figures_of_runs):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)
    assert train_run(config, tmp_path / "run").record["finished"]
    assert not list((tmp_path / "run").glob("*.png"))


# Records


def test_absolute_paths_are_removed_from_records():
    assert portable("../data/x") == "../data/x"
    assert portable("~/digits") == "digits"
    assert portable("") == ""
    assert portable_command(["--data=" + str(Path.cwd() / "a" / "b.csv"), "--lr=1"]) == ["--data=a/b.csv", "--lr=1"]


def test_config_files_are_read_and_invalid_ones_refused(tmp_path):
    (tmp_path / "a.toml").write_text("epochs = 3\nchannels = [4, 5]\n")
    assert read_config(tmp_path / "a.toml") == {"epochs": 3, "channels": [4, 5]}
    (tmp_path / "b.toml").write_text("")
    assert read_config(tmp_path / "b.toml") == {}
    (tmp_path / "old.toml").write_text("epochs = 3\ncoaching = 0\n")
    assert read_config(tmp_path / "old.toml") == {"epochs": 3}
    for name, text, message in [
        ("c.toml", "epochs = ", "c.toml is not TOML"),
        ("d.yaml", "epochs: 3", "must end in .toml, but is .*d.yaml: write one line for each setting"),
        ("f.json", "{}", "must end in .toml"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no config file"):
        read_config(tmp_path / "no.toml")


def test_an_unreadable_config_file_is_reported(monkeypatch, tmp_path):
    name = "a.toml"

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", name)

    (tmp_path / name).write_text("")
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        read_config(tmp_path / name)


def test_a_damaged_record_is_reported_in_one_line(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_record(tmp_path)


# Number of processes


@pytest.mark.parametrize(
    ("cores", "batch_size", "processes"), [(1, 64, 1), (2, 64, 2), (2, 63, 1), (8, 96, 3), (2, 8, 1)]
)
def test_there_is_a_process_for_each_core_with_32_examples(monkeypatch, cores, batch_size, processes):
    monkeypatch.setattr("torch.get_num_threads", lambda: cores)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert fitting_devices(batch_size) == processes


def test_there_is_a_process_for_each_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert fitting_devices(8) == 4


def test_a_run_resumes_with_its_number_of_processes(config, monkeypatch, tmp_path):
    monkeypatch.setattr("torchmultiset.pipeline.run.fitting_devices", lambda _: 8)
    write_record(tmp_path, {"devices": 1})
    train_run(config, tmp_path, devices=None)
    assert read_record(tmp_path)["processes"] == 1


def test_the_number_of_processes_follows_from_the_chosen_batch_size(config, monkeypatch, tmp_path):
    batch_sizes = []

    def fitting(batch_size):
        batch_sizes.append(batch_size)
        return 1

    monkeypatch.setattr("torchmultiset.pipeline.run.fitting_devices", fitting)
    open_ = replace(config, optim=replace(config.optim, batch_size=None))
    train_run(open_, tmp_path / "run", devices=None)
    assert batch_sizes == [read_config(tmp_path / "run" / "config.toml")["batch_size"]]


def test_only_gpus_with_double_precision_are_used(monkeypatch):
    monkeypatch.setattr("lightning_fabric.accelerators.MPSAccelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert local_fabric().device.type == "cpu"
