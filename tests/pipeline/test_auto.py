"""The portfolio: candidates are compared on held-out examples, and the winner is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchmultiset.data import Examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import auto
from torchmultiset.pipeline.auto import CANDIDATES, PORTFOLIO, _as_candidate, train_portfolio
from torchmultiset.pipeline.candidates import Candidate, candidates, finetuned
from torchmultiset.pipeline.config import DataConfig, ResolvedConfig, ResolvedData, ResolvedModel, RunConfig
from torchmultiset.pipeline.prepare import Task, held_out, prepare
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.standings import read_standings
from torchmultiset.pipeline.sweep import SweepResult
from torchmultiset.training.config import OptimConfig

QUICK = {"epochs": 30, "batch_size": 16, "lr": 0.01, "select": "last"}
GOOD = Candidate("good", {"objective": "counts", **QUICK}, "learns")
BAD = Candidate("bad", {"objective": "counts", **QUICK, "lr": 1e-9}, "does not learn")


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
    assert "verdict" in read_record(folder)


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


def test_other_data_is_refused(tmp_path):
    config = write_trips(tmp_path / "trips.csv")
    (tmp_path / "run").mkdir()
    saved = {"data": {"sha256": "0" * 64}, "candidates": [], "finetuned": None}
    (tmp_path / "run" / PORTFOLIO).write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="the data has changed"):
        train_portfolio(config, tmp_path / "run", resume=True)


def test_settings_of_the_user_come_before_those_of_a_candidate():
    given = RunConfig(optim=OptimConfig(lr=0.5))
    config = _as_candidate(given, Candidate("one", {"lr": 0.1, "dropout": 0.3}, ""))
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
    assert [one.name for one in candidates(images)] == ["cells", "cells-affine", "policy"]


@pytest.mark.parametrize(("most", "channels"), [(1, (10, 10, 32)), (5, (16, 32))])
def test_candidates_for_small_images_have_the_map_of_the_best_guess(tmp_path, most, channels):
    labels = ["image,labels"]
    for i in range(20):
        Image.new("RGB", (96, 96)).save(tmp_path / f"{i}.png")
        labels.append(f"{i}.png,{';'.join('ab'[j % 2] for j in range(i % most + 1))}")
    (tmp_path / "labels.csv").write_text("\n".join(labels) + "\n")
    task = prepare(RunConfig(DataConfig(str(tmp_path / "labels.csv"))))
    chosen = {one.name: one.values.get("channels") for one in candidates(task)}
    assert chosen == {"cells": channels, "cells-affine": channels, "policy": None}
    assert task.config.model.channels == channels  # as `--minutes 0` trains it


def features(images: int, max_size: int) -> Task:
    """Photographs as features of a backbone, of which the candidates read sizes only."""
    labels = np.zeros((images, max_size), dtype=np.int64)
    split = Examples(np.zeros((images, 4, 8, 8), dtype=np.float16), labels, classes=("a", "b"))
    config = ResolvedConfig(ResolvedData(backbone="efficientnet-lite0"), ResolvedModel(max_size=max_size))
    none = split.subset(np.arange(0))
    splits = {"train": split, "validation": none, "test": none}
    return Task(config, splits, splits, (4, 8, 8), (3, 256, 256), (), {}, None)


def test_features_of_a_finer_map_are_computed_for_small_data_only():
    small, large = ({one.name: one.values for one in candidates(features(n, 20))} for n in (600, 601))
    assert small["cells"]["strides"] == small["poisson"]["strides"] == (16, 32)
    assert small.keys() == large.keys()
    assert not any("strides" in values or "image_size" in values for values in large.values())


def test_no_candidate_counts_more_objects_than_its_map_has_cells():
    assert "cells" in {one.name for one in candidates(features(1_000, 64))}
    assert "cells" not in {one.name for one in candidates(features(1_000, 65))}
    assert "cells" in {one.name for one in candidates(features(500, 65))}


def test_candidates_that_read_the_same_features_are_trained_before_others_are_computed(tmp_path, monkeypatch):
    swept: list[list[str]] = []

    def sweep(runs, *_, **__):
        swept.append([*runs])
        return SweepResult({}, [], [])

    monkeypatch.setattr(auto, "sweep", sweep)
    short = {"objective": "ridge"}
    plan = [Candidate("a", short, ""), Candidate("b", {**short, "image_size": 99}, ""), Candidate("c", short, "")]
    with pytest.raises(ValueError, match="no candidate could be trained"):
        train_portfolio(write_trips(tmp_path / "trips.csv"), tmp_path / "run", only=plan)
    assert swept == [["a/part-1", "c/part-1"], ["b/part-1"]]
