"""User data: one command without flags trains and tests a model."""

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

from torchmultiset.data.examples import Examples
from torchmultiset.data.manifest import Manifest, ManifestError, read_manifest
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.objectives import MultisetObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import resolve as picking
from torchmultiset.pipeline.config import DataConfig, ResolvedData, RunConfig
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.resolve import resolve, resolve_objective
from torchmultiset.policies import LSTMPolicy
from torchmultiset.training import fit
from torchmultiset.training.config import OptimConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


_RESOLVED = OptimConfig.resolved


def _resolved(epochs: int):
    """Return a replacement of `OptimConfig.resolved` for quick runs."""

    def quick(self, examples, **more):
        return _RESOLVED(replace(self, epochs=epochs, batch_size=16), examples, **more)

    return quick


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Run:
    """The command line in an empty folder, with two epochs per run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OptimConfig, "resolved", _resolved(2))
    return runner(capsys, monkeypatch)


def write_table(path: Path, rows: int = 60) -> None:
    """Write a table of tickets and sandwiches with inputs of very different scales."""
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


def write_arrays(folder: Path, shape: tuple[int, ...], number: int = 20) -> None:
    folder.mkdir()
    rng, lines = np.random.default_rng(0), []
    for i in range(number):
        np.save(folder / f"{i}.npy", rng.random(shape).astype(np.float32))
        lines.append(json.dumps({"array": f"{i}.npy", "labels": ["x", "y", "y"][: 1 + i % 3]}))
    (folder / "labels.jsonl").write_text("\n".join(lines))


def write_hats(path: Path) -> None:
    """Write a table in which red means a hat, and in which the irrelevant distance is often missing."""
    lines = []
    for i in range(60):
        hats, people, metres = i % 2, 1 + i % 3, ["", "1000", "5000"][i // 6 % 3]
        lines.append(f"{'red' if hats else 'blue'},{people},{metres},{people},{hats}")
    path.write_text("\n".join(["colour,people,metres,count:ticket,count:hat", *lines]))


def numbers_of(path: Path) -> str:
    return ", ".join(f"{len(examples)} {name}" for name, examples in read_manifest(path).items())


def choices(lines: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"  (\w+): (.+?) \([^()]*\)", line) for line in lines)
    return dict(match.groups() for match in found if match)


def values(config: RunConfig) -> dict[str, str]:
    return {pick.what: pick.value for pick in prepare(config).choices}


# Commands


def test_a_model_of_a_table_is_trained_and_predicts(run, tmp_path):
    write_table(tmp_path / "trips.csv")
    code, lines, _ = run("train", "trips.csv")
    assert code == 0
    assert choices(lines) == {
        "splits": numbers_of(tmp_path / "trips.csv"), "objective": "counts", "encoder": "mlp", "min_size": "1",
        "max_size": "4",
        "batch_size": "16", "epochs": "2",
    }  # fmt: skip
    assert [line for line in lines if len(line) > 80 and "pip install" not in line] == []  # a command is one line
    assert not any("Unlike the paper" in line for line in lines)
    assert any(line.startswith("this model") for line in lines)
    assert read_record(tmp_path / "runs" / "trips")["finished"]

    tries = [line.split()[1:] for line in lines if line.startswith("  multiset ") and "--help" not in line]
    assert [command[0] for command in tries] == ["predict", "evaluate"]
    for command in tries:
        assert run(*command)[0] == 0

    (tmp_path / "new.csv").write_text("people,metres\n3,9000\n1,50\n")  # without labels
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
    all_rows = run("predict", "runs/trips", "trips.csv", "--json")[1]
    assert len(all_rows) == 60


def test_a_folder_of_small_images_is_trained_from_scratch(run, tmp_path, figures_of_runs):
    draw_dots(tmp_path / "dots", size=(80, 72))
    code, lines, _ = run("train", "dots/")
    assert code == 0
    chosen = choices(lines)
    assert (chosen["backbone"], chosen["image_size"], chosen["objective"]) == ("none", "80", "counts")
    assert (tmp_path / "runs" / "dots" / "predictions.png").exists()
    (tmp_path / "new").mkdir()
    Image.new("RGB", (300, 200)).save(tmp_path / "new" / "a.jpg")
    assert len(run("predict", "runs/dots", "new", "--json")[1]) == 1


def test_training_on_images_can_start_from_a_model_of_grey_images(run, tmp_path):
    draw_dots(tmp_path / "dots", size=(80, 72), number=12)
    code, lines, err = run("train", "dots", "--start-from", "mnist-multi-1-4")
    assert (code, "Traceback" in err) == (0, False)
    assert any(line.startswith("Starting from the weights of mnist-multi-1-4: all but ") for line in lines)
    assert Predictor.load(tmp_path / "runs" / "dots" / "model").record["input"]["shape"] == [1, 100, 100]
    assert run("predict", "runs/dots", "dots/0.png", "--json")[0] == 0
    (_, _, err) = run("train", "dots", "--grey", "--backbone", "efficientnet-lite0", "--out", "new")
    assert "reads colours: leave out grey" in err


def test_photographs_get_a_pretrained_backbone(run, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    draw_dots(tmp_path / "photos", size=(300, 200), number=12, suffix="jpg")
    code, lines, _ = run("train", "photos")
    assert code == 0
    chosen = choices(lines)
    assert (chosen["backbone"], chosen["image_size"]) == ("efficientnet-lite0", "256")
    assert (chosen["objective"], chosen["count_head"]) == ("counts", "table")
    assert (tmp_path / "photos-efficientnet-lite0-256" / "features.f16").exists()
    assert Predictor.load(tmp_path / "runs" / "photos" / "model").record["input"]["shape"] == [3, 256, 256]


@pytest.mark.parametrize("options", [["--views", "2"], ["--finetune", "last", "--mosaic", "0.5"]])
def test_photographs_are_augmented_before_and_after_the_backbone(run, tmp_path, options):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'photos' brings the backbone")
    draw_dots(tmp_path / "photos", size=(64, 64), number=12, suffix="jpg")
    flags = ["--objective", "counts", "--backbone", "efficientnet-lite0", "--image-size", "64"]
    code, _, err = run("train", "photos", *flags, "--augment", "photo-flip", *options)
    assert code == 0, err
    assert Predictor.load(tmp_path / "runs" / "photos").record["input"]["shape"] == [3, 64, 64]


def test_a_model_of_a_jsonl_file_is_trained_and_predicts(run, tmp_path):
    rows = [{"features": [i % 4, i % 3], "labels": {"cat": i % 4, "dog": i % 3}} for i in range(60)]
    (tmp_path / "pets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, lines, _ = run("train", "pets.jsonl")
    assert code == 0
    assert choices(lines)["splits"] == numbers_of(tmp_path / "pets.jsonl")
    assert run("evaluate", "runs/pets", "pets.jsonl")[0] == 0
    (tmp_path / "new.jsonl").write_text('{"features": [3, 0], "id": "a"}\n{"features": [0, 2], "id": "b"}\n')
    code, lines, err = run("predict", "runs/pets", "new.jsonl", "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["input"] for line in lines] == ["a", "b"]


def test_arrays_of_height_and_width_are_images_of_one_channel(run, tmp_path):
    write_arrays(tmp_path / "maps", (40, 44))
    code, lines, _ = run("train", "maps/labels.jsonl")
    assert code == 0
    assert choices(lines)["encoder"] == "conv"
    assert read_record(tmp_path / "runs" / "maps")["finished"]
    assert run("evaluate", "runs/maps", "maps", "--split", "validation")[0] == 0
    known = {}
    for line in run("predict", "runs/maps", "maps", "--json")[1]:
        row = json.loads(line)
        known[row["input"]] = row["labels"]
    assert len(known) == 20
    np.save(tmp_path / "two.npy", np.stack([np.load(tmp_path / "maps" / f"{i}.npy") for i in (0, 1)]))
    _, lines, err = run("predict", "runs/maps", "maps/0.npy", "two.npy", "--json")
    assert err == ""
    assert [json.loads(line)["labels"] for line in lines] == [known["0.npy"], known["0.npy"], known["1.npy"]]


@pytest.mark.usefixtures("without_shape_hook")
def test_arrays_of_height_and_width_can_be_exported(run, tmp_path):
    pytest.importorskip("onnxruntime")
    write_arrays(tmp_path / "maps", (24, 24))
    run("train", "maps", "--hidden", "4", "--channels", "4", "4")
    code, lines, _ = run("export", "runs/maps", "--data", "maps", "--split", "all", "--out", "maps.onnx")
    assert code == 0
    assert lines[0].startswith("maps.onnx agrees with PyTorch on all 20 inputs")
    assert any("shape B x 1 x 24 x 24" in line for line in lines)


def test_too_small_arrays_are_refused_with_the_minimum_size(run, tmp_path):
    write_arrays(tmp_path / "small", (3, 10, 10))
    code, lines, err = run("train", "small")
    assert (code, lines) == (1, [])
    assert (
        "images of at least 20x20 pixels (use fewer convolutions, `channels`, for smaller ones), but is (10, 10)" in err
    )
    write_arrays(tmp_path / "enough", (3, 20, 20))
    assert run("train", "enough", "--hidden", "4")[0] == 0
    assert run("train", "small", "--hidden", "4", "--channels", "8")[0] == 0


def test_a_model_of_a_table_with_texts_and_empty_cells_predicts_for_other_tables(run, tmp_path, monkeypatch):
    monkeypatch.setattr(OptimConfig, "resolved", _resolved(30))
    write_hats(tmp_path / "hats.csv")
    code, lines, _ = run("train", "hats.csv")
    assert code == 0
    assert "  categories: 2 (blue, red) ('colour' holds text)" in lines
    (mean,) = (line for line in lines if line.startswith("  mean: "))
    assert re.fullmatch(r"  mean: \d+ of 'metres' \(for its 24 empty cells\)", mean)
    assert [line for line in lines if len(line) > 80 and "pip install" not in line] == []  # a command is one line
    model = Predictor.load(tmp_path / "runs" / "hats" / "model")
    assert [column["name"] for column in model.record["columns"]] == ["colour", "people", "metres"]
    assert model.record["columns"][0]["categories"] == ["blue", "red"]

    # Another table, without labels and with its columns in another order.
    (tmp_path / "new.csv").write_text("people,metres,colour\n2,1000,red\n3,,blue\n1,5000,red\n")
    code, lines, err = run("predict", "runs/hats", "new.csv", "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["labels"] for line in lines] == [
        {"hat": 1, "ticket": 2}, {"ticket": 3}, {"hat": 1, "ticket": 1},
    ]  # fmt: skip
    assert run("evaluate", "runs/hats", "hats.csv")[0] == 0
    assert run("compare", "hats.csv", "runs/hats", "runs/hats")[0] == 0

    (tmp_path / "wrong.csv").write_text("people,metres\n2,1000\n")
    code, _, err = run("predict", "runs/hats", "wrong.csv")
    assert (code, "the column 'colour', used in training, is missing" in err) == (1, True)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_model_of_a_table_with_texts_is_exported_with_its_columns(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    write_hats(tmp_path / "hats.csv")
    run("train", "hats.csv")
    code, lines, err = run("export", "runs/hats", "--data", "hats.csv", "--out", "hats.onnx")
    assert (code, err) == (0, "")
    assert "in order: colour=blue, colour=red, people, metres. A category is 1 where it applies" in " ".join(lines)
    metadata = onnxruntime.InferenceSession("hats.onnx").get_modelmeta().custom_metadata_map
    assert [column["categories"] for column in json.loads(metadata["columns"])] == [["blue", "red"], [], []]


def test_a_model_without_columns_refuses_texts_and_empty_cells(run, tmp_path):
    rows = [{"features": [i % 4, i % 3], "labels": {"cat": i % 4, "dog": i % 3}} for i in range(20)]
    (tmp_path / "pets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run("train", "pets.jsonl")
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n3,1\n")
    assert run("predict", "runs/pets", "numbers.csv")[0] == 0
    (tmp_path / "texts.csv").write_text("a\nred\nblue\nred\n")
    code, _, err = run("predict", "runs/pets", "texts.csv")
    assert (code, err) == (
        1, "multiset: this model was trained on numbers only, but texts.csv has text or empty cells\n",
    )  # fmt: skip


# Settings chosen from the data


def test_long_names_and_categories_fit_in_a_line(tmp_path):
    path, name = tmp_path / "t.csv", "a column with a name that is much longer than any line"
    rows = [f"{['one such long category', 'another, not shorter one'][i % 2]!r},{i or ''},x" for i in range(40)]
    path.write_text("\n".join([f"{name},{name}!,labels", *rows]).replace("'", '"'))
    for pick in prepare(RunConfig(DataConfig(str(path)))).choices:
        assert len(f"  {pick.what}: {pick.value} ({pick.reason})") <= 80


def test_many_columns_with_texts_and_empty_cells_are_reported_in_a_few_lines(tmp_path):
    names = [*(f"text{i}" for i in range(30)), *(f"number{i}" for i in range(30))]
    rows = [",".join([*["ab"[i % 2]] * 30, *[["", "1"][i % 2]] * 30, "x"]) for i in range(20)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join([*names, "labels"]), *rows]))
    picks = prepare(RunConfig(DataConfig(str(tmp_path / "wide.csv")))).choices
    shown = [pick for pick in picks if pick.what in ("categories", "mean")]
    assert len(shown) == 10
    assert ("categories", "of 26 more columns", "they hold text") in shown
    assert ("mean", "of 26 more columns", "for their empty cells") in shown


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        (20, "more would overfit 13 examples"),
        (300, "about 1,200 steps are usually enough for a first model"),
        (20_000, "each example should be seen a few times"),
    ],
)
def test_the_number_of_epochs_has_a_reason(tmp_path, examples, reason):
    write_table(tmp_path / "trips.csv", examples)
    picks = {pick.what: pick for pick in prepare(RunConfig(DataConfig(str(tmp_path / "trips.csv")))).choices}
    assert picks["epochs"].reason == reason


@pytest.mark.parametrize(
    ("objective", "labels", "expected"),
    [
        (None, ("x", "x;y"), None),  # a count head has no policy
        ("multi", ("x", "x;y"), "policy"),
        (None, ("x;x", "x;y"), "fixed"),  # but its predictions have a fixed size
        ("one-step", ("x;x", "x;y"), None),  # each count is rounded separately
    ],
)
def test_the_stopping_mechanism_is_reported_if_there_is_one(tmp_path, objective, labels, expected):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,labels", *(f"{i},{labels[i % 2]}" for i in range(20))]))
    task = prepare(RunConfig(DataConfig(str(path)), objective=ObjectiveConfig(objective)))
    assert {pick.what: pick.value for pick in task.choices}.get("stop") == expected
    assert task.config.model.stop == ("fixed" if labels[0] == "x;x" else "policy")


@pytest.mark.parametrize(("labels", "objective"), [(3, "counts"), (5, "multi")])
def test_a_tower_that_would_leave_no_map_is_not_chosen(tmp_path, labels, objective):
    write_arrays(tmp_path / "maps", (20, 20))
    config = RunConfig(DataConfig(str(tmp_path / "maps")), ModelConfig(max_size=labels))
    chosen = values(config)
    assert (chosen["channels"], chosen["objective"]) == ("(16, 32)", objective)


@pytest.mark.parametrize(
    ("most", "head"), [(1, "table"), (4, "table"), (5, None), (8, None), (9, "poisson"), (64, "poisson")]
)
def test_photographs_get_a_head_that_suits_the_number_of_objects(most, head):
    auto = ObjectiveConfig(), ModelConfig(), (1280, 8, 8), most
    objective, model, picks = resolve_objective(*auto, backbone=True)
    assert (objective.objective, objective.count_head, model.policy) == ("counts", head, None)
    pooled = ("mean-max", (256,)) if head else (None, None)
    assert (model.pool, model.units, model.dropout) == (*pooled, 0.3)
    assert [(pick.what, pick.value) for pick in picks] == [
        ("objective", "counts"),
        *([("count_head", head)] if head else []),
        ("dropout", "0.3"),
    ]
    heads = ObjectiveConfig(count_head="cells")  # a given count head has the default settings
    objective, model, _ = resolve_objective(heads, ModelConfig(), (1280, 8, 8), most, backbone=True)
    assert (objective.objective, objective.count_head, model) == ("counts", "cells", ModelConfig())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (RunConfig(), ("table", "mean-max", 0.3, 2e-3, 0.05, 0.99, "last")),
        (  # settings of the user are kept
            RunConfig(model=ModelConfig(dropout=0.5), optim=OptimConfig(lr=1e-4, weight_decay=0.2)),
            ("table", "mean-max", 0.5, 1e-4, 0.2, 0.99, "last"),
        ),
        (RunConfig(model=ModelConfig(max_size=5)), ("cells", "mean", 0.3, 3e-3, 0.05, 0.99, "last")),
        (RunConfig(model=ModelConfig(max_size=9)), ("poisson", "mean-max", 0.3, 2e-3, 0.05, 0.99, "last")),
        (RunConfig(objective=ObjectiveConfig("counts")), ("cells", "mean", 0.0, 3e-3, 0.0, 0.0, "score")),
        (RunConfig(objective=ObjectiveConfig(count_head="table")), ("table", "mean", 0.0, 3e-3, 0.0, 0.0, "score")),
    ],
)
def test_the_best_guess_for_photographs_is_regularised_unless_the_user_sets_it(given, expected):
    photos = Examples(np.zeros((12, 1), np.uint8), np.array([[0, 1]] * 6 + [[1, -1]] * 6), ("cat", "dog"))
    data = ResolvedData(data="photos", backbone="efficientnet-lite0", image_size=256)
    resolved, _ = resolve(given, data, photos, (1280, 8, 8))
    model, optim = resolved.model, resolved.optim
    chosen = (resolved.objective.count_head, model.pool, model.dropout)
    assert (*chosen, optim.lr, optim.weight_decay, optim.ema, optim.select) == expected


@pytest.mark.parametrize(
    ("objective", "holdout", "expected"),
    [
        (None, "none", "last"),
        ("multi", "none", "last"),
        ("multi", "1/3", "score"),
    ],
)
def test_without_held_out_examples_the_last_epoch_is_kept(objective, holdout, expected):
    photos = Examples(np.zeros((12, 1), np.uint8), np.array([[0, 1]] * 12), ("cat", "dog"))
    data = ResolvedData(data="photos", backbone="efficientnet-lite0", holdout=holdout)
    resolved, _ = resolve(RunConfig(objective=ObjectiveConfig(objective)), data, photos, (1280, 8, 8))
    assert resolved.optim.select == expected


@pytest.mark.parametrize(
    ("most", "changes", "expected"),
    [
        (3, {}, None),  # a map of 12x12 is large enough
        (6, {}, "(16, 32)"),
        (6, {"objective": "counts"}, None),  # a given objective is kept with its defaults
        (6, {"channels": (8, 8, 16)}, None),
    ],
)
def test_many_objects_get_a_finer_map(tmp_path, most, changes, expected):
    draw_dots(tmp_path / "dots", size=(128, 128), most=most)
    objective = ObjectiveConfig(objective=changes.get("objective", None))
    model = ModelConfig(channels=changes["channels"]) if "channels" in changes else ModelConfig()
    chosen = values(RunConfig(DataConfig(data=str(tmp_path / "dots")), model, objective))
    assert chosen.get("channels") == expected
    assert chosen.get("objective") == (None if "objective" in changes else "counts")


@pytest.mark.parametrize(("policy", "stop"), [("lstm", None), (None, "end")])
def test_a_policy_or_end_selects_the_multiset_loss(tmp_path, policy, stop):
    write_table(tmp_path / "trips.csv")
    chosen = values(RunConfig(DataConfig(data=str(tmp_path / "trips.csv")), ModelConfig(policy=policy, stop=stop)))
    assert chosen["objective"] == "multi"


def test_without_the_extra_photographs_are_trained_from_scratch_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(picking, "find_spec", lambda _: None)
    draw_dots(tmp_path / "photos", size=(300, 200), number=12)
    picks = {pick.what: pick for pick in prepare(RunConfig(DataConfig(str(tmp_path / "photos")))).choices}
    assert (picks["backbone"].value, picks["image_size"].value) == ("none", "128")
    assert "install the extra photos" in picks["backbone"].reason


@pytest.mark.parametrize(("size", "image_size"), [((20, 28), "64"), ((100, 90), "100"), ((128, 128), "128")])
def test_small_images_keep_their_size_unless_the_tower_needs_more(tmp_path, size, image_size):
    draw_dots(tmp_path / "dots", size=size, number=12)
    config = RunConfig(DataConfig(str(tmp_path / "dots")))
    assert values(config)["image_size"] == image_size
    assert prepare(config).shape == (3, int(image_size), int(image_size))


def test_given_settings_are_not_chosen(tmp_path):
    draw_dots(tmp_path / "dots", size=(300, 200), number=12)
    data = DataConfig(str(tmp_path / "dots"), backbone="none", image_size=40)
    assert (
        values(RunConfig(data, ModelConfig(channels=(4,)), optim=OptimConfig(epochs=3)))
        .keys()
        .isdisjoint({"backbone", "image_size", "epochs"})
    )
    # With a given encoder there is no backbone.
    chosen = prepare(RunConfig(DataConfig(str(tmp_path / "dots")), ModelConfig(encoder="conv")))
    assert chosen.config.data.backbone == "none"


def test_given_splits_are_not_drawn(tmp_path):
    (tmp_path / "t.csv").write_text("a,labels,split\n1,x,train\n2,y;x,train\n3,x,validation\n")
    assert "splits" not in values(RunConfig(DataConfig(str(tmp_path / "t.csv"))))


def test_the_number_of_epochs_falls_with_the_number_of_examples():
    epochs = [OptimConfig().resolved(n).epochs for n in (1, 210, 1000, 10_000, 1_000_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] >= 8
    assert epochs[1] > 50


# Errors


def test_a_damaged_image_is_reported_with_its_line_before_training(run, tmp_path):
    draw_dots(tmp_path / "dots", size=(80, 72))
    (tmp_path / "dots" / "3.png").write_bytes(b"no image")
    code, lines, err = run("train", "dots")
    assert (code, lines) == (1, [])
    assert "1 problem in dots/labels.csv:\n  line 5: " in err
    assert not (tmp_path / "runs").exists()


def test_data_specified_twice_is_refused(run, tmp_path):
    code, _, err = run("train", "a.csv", "--data", "b.csv")
    assert (code, err) == (
        2,
        "multiset: the data set is specified twice, as a.csv and with --data: remove one\nSee: multiset train --help\n",
    )
    (tmp_path / "c.toml").write_text('data = "b.csv"\n')
    code, _, err = run("train", "a.csv", "--config", "c.toml")  # arguments override files
    assert (code, err) == (1, "multiset: there is no file or folder a.csv\n")


def test_a_folder_without_a_list_is_refused_with_the_missing_file(run, tmp_path):
    (tmp_path / "photos").mkdir()
    code, _, err = run("train", "photos")
    assert code == 1
    assert "labels.csv" in err


def test_targets_larger_than_max_size_are_refused(tmp_path):
    predictor = Predictor(MLPEncoder(1), LSTMPolicy(1, 128), ("x",), max_size=2)
    examples = Examples(np.zeros((2, 1), np.float32), np.array([[0, -1, -1], [0, 0, 0]]), ("x",))
    with pytest.raises(
        ValueError, match="a multiset of 3 labels, but the predictor emits at most 2: build it with max_size=3"
    ):
        fit(predictor, MultisetObjective(), examples, examples, OptimConfig(epochs=1), tmp_path)
    small = examples.subset([0])
    assert fit(predictor, MultisetObjective(), small, examples, OptimConfig(epochs=1), tmp_path).epoch == 1


def test_f1_selects_the_weights_while_exact_match_is_zero(tmp_path, monkeypatch):
    validations = iter([(0.0, 0.2), (0.0, 0.5), (0.0, 0.4), (0.1, 0.3), (0.1, 0.9)])
    monkeypatch.setattr("torchmultiset.training.loop._validate", lambda *_: next(validations))
    ours = tiny_task("plain", epochs=5)
    best = []
    fit(*ours, tmp_path, watch=lambda progress: best.append((progress.epoch, progress.best_em, progress.best_f1)))
    assert sorted({*best[1:]}) == [
        (0, -1.0, -1.0), (1, 0.0, 0.2), (2, 0.0, 0.5), (3, 0.0, 0.5), (4, 0.1, 0.3), (5, 0.1, 0.3),
    ]  # fmt: skip
    assert Predictor.load(tmp_path / "best").record["epoch"] == 4


# Reading data


def test_a_manifest_has_images_labels_and_splits_before_inputs_are_read(tmp_path):
    draw_dots(tmp_path / "dots", size=(8, 8), number=2)
    dots = Manifest.read(tmp_path / "dots")
    assert dots.images == [tmp_path / "dots" / "0.png", tmp_path / "dots" / "1.png"]
    assert not dots.has_splits
    (tmp_path / "t.jsonl").write_text('{"features": [1], "split": "train"}\n{"features": [2], "split": "test"}\n')
    table = Manifest.read(tmp_path / "t.jsonl", classes=["a"], labelled=False)
    assert (table.images, table.has_splits) == ([], True)


@pytest.mark.parametrize(("name", "text"), [("t.csv", "a,b\n1,2\n3,4\n"), ("t.jsonl", '{"features": [1, 2]}\n' * 2)])
def test_inputs_without_labels_can_be_read_on_request(tmp_path, name, text):
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
    scaled = (x - encoder.mean) / encoder.spread
    assert torch.allclose(scaled[:, [0, 2]].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(scaled[:, [0, 2]].pow(2).mean(0), torch.ones(2), atol=1e-5)
    assert scaled[:, 1].abs().max() < 1e-6  # a constant column
    other = MLPEncoder(3)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), encoder(x))


# Too little data


def readme_pets(folder: Path) -> Path:
    """Write the table of the README, with an image for each of its rows."""
    (table,) = re.findall(r"^```\n(image,labels\n.*?)^```$", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    for line in table.splitlines()[1:]:
        Image.new("RGB", (64, 48), "white").save(folder / line.split(",")[0])
    path = folder / "pets.csv"
    path.write_text(table)
    return path


def test_the_three_lines_of_the_readme_are_refused_with_the_number_needed(run, tmp_path):
    readme_pets(tmp_path)
    code, out, err = run("train", "pets.csv")
    assert (code, out) == (1, [])
    assert err == (
        "multiset: pets.csv has 3 examples (2 with labels), too few to split into training, validation and test data:"
        " add examples until there are at least 10 (a few hundred make a useful model), or give each a 'split'\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_every_small_table_without_splits_is_refused(run, tmp_path, rows):
    write_table(tmp_path / "trip.csv", rows)
    code, _, err = run("train", "trip.csv")
    assert code == 1
    assert f"trip.csv has {rows} example{'s' * (rows > 1)} ({rows} with labels), too few to split" in err


def test_problems_of_lines_are_reported_first(run, tmp_path):
    readme_pets(tmp_path)
    (tmp_path / "sofa.jpg").unlink()
    code, _, err = run("train", "pets.csv")
    assert (code, err) == (
        1,
        "multiset: 1 problem in pets.csv:\n  line 3: there is no file sofa.jpg: correct the path, or remove the line\n",
    )


def test_the_number_of_examples_in_the_message_is_sufficient(run, tmp_path):
    write_table(tmp_path / "trip.csv", 10)
    code, out, err = run("train", "trip.csv")
    assert code == 0, err
    assert any(line.startswith("  splits: 7 train, 1 validation, 2 test (") for line in out)
    assert read_record(tmp_path / "runs" / "trip")["finished"]


def test_with_given_splits_a_few_lines_suffice(run, tmp_path):
    (tmp_path / "trip.csv").write_text("people,labels,split\n1,ticket,train\n2,ticket:2,validation\n3,ticket:3,test\n")
    code, _, err = run("train", "trip.csv")
    assert code == 0, err


@pytest.mark.parametrize("labelled", range(10))
def test_the_only_example_with_a_label_is_for_training(run, tmp_path, labelled):
    lines = [f"{i},{'cat' if i == labelled else ''}" for i in range(10)]
    (tmp_path / "cats.csv").write_text("\n".join(["weight,labels", *lines]))
    code, _, err = run("train", "cats.csv")
    assert code == 0, err


@pytest.mark.parametrize(
    ("number", "counted"),
    [(1, "1 training example and no label in it"), (3, "3 training examples and no label in them")],
)
def test_training_examples_without_a_label_are_reported(run, tmp_path, number, counted):
    lines = ["weight,labels,split", *(f"{i},,train" for i in range(number)), "8,cat,validation", "9,cat,test"]
    (tmp_path / "cats.csv").write_text("\n".join(lines))
    for flags in ((), ("--max-size", "2")):
        code, _, err = run("train", "cats.csv", *flags)
        assert (code, err) == (1, f"multiset: cats.csv has {counted}: add training examples with labels\n")


def test_a_table_without_labels_is_refused(run, tmp_path):
    (tmp_path / "cats.csv").write_text("weight,labels\n" + "1,\n" * 12)
    code, _, err = run("train", "cats.csv")
    assert code == 1
    assert "cats.csv" in err
    assert "no line has a label: add examples with labels" in err
