"""Data of one's own, from a file to a model that was tested, with one command and no flag."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Run, runner
from PIL import Image, ImageDraw
from tiny_runs import task as tiny_task

from torchmultiset import task as picking
from torchmultiset.config import DataConfig, ModelConfig, ObjectiveConfig, OptimConfig, RunConfig
from torchmultiset.data.examples import Examples
from torchmultiset.data.manifest import ManifestError, glance, read_manifest
from torchmultiset.encoders import MLPEncoder
from torchmultiset.objectives import MultisetObjective
from torchmultiset.policies import LSTMPolicy
from torchmultiset.predictor import Predictor
from torchmultiset.record import read_record
from torchmultiset.task import prepare
from torchmultiset.training import fit


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Run:
    """The command line, in an empty folder, where a few epochs are enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OptimConfig, "settled", lambda self, _: replace(self, epochs=2, batch_size=16))
    return runner(capsys, monkeypatch)


def write_table(path: Path, rows: int = 60) -> None:
    """Tickets for all, and a sandwich if it is far: in units that differ a lot."""
    lines = [f"{1 + i % 3},{1000 * (i % 7)},{1 + i % 3},{int(i % 7 > 3)}" for i in range(rows)]
    path.write_text("\n".join(["people,metres,count:ticket,count:sandwich", *lines]))


