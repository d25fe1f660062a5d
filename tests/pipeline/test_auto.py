"""The portfolio compares candidates on held-out examples and keeps the winner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from workers_here import workers_here

from torchmultiset.data import Examples
from torchmultiset.model.config import ResolvedModel
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import auto, portfolio
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate, candidates, enlarged, finetuned
from torchmultiset.pipeline.config import DataConfig, ResolvedConfig, ResolvedData, RunConfig
from torchmultiset.pipeline.portfolio import CANDIDATES, Portfolio
from torchmultiset.pipeline.predictions import write_counts
from torchmultiset.pipeline.prepare import Task, held_out, prepare
from torchmultiset.pipeline.record import data_record, read_config, read_record, write_record
from torchmultiset.pipeline.standings import PORTFOLIO, Standing, ranked, read_standings, score
from torchmultiset.pipeline.sweep import FinishedRun, Running, Snapshot, SweepResult, Workers
from torchmultiset.training.checkpoint import CHECKPOINT
from torchmultiset.training.config import OptimConfig
from torchmultiset.training.evaluation import Evaluation

QUICK = {"epochs": 10, "batch_size": 4, "lr": 0.01, "select": "last"}
GOOD = Candidate("good", {"objective": "counts", **QUICK}, "learns")
RIDGE = Candidate("ridge", {"objective": "ridge"}, "regression")
BAD = Candidate("bad", {"objective": "counts", **QUICK, "epochs": 1, "lr": 1e-9}, "does not learn")


def write_trips(path: Path, rows: int = 60) -> RunConfig:
    """A table of trips: a ticket for each person, and a sandwich for each if the trip is far."""
    lines = ["people,far,labels"]
    for i in range(rows):
        people, far = 1 + i % 3, (i // 3) % 2
        lines.append(f"{people},{far},{';'.join(['ticket'] * people + ['sandwich'] * people * far)}")
    path.write_text("\n".join(lines) + "\n")
    return RunConfig(DataConfig(str(path)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("portfolio")
    config = write_trips(folder / "trips.csv")
    messages: list[str] = []
    with workers_here():
        result, standings = train_portfolio(config, folder / "run", only=[BAD, GOOD], say=messages.append)
    return config, folder / "run", result, standings, messages


@pytest.mark.slow
def test_the_candidate_that_learns_wins(trained):
    _, folder, result, standings, messages = trained
    assert [one.name for one in standings if one.name in ("good", "bad")] == ["good", "bad"]
    assert {standing.name for standing in standings} == {
        "good", "bad", "majority baseline", "neighbour baseline", "ridge baseline",
    }  # fmt: skip
    assert standings == sorted(standings, key=lambda standing: -standing.score)
    assert any("Winner: good." in line for line in messages)
    model = Predictor.load(folder / "model")
    assert model.predict(torch.tensor([[2.0, 1.0], [3.0, 0.0]])).tolist() == [[2, 2], [0, 3]]
    assert result.record["finished"]
    assert read_standings(folder) == standings


@pytest.mark.slow
def test_small_data_is_cross_validated_and_the_winner_is_trained_on_all_but_test_examples(trained):
    config, folder, result, standings, _ = trained
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    known = numbers["train"] + numbers["validation"]
    examples = {standing.name: standing.examples for standing in standings}
    assert examples["good"] == examples["ridge baseline"] == known  # each is held out once
    assert (folder / CANDIDATES / "good" / "part-3" / "run.json").exists()
    assert result.record["examples"]["train"] == known
    assert result.record["examples"]["test"] == numbers["test"]


@pytest.mark.slow
def test_the_final_table_has_baselines_and_the_verdict_is_recorded(trained):
    _, folder, result, _, _ = trained
    assert {*result.report.baselines} == {"ridge regression", "nearest neighbour"}
    assert read_record(folder)["test"]["baselines"]["ridge regression"]["examples"] == result.report.overall.examples
    record = read_record(folder)
    assert record["test"]["overall"]["exact_match"] == 1
    assert "the neighbour baseline" in record["verdict"]
    assert "Most likely to help" not in record["verdict"]  # all predictions are correct


@pytest.mark.slow
def test_finished_candidates_are_not_trained_again(trained):
    config, folder, _, standings, _ = trained
    before = {path: path.stat().st_mtime_ns for path in (folder / CANDIDATES).rglob("run.json")}
    with pytest.raises(FileExistsError, match="--resume"):
        train_portfolio(config, folder, only=[GOOD])
    (folder / "run.json").unlink()  # as if killed before the winner was trained again
    (folder / "checkpoint.pt").unlink()
    result, again = train_portfolio(config, folder, resume=True)  # with the candidates saved in the folder
    assert {path: path.stat().st_mtime_ns for path in (folder / CANDIDATES).rglob("run.json")} == before
    assert [standing.name for standing in again] == [standing.name for standing in standings]
    assert result.record["finished"]


def test_a_comparison_does_not_start_in_the_folder_of_a_run_of_one_model(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    write_record(tmp_path / "finished", {"finished": True})
    write_record(tmp_path / "begun", {"finished": False})
    (tmp_path / "begun" / CHECKPOINT).touch()
    for name, resume in (("finished", False), ("begun", False), ("begun", True)):
        with pytest.raises(FileExistsError, match=r"--out"):
            train_portfolio(config, tmp_path / name, only=[GOOD], resume=resume)
        assert not (tmp_path / name / CANDIDATES).exists()


@pytest.mark.slow
def test_after_the_choice_of_a_winner_a_resumed_portfolio_trains_no_candidate(trained, tmp_path):
    config, folder, _, standings, _ = trained
    again = tmp_path / "run"
    shutil.copytree(folder, again)
    shutil.rmtree(again / CANDIDATES / "bad" / "part-3")  # as if there was no time for it
    for name in ("run.json", "checkpoint.pt"):
        (again / name).unlink()  # as if killed before the winner was trained again
    result, compared = train_portfolio(config, again, resume=True)
    assert not (again / CANDIDATES / "bad" / "part-3").exists()
    assert result.record["finished"]
    assert [one.name for one in compared] == [one.name for one in standings]


def without_test_examples(path: Path) -> RunConfig:
    config = write_trips(path, rows=30)
    header, *lines = path.read_text().splitlines()
    marked = [f"{line},{'validation' if i % 3 == 2 else 'train'}" for i, line in enumerate(lines)]
    path.write_text("\n".join([f"{header},split", *marked]) + "\n")
    return config


@pytest.mark.slow
@pytest.mark.parametrize("finetuned", [False, True])
def test_without_test_examples_the_winner_is_tested_on_held_out_examples(tmp_path, finetuned):
    config, folder, messages = without_test_examples(tmp_path / "trips.csv"), tmp_path / "run", list[str]()
    if finetuned:
        folder.mkdir()
        saved = {"data": data_record(config.data.data), "candidates": [], "finetuned": GOOD._asdict()}
        (folder / PORTFOLIO).write_text(json.dumps(saved | {"minutes": 45}))
    with workers_here():
        result, _ = train_portfolio(config, folder, only=[GOOD], resume=True, say=messages.append)
    assert result.record["examples"] == {"train": 20, "validation": 10, "test": 0}
    assert read_config(folder / "config.toml")["holdout"] == "validation"
    assert result.report.overall.examples == 10
    assert any(line.startswith("There are no test examples") for line in messages)
    assert not any("validation data together" in line for line in messages)


def test_the_data_is_described_before_training(tmp_path):
    rows = [f"a note of day {i},{'far' if i % 2 else 'near'},{'a;b' if i % 2 else 'a'}" for i in range(30)]
    (tmp_path / "notes.csv").write_text("note,where,labels\n" + "\n".join(rows) + "\n")
    messages: list[str] = []
    with pytest.raises(RuntimeError, match="nothing is trained"):
        train_portfolio(
            RunConfig(DataConfig(str(tmp_path / "notes.csv"))),
            tmp_path / "run",
            only=[GOOD],
            say=lambda line: messages.append(line) if "Comparing" not in line else stop(),
        )
    assert messages[0].startswith("Data: notes.csv, 2 classes; ")
    text = "\n".join(messages)
    assert "splits: " in text
    assert "text: 'note' (20 different strings)" in text
    assert "categories: 2 (" in text


def stop() -> None:
    raise RuntimeError("nothing is trained")


def test_resuming_with_other_data_is_refused(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    (tmp_path / "run").mkdir()
    saved = {"data": {"sha256": "0" * 64}, "candidates": [], "finetuned": None}
    (tmp_path / "run" / PORTFOLIO).write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="the data has changed"):
        train_portfolio(config, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_single_fine_tuned_candidate_is_trained_on_all_but_test_examples(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    folder = tmp_path / "run"
    folder.mkdir()
    saved = {"data": data_record(config.data.data), "candidates": [], "finetuned": GOOD._asdict()}
    (folder / PORTFOLIO).write_text(json.dumps(saved))  # as written with --finetune
    result, standings = train_portfolio(config, folder, resume=True)
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    assert standings == []
    assert not (folder / CANDIDATES).exists()
    assert result.record["examples"]["train"] == numbers["train"] + numbers["validation"]
    assert result.record["test"]["overall"]["examples"] == numbers["test"]


def test_settings_of_the_user_override_those_of_a_candidate():
    given = RunConfig(optim=OptimConfig(lr=0.5))
    config = Candidate("one", {"lr": 0.1, "dropout": 0.3}, "").applied_to(given)
    assert (config.optim.lr, config.model.dropout) == (0.5, 0.3)


def test_each_example_is_held_out_in_one_part(tmp_path):
    splits = prepare(write_trips(tmp_path / "trips.csv")).splits
    known = {*splits["train"].ids, *splits["validation"].ids}
    held_out_ids: list[str] = []
    for part in (1, 2, 3):
        parts = held_out(splits, f"{part}/3")
        assert {*parts["train"].ids} | {*parts["validation"].ids} == known
        assert not {*parts["train"].ids} & {*parts["validation"].ids}
        assert parts["test"] is splits["test"]
        held_out_ids += parts["validation"].ids
    assert sorted(held_out_ids) == sorted(known)
    assert len(held_out(splits, "none")["train"]) == len(known)


@pytest.mark.parametrize("holdout", ["0/3", "4/3", "1/1", "half", "1/"])
def test_invalid_parts_are_refused(holdout, tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    with pytest.raises(ValueError, match="holdout must be validation, none, or a part"):
        prepare(replace(config, data=replace(config.data, holdout=holdout)))


def test_candidates_depend_on_the_kind_of_inputs(tmp_path):
    vectors = prepare(write_trips(tmp_path / "trips.csv"))
    assert {"counts", "policy", "power"} <= {one.name for one in candidates(vectors)}
    assert finetuned(vectors) is None
    pixels = np.random.default_rng(0).integers(256, size=(40, 3, 48, 48), dtype=np.uint8)
    lines = ["image,labels"]
    for i, image in enumerate(pixels):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{'a;b' if i % 2 else 'a'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    images = prepare(RunConfig(DataConfig(str(tmp_path / "labels.csv"))))
    assert [one.name for one in candidates(images)] == ["cells", "cells-affine", "policy", "cells-regularised"]


@pytest.mark.parametrize(("most", "channels"), [(1, (10, 10, 32)), (5, (16, 32))])
def test_candidates_for_small_images_have_the_channels_of_the_best_guess(tmp_path, most, channels):
    labels = ["image,labels"]
    for i in range(20):
        Image.new("RGB", (96, 96)).save(tmp_path / f"{i}.png")
        labels.append(f"{i}.png,{';'.join('ab'[j % 2] for j in range(i % most + 1))}")
    (tmp_path / "labels.csv").write_text("\n".join(labels) + "\n")
    task = prepare(RunConfig(DataConfig(str(tmp_path / "labels.csv"))))
    chosen = {one.name: one.values.get("channels") for one in candidates(task)}
    counting = dict.fromkeys(("cells", "cells-affine", "cells-regularised"), channels)
    assert chosen == {**counting, "policy": None}
    assert task.config.model.channels == channels  # the best guess, which `--minutes 0` trains


def features(images: int, max_size: int, backbone: str = "efficientnet-lite0") -> Task:
    """A task with placeholder features of photographs, because candidates depend on sizes only."""
    labels = np.zeros((images, max_size), dtype=np.int64)
    split = Examples(np.zeros((images, 4, 8, 8), dtype=np.float16), labels, classes=("a", "b"))
    config = ResolvedConfig(ResolvedData(backbone=backbone), ResolvedModel(max_size=max_size))
    none = split.subset(np.arange(0))
    splits = {"train": split, "validation": none, "test": none}
    return Task(config, splits, splits, (4, 8, 8), (3, 256, 256), (), {}, None)


def test_features_of_a_finer_map_are_computed_for_small_data_only():
    small, large = ({one.name: one.values for one in candidates(features(n, 20))} for n in (1200, 1201))
    assert small["cells"]["strides"] == small["poisson"]["strides"] == (16, 32)
    finer = {"cells-photo", "cells-photo-flip", "ridge-fine"}
    assert small.keys() - finer | {"table"} == large.keys()  # a table needs more images
    assert not any("strides" in values or "image_size" in values for values in large.values())
    for images, finer in ((600, True), (601, False)):  # fewer objects need it less
        assert any("strides" in one.values for one in candidates(features(images, 4))) == finer


@pytest.mark.parametrize("max_size", [4, 20])
def test_the_map_of_an_onnx_file_is_neither_changed_nor_fine_tuned(max_size):
    task = features(200, max_size, backbone="features.onnx")
    assert not any("strides" in one.values or "image_size" in one.values for one in candidates(task))
    assert finetuned(task) is None


def test_no_candidate_counts_more_objects_than_its_map_has_cells():
    assert "cells" in {one.name for one in candidates(features(2_000, 64))}
    assert "cells" not in {one.name for one in candidates(features(2_000, 65))}
    assert "cells" in {one.name for one in candidates(features(500, 65))}


def test_candidates_with_the_same_features_are_trained_before_others_are_computed(tmp_path, monkeypatch):
    swept: list[list[str]] = []

    def sweep(runs, *_, **__):
        swept.append([*runs])
        return SweepResult({}, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    short = {"epochs": 1}
    plan = [Candidate("a", short, ""), Candidate("b", {**short, "image_size": 99}, ""), Candidate("c", short, "")]
    with pytest.raises(ValueError, match="no candidate could be trained"):
        train_portfolio(write_trips(tmp_path / "trips.csv"), tmp_path / "run", only=plan)
    assert swept == [["a/part-1", "c/part-1"], ["b/part-1"]]


def names(max_size: int, images: int = 200) -> list[str]:
    return [one.name for one in candidates(features(images, max_size))]


def test_for_many_objects_slow_candidates_are_last_and_long_policies_are_omitted():
    views = ["cells-photo", "cells-photo-flip"]
    assert names(8) == ["table", "cells", "policy", "power", "ridge", "ridge-fine", "table-smooth", *views]
    assert names(8, images=601) == [*names(8)[:5], "table-smooth", "table-light", "table-strong"]
    many = ["poisson", "normal", "ridge-fine", "ridge-max", "cells", "ridge", "power"]
    assert names(10) == [*many, "policy", *views]
    assert names(11) == [*many, *views]
    assert not {"ridge-fine", *views} & {*names(8, images=601)}


def test_tables_differ_in_dropout_and_weight_decay_only():
    values = {one.name: one.values for one in candidates(features(601, 4))}
    ordered = [values[name] for name in ("table-light", "table", "table-strong")]
    for setting in ("dropout", "weight_decay"):
        numbers = [each[setting] for each in ordered]
        assert numbers == sorted({*numbers})
    others = {frozenset((name, value) for name, value in each.items() if name not in ("dropout", "weight_decay"))
              for each in ordered}  # fmt: skip
    assert len(others) == 1


def test_ridge_regression_of_many_objects_also_uses_the_finer_map():
    values = {one.name: one.values for one in candidates(features(200, 20))}
    assert values["ridge-max"] == {
        "objective": "ridge", "pool": "mean-max", "strides": (16, 32), "image_size": 320,
    }  # fmt: skip
    assert values["ridge"] == {"objective": "ridge"}
    # The means of the map of `cells` give the ridge baseline of the final table if `cells` wins.
    assert values["ridge-fine"] == {"objective": "ridge", "strides": (16, 32), "image_size": 320}
    assert values["normal"]["count_head"] == "gaussian"
    calibrated = features(200, 20)
    data = replace(calibrated.config.data, conformal=True)
    listed = candidates(replace(calibrated, config=replace(calibrated.config, data=data)))
    assert not {"ridge", "ridge-fine", "ridge-max"} & {
        one.name for one in listed
    }  # they have no probabilities to calibrate


@pytest.mark.parametrize(("leads", "chosen"), [((0.2, 0.1), "photo"), ((0.1, 0.2), "photo-flip"), ((0.1,), "photo")])
def test_fine_tuning_uses_the_best_augmentation_of_frozen_features(leads, chosen, tmp_path, monkeypatch):
    compared = Portfolio(RunConfig(), tmp_path, 10.0, (), print, lambda *_: None, progress=False)
    for family, lead in zip(("photo", "photo-flip"), leads, strict=False):
        config = RunConfig(data=DataConfig(views=4), optim=OptimConfig(augment=family))
        compared.trained[f"cells-{family}"] = [FinishedRun(f"cells-{family}", config, tmp_path, {})]
        compared.standings[f"cells-{family}"] = Standing(f"cells-{family}", "", 9, 0.5, 0.5, 0.1, 1.0, lead=lead)
    started: list[RunConfig] = []
    monkeypatch.setattr(Portfolio, "run", lambda _, runs, *__, **___: started.extend(runs.values()))
    auto._finetune(compared, finetuned(features(200, 4)))
    assert started[0].optim.augment == chosen


def test_images_of_many_objects_are_not_joined_in_mosaics():
    assert finetuned(features(200, 8)).values["mosaic"] > 0
    assert finetuned(features(200, 9)).values["mosaic"] == 0


@pytest.mark.parametrize(
    ("max_size", "epochs", "expected"),
    [(20, 29, (320, 29)), (20, 30, (448, 15)), (20, 90, (448, 45)), (8, 90, (320, 90))],
)
def test_many_objects_are_fine_tuned_on_larger_images_if_there_is_time(max_size, epochs, expected):
    task = features(200, max_size)
    tuned = finetuned(task)
    chosen = enlarged(tuned._replace(values={**tuned.values, "epochs": epochs}), task).values
    assert (chosen["image_size"], chosen["epochs"]) == expected


@pytest.mark.parametrize(
    ("minutes", "fitting", "epochs"),
    [(10.0, 20, 20), (10.0, 5, 5), (10.0, 4, None), (10.0, 300, 120), (45.0, 30, 30)],
)
def test_fine_tuning_has_enough_epochs_or_is_omitted(tmp_path, monkeypatch, minutes, fitting, epochs):
    given, messages = [], []
    monkeypatch.setattr(auto, "fitting_epochs", lambda _, seconds, **__: given.append(seconds) or fitting)
    config = RunConfig(DataConfig("photos"))
    here = Portfolio(config, tmp_path / "run", minutes, (), messages.append, lambda *_: None, progress=False)
    _, tuned = auto._plan(here, features(2000, 4), None)
    assert (tuned and tuned.values["epochs"]) == epochs
    assert bool(messages) == (epochs is None)
    assert given == [60 * minutes * (0.3 if minutes == 45 else 0.6)]  # rest: training again
    config = replace(config, data=replace(config.data, finetune="most"))
    _, tuned = auto._plan(replace(here, config=config, folder=tmp_path / "requested"), features(2000, 4), None)
    assert tuned.values["epochs"] == min(fitting, 120)


def counts_of(*labels: str) -> torch.Tensor:
    return torch.tensor([[text.count(name) for name in "ab"] for text in labels])


def standing(name: str, answers: str, truth: str, ridge: str, **more: float) -> Standing:
    """Scores of predictions for examples with one label each, compared with those of ridge regression."""
    pairs = [(counts_of(*answers), counts_of(*truth))]
    return score(name, "", pairs, 0.0, ridge=[counts_of(*ridge)])._replace(**more)


def test_candidates_are_ranked_by_their_lead_over_ridge_on_the_same_examples():
    easy = standing("easy", "aaaaaaaaba", "aaaaaaaaaa", ridge="aaaaaaaaaa")  # 9 of 10 correct, ridge 10
    hard = standing("hard", "bbbbbbaaaa", "bbbbbbbbbb", ridge="bbaaaaaaaa")  # 6 of 10 correct, ridge 2
    assert easy.score > hard.score
    assert (easy.lead, hard.lead) == (pytest.approx(-0.1), pytest.approx(0.4))
    assert hard.lead_error == pytest.approx((0.4 * 0.6 / 10) ** 0.5)
    assert [one.name for one in ranked([easy, hard])] == ["hard", "easy"]


def test_ridge_is_displaced_only_by_a_lead_above_its_standard_error():
    ridge = standing("ridge", "aabb", "aaaa", ridge="aabb")
    assert (ridge.lead, ridge.lead_error) == (0, 0)
    noisy = standing("noisy", "abaa", "aaaa", ridge="aabb")  # two better, one worse: 0.25 ± 0.41
    better = standing("better", "aaaa", "aaaa", ridge="aabb")  # two better: 0.5 ± 0.25
    assert [one.name for one in ranked([noisy, ridge, better])] == ["better", "ridge", "noisy"]


def test_among_candidates_as_good_as_ridge_the_first_wins():
    ridge, guess = (standing(name, "aaaa", "aaaa", ridge="aaaa") for name in ("ridge", "guess"))
    assert [one.name for one in ranked([guess, ridge])] == ["guess", "ridge"]


def test_leaderboards_without_leads_are_read_and_ranked_by_score(tmp_path):
    old = [
        {"name": name, "about": "", "examples": 9, "exact_match": em, "f1": em, "error": 0.1, "minutes": 1.0}
        for name, em in (("low", 0.2), ("high", 0.3))
    ]
    (tmp_path / "leaderboard.json").write_text(json.dumps(old))
    assert [one.name for one in ranked(read_standings(tmp_path))] == ["high", "low"]


def make_portfolio(folder: Path, *about: str, watch: Callable[..., None] = lambda *_: None) -> Portfolio:
    """A portfolio with three held-out examples, one of which ridge regression predicts correctly."""
    here = Portfolio(RunConfig(), folder, 1.0, (), lambda _: None, watch, False)
    here.about = dict.fromkeys(about, "")
    here.ridge = {"validation": counts_of("a", "a", "a")}
    return here


def end(folder: Path, name: str, answers: str) -> None:
    """Write the files of a finished run."""
    run = folder / CANDIDATES / name
    write_record(run, {"finished": True, "minutes": 2.0})
    write_counts(run, {"validation": Evaluation(counts_of(*answers), counts_of("a", "b", "b"))}, ("a", "b"))


@pytest.mark.parametrize(
    ("examples", "finetune", "select", "passed", "expected"),
    [
        (1000, "none", "last", 6.1, True),  # 5 minutes on 1,000 examples become 6 on 1,200, or 4.8 with all cores
        (1000, "none", "last", 6.3, False),
        (1000, "none", "score", 1.0, False),  # the epoch was chosen on validation data
        (100, "none", "last", 9.0, True),  # trained only on parts of a cross-validation
        (100, "most", "last", 4.9, True),  # fine-tuning used all cores
        (100, "most", "last", 5.1, False),
    ],
)
def test_a_winner_of_last_epochs_is_trained_again_if_there_is_time(
    tmp_path, monkeypatch, examples, finetune, select, passed, expected
):
    monkeypatch.setattr(auto.time, "monotonic", lambda: 1000.0 + 60 * passed)
    here = replace(make_portfolio(tmp_path, "guess"), minutes=11.0, began=1000.0)
    config = RunConfig(DataConfig(finetune=finetune), optim=OptimConfig(select=select))
    here.trained["guess"] = [FinishedRun("guess", config, tmp_path, {"minutes": 5.0})]
    task = replace(features(200, 4), splits=splits_of(examples, examples // 5))
    assert auto._is_trained_again(here, "guess", config, task) == expected
    (tmp_path / CHECKPOINT).touch()  # training again was interrupted, so it is resumed in any case
    assert auto._is_trained_again(here, "guess", config, task)


def test_a_run_far_behind_the_best_is_stopped_after_most_of_its_epochs(tmp_path, monkeypatch):
    here = make_portfolio(tmp_path, "best")
    stopped: list[list[str]] = []

    def sweep(runs, *_, stop, **__):
        def running(share: float, score: float) -> Snapshot:
            return Snapshot([], 0, 3, [Running(name, 6, 10, score, score, share) for name in runs], None)

        stopped.append([*stop(running(0.9, 0.0))])  # there is no score to compare with
        here.trained["best"] = []
        here.standings["best"] = Standing("best", "", 9, 0.7, 0.9, 0.1, 1.0)
        stopped.extend([*stop(running(*each))] for each in ((0.5, 0.0), (0.7, 0.61), (0.7, 0.59)))
        return SweepResult({}, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    here.run({"kept": RunConfig(), "other": RunConfig()}, Workers(1), 60.0, keep={"kept"})
    assert stopped == [[], [], [], ["other"]]


@pytest.mark.slow
def test_a_winner_of_last_epochs_is_trained_on_all_but_test_examples(tmp_path):
    config = write_trips(tmp_path / "trips.csv", rows=1300)
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    guess = Candidate("guess", {"objective": "counts", "epochs": 1, "batch_size": 64, "select": "last"}, "")
    messages: list[str] = []
    result, standings = train_portfolio(config, tmp_path / "run", only=[guess], say=messages.append)
    assert "Winner: guess. Training it again on training and validation data together." in messages
    assert result.record["examples"]["train"] == numbers["train"] + numbers["validation"]
    assert result.record["test"]["overall"]["examples"] == numbers["test"]
    assert {one.examples for one in standings} == {numbers["validation"]}  # compared before that


def splits_of(train: int, validation: int) -> dict[str, Examples]:
    sizes = {"train": train, "validation": validation}
    return {name: Examples(np.zeros((n, 1)), np.zeros((n, 1), int), ("a",)) for name, n in sizes.items()}


@pytest.mark.parametrize(("fitting", "epochs"), [(3, 3), (30, 20)])
@pytest.mark.parametrize(("select", "seconds"), [("score", 480.0), ("last", 270.0)])  # rest: training again
def test_the_epochs_of_the_best_guess_fit_into_the_time(tmp_path, monkeypatch, fitting, epochs, select, seconds):
    given = []
    monkeypatch.setattr(auto, "fitting_epochs", lambda _, seconds, **__: given.append(seconds) or fitting)
    here = replace(make_portfolio(tmp_path, "guess"), minutes=10.0)
    guess = Candidate("guess", {"objective": "counts", "epochs": 20, "select": select}, "")
    assert auto._shortened(here, guess, 1000).values["epochs"] == epochs
    assert given == [seconds]


def test_the_best_guess_is_finished_even_if_the_time_is_up(tmp_path, monkeypatch):
    stopped: list[list[str]] = []

    def sweep(runs, folder, *, watch, stop, **_):
        nothing = Snapshot([], 0, 3, [], None)
        watch(nothing)
        stopped.append([*stop(nothing)])
        end(tmp_path, "ridge", "abb")
        watch(Snapshot(["ridge"], 0, 2, [], None))
        stopped.append([*stop(nothing)])
        return SweepResult({"ridge": FinishedRun("ridge", runs["ridge"], folder / "ridge", {"minutes": 2.0})}, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    here = make_portfolio(tmp_path, "guess", "ridge", "policy")
    runs = dict.fromkeys(here.about, RunConfig())
    here.run(runs, Workers(), -1.0, keep={"guess"})  # no time from the start
    assert stopped == [[], ["ridge", "policy"]]  # none until one is finished
    here.run(runs, Workers(), float("inf"), keep={"guess"})
    assert stopped[2:] == [[], []]


def test_the_first_candidate_and_ridge_are_never_stopped(tmp_path, monkeypatch):
    kept: list[set[str]] = []

    def run(here, runs, workers, seconds, *, keep=()):
        kept.append({*runs} & {*keep})
        return {}

    monkeypatch.setattr(Portfolio, "run", run)
    with pytest.raises(ValueError, match="no candidate could be trained"):
        train_portfolio(write_trips(tmp_path / "trips.csv"), tmp_path / "run", only=[GOOD, BAD, RIDGE])
    assert kept == [{"good/part-1", "ridge/part-1"}]


def test_ridge_regression_is_trained_on_all_parts_at_once(tmp_path, monkeypatch):
    began: list[list[str]] = []

    def run(here, runs, *_, **__):
        began.append([*runs])
        return {}

    monkeypatch.setattr(Portfolio, "run", run)
    with pytest.raises(ValueError, match="no candidate could be trained"):
        train_portfolio(write_trips(tmp_path / "trips.csv"), tmp_path / "run", only=[GOOD, RIDGE])
    assert began == [["good/part-1", "ridge/part-1", "ridge/part-2", "ridge/part-3"]]


def test_ridge_is_trained_even_if_the_time_is_up_before_its_features_are_read(tmp_path, monkeypatch):
    trained: list[str] = []

    def run(here, runs, workers, seconds, *, keep=()):
        trained.extend(runs)
        here.trained["guess"] = []
        monkeypatch.setattr(auto.time, "monotonic", lambda: float("inf"))  # the first features took all the time
        return {}

    monkeypatch.setattr(Portfolio, "run", run)
    fine = {"image_size": 99}
    plan = [Candidate("guess", fine, ""), Candidate("late", {}, ""), Candidate("ridge", {"objective": "ridge"}, "")]
    plan.append(Candidate("ridge-other", {"objective": "ridge", "image_size": 98}, ""))  # not computed yet
    auto._try(make_portfolio(tmp_path, *(one.name for one in plan)), plan, 3, followed=True, clock=True)
    assert trained == ["guess/part-1", "ridge/part-1"]


def test_leaders_are_trained_on_all_parts_until_one_of_them_is_ahead(tmp_path, monkeypatch):
    first = {"lucky": 0.4, "good": 0.3, "steady": 0.2, "bad": 0.1}  # on the first part
    lasting = {"lucky": 0.0, "good": 0.3, "steady": 0.2, "bad": 0.1}  # on all parts
    parts: list[list[str]] = []

    def run(here, runs, *_, **__):
        parts.append([*runs])
        for name in dict.fromkeys(run.split("/")[0] for run in runs):
            here.trained[name] = []
            lead = (lasting if name in here.standings else first)[name]
            here.standings[name] = Standing(name, "", 9, 0.5, 0.5, 0.1, 1.0, lead=lead)
        return {}

    monkeypatch.setattr(Portfolio, "run", run)
    plan = [Candidate(name, {}, "") for name in first]
    auto._try(make_portfolio(tmp_path, *first), plan, 3, followed=False, clock=False)
    assert parts == [
        [f"{name}/part-1" for name in first],
        ["lucky/part-2", "lucky/part-3", "good/part-2", "good/part-3"],
        ["steady/part-2", "steady/part-3"],
    ]


@pytest.mark.slow
def test_without_averaged_weights_the_last_epoch_is_scored_and_kept(trained):
    _, folder, _, _, _ = trained
    for run in (folder / CANDIDATES / "good" / "part-1", folder):
        settings = read_config(run / "config.toml")
        assert (settings["select"], settings["until"]) == ("last", 1.0)


@pytest.mark.slow
def test_the_winner_is_trained_for_the_best_share_of_epochs_on_held_out_examples(tmp_path):
    config = write_trips(tmp_path / "trips.csv", rows=30)
    averaged = Candidate("averaged", {**GOOD.values, "epochs": 8, "ema": 0.5}, "")
    with workers_here():
        result, _ = train_portfolio(config, tmp_path / "run", only=[averaged])
    parts = [tmp_path / "run" / CANDIDATES / "averaged" / f"part-{part}" for part in (1, 2, 3)]
    best = [read_record(part)["best_epoch"] for part in parts]
    assert [read_config(part / "config.toml")["select"] for part in parts] == ["score"] * 3
    settings = read_config(tmp_path / "run" / "config.toml")
    assert settings["epochs"] == 8
    assert settings["until"] == pytest.approx(sum(best) / 24, abs=1e-3)
    assert result.record["best_epoch"] == round(sum(best) / 3)


def test_candidates_are_added_to_the_leaderboard_when_they_end(tmp_path, monkeypatch):
    leaderboards: list[dict[str, float]] = []

    def sweep(runs, folder, *, watch, **_):
        watch(Snapshot([], 0, 2, [], None))
        for name, answers in (("one", "abb"), ("two", "bba")):
            end(tmp_path, name, answers)
            watch(Snapshot([name], 0, 1, [], None))
        done = {name: FinishedRun(name, runs[name], folder / name, {"minutes": 2.0}) for name in runs}
        return SweepResult(done, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    here = make_portfolio(
        tmp_path,
        "one",
        "two",
        watch=lambda _, rows: leaderboards.append({one.name: one.score for one in rows}),
    )
    here.run(dict.fromkeys(here.about, RunConfig()), Workers(), 1.0)
    assert leaderboards == [{}, {"one": 1.0}, {"one": 1.0, "two": pytest.approx(1 / 3)}]
    assert here.standings["one"].lead == pytest.approx(2 / 3)
    assert here.standings["one"].minutes == 2.0  # counted once


def test_a_portfolio_refuses_a_given_holdout(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    with pytest.raises(ValueError, match="holdout must be left out if several models are compared"):
        train_portfolio(replace(config, data=replace(config.data, holdout="1/3")), tmp_path / "run", only=[GOOD])
