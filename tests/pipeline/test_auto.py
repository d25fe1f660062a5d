"""The portfolio: candidates are compared on held-out examples, and the winner is kept."""

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
    """A ticket for each person, and a sandwich each if it is far."""
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
    said: list[str] = []
    with workers_here():
        result, standings = train_portfolio(config, folder / "run", only=[BAD, GOOD], say=said.append)
    return config, folder / "run", result, standings, said


def test_the_candidate_that_learns_wins(trained):
    _, folder, result, standings, said = trained
    assert [one.name for one in standings if one.name in ("good", "bad")] == ["good", "bad"]
    assert {standing.name for standing in standings} == {
        "good", "bad", "majority baseline", "neighbour baseline", "ridge baseline",
    }  # fmt: skip
    assert standings == sorted(standings, key=lambda standing: -standing.score)
    assert any("Winner: good." in line for line in said)
    model = Predictor.load(folder / "model")
    assert model.predict(torch.tensor([[2.0, 1.0], [3.0, 0.0]])).tolist() == [[2, 2], [0, 3]]
    assert result.record["finished"]
    assert read_standings(folder) == standings


def test_small_data_is_cross_validated_and_the_winner_sees_all_but_the_test_examples(trained):
    config, folder, result, standings, _ = trained
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    known = numbers["train"] + numbers["validation"]
    examples = {standing.name: standing.examples for standing in standings}
    assert examples["good"] == examples["ridge baseline"] == known  # each is held out once
    assert (folder / CANDIDATES / "good" / "part-3" / "run.json").exists()
    assert result.record["examples"]["train"] == known
    assert result.record["examples"]["test"] == numbers["test"]


def test_the_final_table_has_baselines_and_the_verdict_is_recorded(trained):
    _, folder, result, _, _ = trained
    assert {*result.report.baselines} == {"ridge regression", "nearest neighbour"}
    assert read_record(folder)["test"]["baselines"]["ridge regression"]["examples"] == result.report.overall.examples
    record = read_record(folder)
    assert record["test"]["overall"]["exact_match"] == 1
    assert "not ahead of the neighbour baseline" in record["verdict"]
    assert "Most likely to help" not in record["verdict"]  # nothing is wrong


def test_nothing_that_is_finished_is_trained_again(trained):
    config, folder, _, standings, _ = trained
    before = {path: path.stat().st_mtime_ns for path in (folder / CANDIDATES).rglob("run.json")}
    with pytest.raises(FileExistsError, match="--resume"):
        train_portfolio(config, folder, only=[GOOD])
    (folder / "run.json").unlink()  # as if it had been killed before the winner was trained again
    (folder / "checkpoint.pt").unlink()
    result, again = train_portfolio(config, folder, resume=True)  # with the candidates of the folder
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


def test_once_the_winner_is_chosen_a_resumed_portfolio_trains_no_candidate(trained, tmp_path):
    config, folder, _, standings, _ = trained
    again = tmp_path / "run"
    shutil.copytree(folder, again)
    shutil.rmtree(again / CANDIDATES / "bad" / "part-3")  # as if there had been no time for it
    for name in ("run.json", "checkpoint.pt"):
        (again / name).unlink()  # as if it had been killed before the winner was trained again
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


@pytest.mark.parametrize("finetuned", [False, True])
def test_without_test_examples_the_winner_is_tested_on_examples_that_it_was_not_trained_on(tmp_path, finetuned):
    config, folder, said = without_test_examples(tmp_path / "trips.csv"), tmp_path / "run", list[str]()
    if finetuned:
        folder.mkdir()
        saved = {"data": data_record(config.data.data), "candidates": [], "finetuned": GOOD._asdict()}
        (folder / PORTFOLIO).write_text(json.dumps(saved | {"minutes": 45}))
    with workers_here():
        result, _ = train_portfolio(config, folder, only=[GOOD], resume=True, say=said.append)
    assert result.record["examples"] == {"train": 20, "validation": 10, "test": 0}
    assert read_config(folder / "config.toml")["holdout"] == "validation"
    assert result.report.overall.examples == 10
    assert any(line.startswith("There are no test examples") for line in said)
    assert not any("validation data together" in line for line in said)