def draw_dots(folder: Path, *, size: tuple[int, int], number: int = 24, suffix: str = "png", most: int = 3) -> None:
    folder.mkdir()
    lines = ["image,labels"]
    for i in range(number):
        image = Image.new("RGB", size, "white")
        pen = ImageDraw.Draw(image)
        labels = (["red", "blue", "blue"] * 2)[: 1 + i % most]
        for place, colour in enumerate(labels):
            left = 2 + place * size[0] // 3
            pen.ellipse([left, 4 + i, left + size[0] // 4, 4 + i + size[0] // 4], fill=colour)
        image.save(folder / f"{i}.{suffix}")
        lines.append(f"{i}.{suffix},{';'.join(labels)}")
    (folder / "labels.csv").write_text("\n".join(lines))


def picked(lines: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"Picked (\w+) (.+?): .+\.", line) for line in lines)
    return dict(match.groups() for match in found if match)


def values(config: RunConfig) -> dict[str, str]:
    return {pick.what: pick.value for pick in prepare(config).picks}


# One command


def test_a_table_becomes_a_model_that_predicts(run, tmp_path):
    write_table(tmp_path / "trips.csv")
    code, lines, _ = run("train", "trips.csv")
    assert code == 0
    assert picked(lines) == {
        "splits": "70% train, 15% validation, 15% test", "objective": "counts", "encoder": "mlp", "max_size": "4",
        "stop": "policy", "batch_size": "16", "epochs": "2",
    }  # fmt: skip
    assert not any("Unlike the paper" in line for line in lines)
    assert any(line.startswith("this model") for line in lines)
    assert read_record(tmp_path / "runs" / "trips")["finished"]

    tries = [line.split()[1:] for line in lines if line.startswith("  multiset ") and "--help" not in line]
    assert [command[0] for command in tries] == ["predict", "evaluate"]
    for command in tries:
        assert run(*command)[0] == 0

    (tmp_path / "new.csv").write_text("people,metres\n3,9000\n1,50\n")  # nobody knows the answer yet
    code, lines, err = run("predict", "runs/trips", "new.csv", "--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in lines]
    assert [row["input"] for row in rows] == ["line 2", "line 3"]
    assert all(row["labels"].keys() <= {"ticket", "sandwich"} and "truth" not in row for row in rows)


def test_the_test_examples_of_training_can_be_predicted_again(run, tmp_path):
    write_table(tmp_path / "trips.csv")
    run("train", "trips.csv")
    names = {
        json.loads(line)["input"] for line in run("predict", "runs/trips", "trips.csv", "--split", "test", "--json")[1]
    }
    assert names == {*read_manifest(tmp_path / "trips.csv")["test"].ids}
    everyone = run("predict", "runs/trips", "trips.csv", "--json")[1]
    assert len(everyone) == 60


def test_a_folder_of_small_images_is_learned_from_scratch(run, tmp_path):
    draw_dots(tmp_path / "dots", size=(80, 72))
    code, lines, _ = run("train", "dots/", "--channels", "4", "4", "--hidden", "4")
    assert code == 0
    told = picked(lines)
    assert (told["backbone"], told["image_size"], told["objective"]) == ("none", "80", "counts")
    assert (tmp_path / "runs" / "dots" / "predictions.png").exists()
    (tmp_path / "new").mkdir()
    Image.new("RGB", (300, 200)).save(tmp_path / "new" / "a.jpg")
    assert len(run("predict", "runs/dots", "new", "--json")[1]) == 1


def test_photographs_get_a_pretrained_backbone(run, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    draw_dots(tmp_path / "photos", size=(300, 200), number=9, suffix="jpg")
    code, lines, _ = run("train", "photos", "--image-size", "64", "--hidden", "4", "--units", "4")
    assert code == 0
    assert picked(lines)["backbone"] == "efficientnet-lite0"
    assert (tmp_path / "photos-efficientnet-lite0-64" / "features.f16").exists()
    assert Predictor.load(tmp_path / "runs" / "photos" / "model").record["input"]["shape"] == [3, 64, 64]


# What is picked


@pytest.mark.parametrize(
    ("most", "changes", "expected"),
    [
        (3, {}, None),  # a map of 12x12 has room for them
        (6, {}, "(16, 32)"),
        (6, {"objective": "counts"}, None),  # who chooses chooses all of it
        (6, {"channels": (8, 8, 16)}, None),
    ],
)
def test_many_objects_get_a_finer_map(tmp_path, most, changes, expected):
    draw_dots(tmp_path / "dots", size=(128, 128), most=most)
    objective = ObjectiveConfig(objective=changes.get("objective", "auto"))
    model = ModelConfig(channels=changes["channels"]) if "channels" in changes else ModelConfig()
    told = values(RunConfig(DataConfig(data=str(tmp_path / "dots")), model, objective))
    assert told.get("channels") == expected
    assert told.get("objective") == (None if "objective" in changes else "counts")


@pytest.mark.parametrize(("policy", "stop"), [("lstm", "auto"), ("auto", "end")])
def test_who_asks_for_a_policy_or_for_end_gets_the_multiset_loss(tmp_path, policy, stop):
    write_table(tmp_path / "trips.csv")
    told = values(RunConfig(DataConfig(data=str(tmp_path / "trips.csv")), ModelConfig(policy=policy, stop=stop)))
    assert told["objective"] == "multi"


def test_without_the_extra_photographs_are_learned_from_scratch_with_a_word_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(picking, "find_spec", lambda _: None)
    draw_dots(tmp_path / "photos", size=(300, 200), number=9)
    picks = {pick.what: pick for pick in prepare(RunConfig(DataConfig(str(tmp_path / "photos")))).picks}
    assert (picks["backbone"].value, picks["image_size"].value) == ("none", "128")
    assert 'pip install "torchmultiset[coco]"' in picks["backbone"].reason


@pytest.mark.parametrize(("size", "image_size"), [((20, 28), "64"), ((100, 90), "100"), ((128, 128), "128")])
def test_small_images_keep_their_size_unless_the_tower_needs_more(tmp_path, size, image_size):
    draw_dots(tmp_path / "dots", size=size, number=6)
    config = RunConfig(DataConfig(str(tmp_path / "dots")))
    assert values(config)["image_size"] == image_size
    assert prepare(config).shape == (3, int(image_size), int(image_size))


def test_what_is_given_is_not_picked(tmp_path):
    draw_dots(tmp_path / "dots", size=(300, 200), number=6)
    data = DataConfig(str(tmp_path / "dots"), backbone="none", image_size=40)
    assert (
        values(RunConfig(data, ModelConfig(channels=(4,)), optim=OptimConfig(epochs=3)))
        .keys()
        .isdisjoint({"backbone", "image_size", "epochs"})
    )
    # An encoder of one's choice leaves no room for a backbone.
    chosen = prepare(RunConfig(DataConfig(str(tmp_path / "dots")), ModelConfig(encoder="conv")))
    assert chosen.config.data.backbone == "none"


def test_splits_that_are_named_are_not_picked(tmp_path):
    (tmp_path / "t.csv").write_text("a,labels,split\n1,x,train\n2,y;x,train\n3,x,validation\n")
    assert "splits" not in values(RunConfig(DataConfig(str(tmp_path / "t.csv"))))


def test_few_examples_are_seen_often_and_many_a_few_times():
    epochs = [OptimConfig().settled(n).epochs for n in (1, 210, 1000, 10_000, 1_000_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] >= 8
    assert epochs[1] > 50


# What goes wrong


def test_a_damaged_image_is_told_with_its_line_before_anything_is_learned(run, tmp_path):
    draw_dots(tmp_path / "dots", size=(80, 72))
    (tmp_path / "dots" / "3.png").write_bytes(b"no image")
    code, lines, err = run("train", "dots")
    assert (code, lines) == (1, [])
    assert "1 problem in dots/labels.csv:\n  line 5: " in err
    assert not (tmp_path / "runs").exists()


def test_data_is_given_once(run, tmp_path):
    code, _, err = run("train", "a.csv", "--data", "b.csv")
    assert (code, err) == (2, "multiset: data is given twice, a.csv and --data: keep one\n")
    (tmp_path / "c.toml").write_text('data = "b.csv"\n')
    code, _, err = run("train", "a.csv", "--config", "c.toml")  # what is typed comes before what is in a file
    assert (code, err) == (1, "multiset: there is no file or folder a.csv\n")


def test_a_folder_without_a_list_says_what_is_missing(run, tmp_path):
    (tmp_path / "photos").mkdir()
    code, _, err = run("train", "photos")
    assert code == 1
    assert "labels.csv" in err


def test_targets_larger_than_the_predictor_can_name_are_refused(tmp_path):
    predictor = Predictor(MLPEncoder(1), LSTMPolicy(1, 128), ("x",), max_size=2)
    examples = Examples(np.zeros((2, 1), np.float32), np.array([[0, -1, -1], [0, 0, 0]]), ("x",))
    with pytest.raises(
        ValueError, match="a multiset of 3 labels, but the predictor names at most 2: build it with max_size=3"
    ):
        fit(predictor, MultisetObjective(), examples, examples, OptimConfig(epochs=1), tmp_path)
    small = examples.subset([0])
    assert fit(predictor, MultisetObjective(), small, examples, OptimConfig(epochs=1), tmp_path).epoch == 1


def test_as_long_as_nothing_is_right_f1_chooses_the_weights(tmp_path, monkeypatch):
    validations = iter([(0.0, 0.2), (0.0, 0.5), (0.0, 0.4), (0.1, 0.3), (0.1, 0.9)])
    monkeypatch.setattr("torchmultiset.training._validate", lambda *_: next(validations))
    ours = tiny_task("plain", epochs=5)
    best = []
    fit(*ours, tmp_path, watch=lambda progress: best.append((progress.epoch, progress.best_em, progress.best_f1)))
    assert sorted({*best[1:]}) == [
        (0, -1.0, -1.0), (1, 0.0, 0.2), (2, 0.0, 0.5), (3, 0.0, 0.5), (4, 0.1, 0.3), (5, 0.1, 0.3),
    ]  # fmt: skip
    assert Predictor.load(tmp_path / "best").record["epoch"] == 4


# Reading


def test_a_glance_says_what_a_file_is_like(tmp_path):
    draw_dots(tmp_path / "dots", size=(8, 8), number=2)
    (tmp_path / "dots" / "1.png").unlink()
    assert glance(tmp_path / "dots") == ((tmp_path / "dots" / "0.png",), True, False)
    (tmp_path / "t.jsonl").write_text('{"features": [1]}\n{"features": [2], "split": "test"}\n')
    assert glance(tmp_path / "t.jsonl") == ((), False, True)


@pytest.mark.parametrize(("name", "text"), [("t.csv", "a,b\n1,2\n3,4\n"), ("t.jsonl", '{"features": [1, 2]}\n' * 2)])
def test_inputs_without_labels_can_be_read_if_one_says_so(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ManifestError, match="labels"):
        read_manifest(tmp_path / name)
    read = read_manifest(tmp_path / name, classes=["x", "y"], labelled=False, fractions=(1, 0, 0))["train"]
    assert read.inputs[np.array([0])].tolist() == [[1, 2]]
    assert read.counts.tolist() == [[0, 0], [0, 0]]


def test_features_are_standardised():
    encoder = MLPEncoder(3)
    x = torch.tensor([[1e6, 0.1, 2.0], [3e6, 0.1, 4.0], [5e6, 0.1, 9.0]])
    encoder.standardise(x)
    seen = (x - encoder.mean) / encoder.spread
    assert torch.allclose(seen[:, [0, 2]].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(seen[:, [0, 2]].pow(2).mean(0), torch.ones(2), atol=1e-5)
    assert seen[:, 1].abs().max() < 1e-6  # one that is always the same says nothing
    other = MLPEncoder(3)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), encoder(x))