def test_it_says_how_the_data_is_read_before_anything_is_trained(tmp_path):
    rows = [f"a note of day {i},{'far' if i % 2 else 'near'},{'a;b' if i % 2 else 'a'}" for i in range(30)]
    (tmp_path / "notes.csv").write_text("note,where,labels\n" + "\n".join(rows) + "\n")
    said: list[str] = []
    with pytest.raises(RuntimeError, match="nothing is trained"):
        train_portfolio(
            RunConfig(DataConfig(str(tmp_path / "notes.csv"))),
            tmp_path / "run",
            only=[GOOD],
            say=lambda line: said.append(line) if "Comparing" not in line else stop(),
        )
    assert said[0].startswith("Data: notes.csv, 2 classes; ")
    told = "\n".join(said)
    assert "splits: " in told
    assert "text: 'note' (20 different strings)" in told
    assert "categories: 2 (" in told


def stop() -> None:
    raise RuntimeError("nothing is trained")


def test_other_data_is_refused(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    (tmp_path / "run").mkdir()
    saved = {"data": {"sha256": "0" * 64}, "candidates": [], "finetuned": None}
    (tmp_path / "run" / PORTFOLIO).write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="the data has changed"):
        train_portfolio(config, tmp_path / "run", resume=True)


def test_a_single_fine_tuned_candidate_sees_all_but_the_test_examples(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    folder = tmp_path / "run"
    folder.mkdir()
    saved = {"data": data_record(config.data.data), "candidates": [], "finetuned": GOOD._asdict()}
    (folder / PORTFOLIO).write_text(json.dumps(saved))  # as --finetune writes it
    result, standings = train_portfolio(config, folder, resume=True)
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    assert standings == []
    assert not (folder / CANDIDATES).exists()
    assert result.record["examples"]["train"] == numbers["train"] + numbers["validation"]
    assert result.record["test"]["overall"]["examples"] == numbers["test"]


def test_settings_of_the_user_come_before_those_of_a_candidate():
    given = RunConfig(optim=OptimConfig(lr=0.5))
    config = Candidate("one", {"lr": 0.1, "dropout": 0.3}, "").applied_to(given)
    assert (config.optim.lr, config.model.dropout) == (0.5, 0.3)


def test_parts_of_a_cross_validation(tmp_path):
    splits = prepare(write_trips(tmp_path / "trips.csv")).splits
    known = {*splits["train"].ids, *splits["validation"].ids}
    seen: list[str] = []
    for part in (1, 2, 3):
        parts = held_out(splits, f"{part}/3")
        assert {*parts["train"].ids} | {*parts["validation"].ids} == known
        assert not {*parts["train"].ids} & {*parts["validation"].ids}
        assert parts["test"] is splits["test"]
        seen += parts["validation"].ids
    assert sorted(seen) == sorted(known)
    assert len(held_out(splits, "none")["train"]) == len(known)


@pytest.mark.parametrize("holdout", ["0/3", "4/3", "1/1", "half", "1/"])
def test_wrong_parts_are_refused(holdout, tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    with pytest.raises(ValueError, match="holdout must be validation, none, or a part"):
        prepare(replace(config, data=replace(config.data, holdout=holdout)))


def test_candidates_suit_the_data(tmp_path):
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
def test_candidates_for_small_images_have_the_map_of_the_best_guess(tmp_path, most, channels):
    labels = ["image,labels"]
    for i in range(20):
        Image.new("RGB", (96, 96)).save(tmp_path / f"{i}.png")
        labels.append(f"{i}.png,{';'.join('ab'[j % 2] for j in range(i % most + 1))}")
    (tmp_path / "labels.csv").write_text("\n".join(labels) + "\n")
    task = prepare(RunConfig(DataConfig(str(tmp_path / "labels.csv"))))
    chosen = {one.name: one.values.get("channels") for one in candidates(task)}
    counting = dict.fromkeys(("cells", "cells-affine", "cells-regularised"), channels)
    assert chosen == {**counting, "policy": None}
    assert task.config.model.channels == channels  # as `--minutes 0` trains it


def features(images: int, max_size: int, backbone: str = "efficientnet-lite0") -> Task:
    """Photographs as features of a backbone, of which the candidates read sizes only."""
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
    assert small.keys() - finer | {"table"} == large.keys()  # few images are too few for a score of each count
    assert not any("strides" in values or "image_size" in values for values in large.values())
    for images, finer in ((600, True), (601, False)):  # few large objects need it less
        assert any("strides" in one.values for one in candidates(features(images, 4))) == finer


@pytest.mark.parametrize("max_size", [4, 20])
def test_the_map_of_an_onnx_file_is_used_as_it_is_and_not_fine_tuned(max_size):
    task = features(200, max_size, backbone="features.onnx")
    assert not any("strides" in one.values or "image_size" in one.values for one in candidates(task))
    assert finetuned(task) is None


def test_no_candidate_counts_more_objects_than_its_map_has_cells():
    assert "cells" in {one.name for one in candidates(features(2_000, 64))}
    assert "cells" not in {one.name for one in candidates(features(2_000, 65))}
    assert "cells" in {one.name for one in candidates(features(500, 65))}


def test_candidates_that_read_the_same_features_are_trained_before_others_are_computed(tmp_path, monkeypatch):
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


def test_for_many_objects_slow_candidates_come_last_and_long_policies_are_left_out():
    views = ["cells-photo", "cells-photo-flip"]
    assert names(8) == ["table", "cells", "policy", "power", "ridge", "ridge-fine", "table-smooth", *views]
    assert names(8, images=601) == [*names(8)[:5], "table-smooth", "table-light", "table-strong"]
    many = ["poisson", "normal", "ridge-fine", "ridge-max", "cells", "ridge", "power"]
    assert names(10) == [*many, "policy", *views]
    assert names(11) == [*many, *views]
    assert not {"ridge-fine", *views} & {*names(8, images=601)}


def test_dropout_and_weight_decay_of_a_table_are_compared():
    values = {one.name: one.values for one in candidates(features(601, 4))}
    ordered = [values[name] for name in ("table-light", "table", "table-strong")]
    for setting in ("dropout", "weight_decay"):
        numbers = [each[setting] for each in ordered]
        assert numbers == sorted({*numbers})
    others = {frozenset((name, value) for name, value in each.items() if name not in ("dropout", "weight_decay"))
              for each in ordered}  # fmt: skip
    assert len(others) == 1


def test_ridge_regression_of_many_objects_reads_the_finer_map_too():
    values = {one.name: one.values for one in candidates(features(200, 20))}
    assert values["ridge-max"] == {
        "objective": "ridge", "pool": "mean-max", "strides": (16, 32), "image_size": 320,
    }  # fmt: skip
    assert values["ridge"] == {"objective": "ridge"}
    # Means of the map that `cells` reads: the ridge regression of the final table, if `cells` wins.
    assert values["ridge-fine"] == {"objective": "ridge", "strides": (16, 32), "image_size": 320}
    assert values["normal"]["count_head"] == "gaussian"
    calibrated = features(200, 20)
    data = replace(calibrated.config.data, conformal=True)
    listed = candidates(replace(calibrated, config=replace(calibrated.config, data=data)))
    assert not {"ridge", "ridge-fine", "ridge-max"} & {
        one.name for one in listed
    }  # they have no probabilities to calibrate


@pytest.mark.parametrize(("leads", "chosen"), [((0.2, 0.1), "photo"), ((0.1, 0.2), "photo-flip"), ((0.1,), "photo")])
def test_the_best_changes_of_frozen_images_are_those_of_fine_tuning(leads, chosen, tmp_path, monkeypatch):
    here = Portfolio(RunConfig(), tmp_path, 10.0, (), print, lambda *_: None, progress=False)
    for family, lead in zip(("photo", "photo-flip"), leads, strict=False):
        config = RunConfig(data=DataConfig(views=4), optim=OptimConfig(augment=family))
        here.trained[f"cells-{family}"] = [FinishedRun(f"cells-{family}", config, tmp_path, {})]
        here.standings[f"cells-{family}"] = Standing(f"cells-{family}", "", 9, 0.5, 0.5, 0.1, 1.0, lead=lead)
    seen: list[RunConfig] = []
    monkeypatch.setattr(Portfolio, "run", lambda _, runs, *__, **___: seen.extend(runs.values()))
    auto._finetune(here, finetuned(features(200, 4)))
    assert seen[0].optim.augment == chosen


def test_images_of_many_objects_are_not_joined_to_mosaics():
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
def test_fine_tuning_has_enough_epochs_or_is_left_out(tmp_path, monkeypatch, minutes, fitting, epochs):
    given, said = [], []
    monkeypatch.setattr(auto, "fitting_epochs", lambda _, seconds, **__: given.append(seconds) or fitting)
    config = RunConfig(DataConfig("photos"))
    here = Portfolio(config, tmp_path / "run", minutes, (), said.append, lambda *_: None, progress=False)
    _, tuned = auto._plan(here, features(2000, 4), None)
    assert (tuned and tuned.values["epochs"]) == epochs
    assert bool(said) == (epochs is None)
    assert given == [60 * minutes * (0.3 if minutes == 45 else 0.6)]  # the other half is for training it again
    config = replace(config, data=replace(config.data, finetune="most"))
    _, tuned = auto._plan(replace(here, config=config, folder=tmp_path / "asked"), features(2000, 4), None)
    assert tuned.values["epochs"] == min(fitting, 120)


def counts_of(*labels: str) -> torch.Tensor:
    return torch.tensor([[text.count(name) for name in "ab"] for text in labels])


def standing(name: str, answers: str, truth: str, ridge: str, **more: float) -> Standing:
    """Scores of answers to examples with one label each, beside those of ridge regression."""
    pairs = [(counts_of(*answers), counts_of(*truth))]
    return score(name, "", pairs, 0.0, ridge=[counts_of(*ridge)])._replace(**more)


def test_candidates_scored_on_other_examples_are_compared_by_their_lead_over_ridge_on_the_same():
    easy = standing("easy", "aaaaaaaaba", "aaaaaaaaaa", ridge="aaaaaaaaaa")  # 9 of 10, and ridge all
    hard = standing("hard", "bbbbbbaaaa", "bbbbbbbbbb", ridge="bbaaaaaaaa")  # 6 of 10, and ridge 2
    assert easy.score > hard.score
    assert (easy.lead, hard.lead) == (pytest.approx(-0.1), pytest.approx(0.4))
    assert hard.lead_error == pytest.approx((0.4 * 0.6 / 10) ** 0.5)
    assert [one.name for one in ranked([easy, hard])] == ["hard", "easy"]


def test_ridge_is_displaced_by_a_lead_of_more_than_its_standard_error():
    ridge = standing("ridge", "aabb", "aaaa", ridge="aabb")
    assert (ridge.lead, ridge.lead_error) == (0, 0)
    noisy = standing("noisy", "abaa", "aaaa", ridge="aabb")  # two better, one worse: 0.25 with an error of 0.41
    better = standing("better", "aaaa", "aaaa", ridge="aabb")  # two better: 0.5 with an error of 0.25
    assert [one.name for one in ranked([noisy, ridge, better])] == ["better", "ridge", "noisy"]


def test_of_candidates_as_good_as_ridge_the_first_one_wins():
    ridge, guess = (standing(name, "aaaa", "aaaa", ridge="aaaa") for name in ("ridge", "guess"))
    assert [one.name for one in ranked([guess, ridge])] == ["guess", "ridge"]


def test_leaderboards_without_leads_are_read_and_ranked_by_score(tmp_path):
    old = [
        {"name": name, "about": "", "examples": 9, "exact_match": em, "f1": em, "error": 0.1, "minutes": 1.0}
        for name, em in (("low", 0.2), ("high", 0.3))
    ]
    (tmp_path / "leaderboard.json").write_text(json.dumps(old))
    assert [one.name for one in ranked(read_standings(tmp_path))] == ["high", "low"]


def a_portfolio(folder: Path, *about: str, watch: Callable[..., None] = lambda *_: None) -> Portfolio:
    """A portfolio of three held-out examples, of which ridge regression has one right."""
    here = Portfolio(RunConfig(), folder, 1.0, (), lambda _: None, watch, False)
    here.about = dict.fromkeys(about, "")
    here.ridge = {"validation": counts_of("a", "a", "a")}
    return here


def end(folder: Path, name: str, answers: str) -> None:
    """Write what a finished run leaves."""
    run = folder / CANDIDATES / name
    write_record(run, {"finished": True, "minutes": 2.0})
    write_counts(run, {"validation": Evaluation(counts_of(*answers), counts_of("a", "b", "b"))}, ("a", "b"))


@pytest.mark.parametrize(
    ("examples", "finetune", "select", "passed", "expected"),
    [
        (1000, "none", "last", 6.1, True),  # 5 minutes on 1,000 examples are 6 on 1,200, or 4.8 on all cores
        (1000, "none", "last", 6.3, False),
        (1000, "none", "score", 1.0, False),  # the validation data chose the epoch
        (100, "none", "last", 9.0, True),  # it was trained on parts of a cross-validation only
        (100, "most", "last", 4.9, True),  # fine-tuning had all cores
        (100, "most", "last", 5.1, False),
    ],
)
def test_a_winner_is_trained_again_if_it_keeps_its_last_epoch_and_there_is_time(
    tmp_path, monkeypatch, examples, finetune, select, passed, expected
):
    monkeypatch.setattr(auto.time, "monotonic", lambda: 1000.0 + 60 * passed)
    here = replace(a_portfolio(tmp_path, "guess"), minutes=11.0, began=1000.0)
    config = RunConfig(DataConfig(finetune=finetune), optim=OptimConfig(select=select))
    here.trained["guess"] = [FinishedRun("guess", config, tmp_path, {"minutes": 5.0})]
    task = replace(features(200, 4), splits=splits_of(examples, examples // 5))
    assert auto._is_trained_again(here, "guess", config, task) == expected
    (tmp_path / CHECKPOINT).touch()  # interrupted while it was trained again: this goes on, whatever the time
    assert auto._is_trained_again(here, "guess", config, task)


def test_a_run_far_behind_the_best_is_stopped_when_most_of_its_epochs_are_done(tmp_path, monkeypatch):
    here = a_portfolio(tmp_path, "best")
    stopped: list[list[str]] = []

    def sweep(runs, *_, stop, **__):
        def running(share: float, score: float) -> Snapshot:
            return Snapshot([], 0, 3, [Running(name, 6, 10, score, score, share) for name in runs], None)

        stopped.append([*stop(running(0.9, 0.0))])  # nothing to compare with yet
        here.trained["best"] = []
        here.standings["best"] = Standing("best", "", 9, 0.7, 0.9, 0.1, 1.0)
        stopped.extend([*stop(running(*each))] for each in ((0.5, 0.0), (0.7, 0.61), (0.7, 0.59)))
        return SweepResult({}, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    here.run({"kept": RunConfig(), "other": RunConfig()}, Workers(1), 60.0, keep={"kept"})
    assert stopped == [[], [], [], ["other"]]


@pytest.mark.slow
def test_a_winner_that_keeps_its_last_epoch_sees_all_but_the_test_examples(tmp_path):
    config = write_trips(tmp_path / "trips.csv", rows=1300)
    numbers = {name: len(examples) for name, examples in prepare(config).splits.items()}
    guess = Candidate("guess", {"objective": "counts", "epochs": 1, "batch_size": 64, "select": "last"}, "")
    said: list[str] = []
    result, standings = train_portfolio(config, tmp_path / "run", only=[guess], say=said.append)
    assert "Winner: guess. Training it again on training and validation data together." in said
    assert result.record["examples"]["train"] == numbers["train"] + numbers["validation"]
    assert result.record["test"]["overall"]["examples"] == numbers["test"]
    assert {one.examples for one in standings} == {numbers["validation"]}  # the comparison is of models without them


def splits_of(train: int, validation: int) -> dict[str, Examples]:
    sizes = {"train": train, "validation": validation}
    return {name: Examples(np.zeros((n, 1)), np.zeros((n, 1), int), ("a",)) for name, n in sizes.items()}


@pytest.mark.parametrize(("fitting", "epochs"), [(3, 3), (30, 20)])
@pytest.mark.parametrize(("select", "seconds"), [("score", 480.0), ("last", 270.0)])  # the rest is for training again
def test_the_best_guess_has_no_more_epochs_than_there_is_time_for(
    tmp_path, monkeypatch, fitting, epochs, select, seconds
):
    given = []
    monkeypatch.setattr(auto, "fitting_epochs", lambda _, seconds, **__: given.append(seconds) or fitting)
    here = replace(a_portfolio(tmp_path, "guess"), minutes=10.0)
    guess = Candidate("guess", {"objective": "counts", "epochs": 20, "select": select}, "")
    assert auto._shortened(here, guess, 1000).values["epochs"] == epochs
    assert given == [seconds]


def test_the_best_guess_is_trained_to_the_end_though_ridge_is_done_and_the_time_is_up(tmp_path, monkeypatch):
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
    here = a_portfolio(tmp_path, "guess", "ridge", "policy")
    runs = dict.fromkeys(here.about, RunConfig())
    here.run(runs, Workers(), -1.0, keep={"guess"})  # the time was up before it began
    assert stopped == [[], ["ridge", "policy"]]  # nothing before the first is trained
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


def test_ridge_is_trained_though_the_time_is_up_before_its_features_are_read(tmp_path, monkeypatch):
    trained: list[str] = []

    def run(here, runs, workers, seconds, *, keep=()):
        trained.extend(runs)
        here.trained["guess"] = []
        monkeypatch.setattr(auto.time, "monotonic", lambda: float("inf"))  # the first features took all the time
        return {}

    monkeypatch.setattr(Portfolio, "run", run)
    fine = {"image_size": 99}
    plan = [Candidate("guess", fine, ""), Candidate("late", {}, ""), Candidate("ridge", {"objective": "ridge"}, "")]
    plan.append(Candidate("ridge-other", {"objective": "ridge", "image_size": 98}, ""))  # other features take time
    auto._try(a_portfolio(tmp_path, *(one.name for one in plan)), plan, 3, followed=True, clock=True)
    assert trained == ["guess/part-1", "ridge/part-1"]


def test_the_leaders_are_trained_on_all_parts_until_nobody_with_one_part_is_ahead(tmp_path, monkeypatch):
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
    auto._try(a_portfolio(tmp_path, *first), plan, 3, followed=False, clock=False)
    assert parts == [
        [f"{name}/part-1" for name in first],
        ["lucky/part-2", "lucky/part-3", "good/part-2", "good/part-3"],
        ["steady/part-2", "steady/part-3"],
    ]


def test_without_an_average_of_the_weights_the_last_epoch_is_scored_and_kept(trained):
    _, folder, _, _, _ = trained
    for run in (folder / CANDIDATES / "good" / "part-1", folder):
        settings = read_config(run / "config.toml")
        assert (settings["select"], settings["until"]) == ("last", 1.0)


def test_the_winner_ends_after_the_share_of_epochs_that_was_best_on_held_out_examples(tmp_path):
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


def test_each_candidate_is_on_the_leaderboard_as_soon_as_it_ends(tmp_path, monkeypatch):
    seen: list[dict[str, float]] = []

    def sweep(runs, folder, *, watch, **_):
        watch(Snapshot([], 0, 2, [], None))
        for name, answers in (("one", "abb"), ("two", "bba")):
            end(tmp_path, name, answers)
            watch(Snapshot([name], 0, 1, [], None))
        done = {name: FinishedRun(name, runs[name], folder / name, {"minutes": 2.0}) for name in runs}
        return SweepResult(done, [], [])

    monkeypatch.setattr(portfolio, "sweep", sweep)
    here = a_portfolio(
        tmp_path, "one", "two", watch=lambda _, standings: seen.append({one.name: one.score for one in standings})
    )
    here.run(dict.fromkeys(here.about, RunConfig()), Workers(), 1.0)
    assert seen == [{}, {"one": 1.0}, {"one": 1.0, "two": pytest.approx(1 / 3)}]
    assert here.standings["one"].lead == pytest.approx(2 / 3)
    assert here.standings["one"].minutes == 2.0  # counted once


def test_a_portfolio_chooses_the_held_out_examples_itself(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    with pytest.raises(ValueError, match="holdout must be left out if several models are compared"):
        train_portfolio(replace(config, data=replace(config.data, holdout="1/3")), tmp_path / "run", only=[GOOD])
