from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from torchmultiset.pipeline.config import config_of
from torchmultiset.pipeline.predictions import read_counts, write_counts
from torchmultiset.pipeline.sweep import FinishedRun
from torchmultiset.pipeline.sweep_table import leaderboard, leaderboard_table, write_leaderboard
from torchmultiset.training.evaluation import Evaluation

TRUE = torch.from_numpy(np.random.default_rng(5).integers(0, 3, (40, 2)))


def run(folder, objective, right, *, seed=0, validation=0.5, split="test", examples=40, name=None):
    """A finished run whose predictions are correct for the first `right` examples."""
    predicted = TRUE.clone()
    predicted[right:, 0] += 1
    path = folder / (name or f"{objective}/seed-{seed}")
    path.mkdir(parents=True)
    write_counts(path, {split: Evaluation(predicted[:examples], TRUE[:examples])}, ["cat", "dog"])
    scores = {"overall": {"exact_match": right / 40, "f1": 0.5 + right / 80}}
    record = {"validation": {"overall": {"exact_match": validation, "f1": 0.75}}, "minutes": 1.5, split: scores}
    record |= {"data": {"name": "pets.csv", "sha256": "0"}}
    config = config_of({"data": "pets.csv", "objective": objective, "seed": seed})
    return FinishedRun(name or f"{objective}/seed-{seed}", config, path, record)


def test_runs_are_grouped_over_seeds_and_sorted_by_validation_data(tmp_path):
    runs = [run(tmp_path, "multi", 30, seed=seed, validation=0.4 + seed / 10) for seed in (1, 0)]
    runs.append(run(tmp_path, "counts", 20, validation=0.9))
    first, second = leaderboard(runs)
    assert (first.name, second.name) == ("counts", "multi")  # although it has the lower test score
    assert (first.seeds, second.seeds) == ((0,), (0, 1))
    assert second.validation_em == pytest.approx(0.45)
    assert (first.exact_match.value, first.exact_match.spread) == (0.5, None)


def test_entries_have_means_standard_deviations_and_intervals(tmp_path):
    runs = [run(tmp_path, "multi", right, seed=seed) for seed, right in enumerate((20, 30))]
    (entry,) = leaderboard(runs)
    assert entry.exact_match.value == pytest.approx(0.625)
    assert entry.exact_match.spread == pytest.approx(0.25 / math.sqrt(2))
    low, high = entry.exact_match.interval
    # 20 examples are correct with both seeds, 10 with one and 10 with none, which gives the standard error.
    variance = (20 * 1 + 10 * 0.25) / 40 - 0.625**2
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(variance / 40), rel=0.15)
    assert (entry.p, entry.split, entry.minutes) == (None, "test", 1.5)


def test_each_entry_is_tested_against_the_first_with_the_correction_of_holm(tmp_path):
    rights = {"multi": 30, "counts": 20, "rl": 24}
    runs = [run(tmp_path, name, right, validation=right / 40) for name, right in rights.items()]
    p = {entry.name: entry.p for entry in leaderboard(runs)}
    # McNemar's exact test for 10 to 0 and 6 to 0; the smaller p-value is multiplied by two.
    assert p == {"multi": None, "counts": pytest.approx(2 * 2 / 2**10), "rl": pytest.approx(2 / 2**6)}


def test_runs_with_other_test_examples_or_seeds_are_not_compared(tmp_path):
    runs = [
        run(tmp_path, "multi", 30, validation=0.9),
        run(tmp_path, "counts", 20, examples=39),
        run(tmp_path, "rl", 20, seed=3),
        run(tmp_path, "seq", 20),
    ]
    assert {entry.name: entry.p is None for entry in leaderboard(runs)} == {
        "multi": True,
        "counts": True,
        "rl": True,
        "seq": False,
    }


def test_without_test_data_validation_data_is_scored(tmp_path):
    (entry,) = leaderboard([run(tmp_path, "multi", 30, split="validation")])
    assert (entry.split, entry.exact_match.value) == ("validation", 0.75)


def test_the_leaderboard_is_written_and_fits_a_terminal(tmp_path):
    long = "objective-multi_policy-transformer_lr-0.0003/seed-0"
    runs = [run(tmp_path, "multi", 30, name=long, validation=0.9)]
    runs += [run(tmp_path, "counts", 20 + seed, seed=seed) for seed in range(3)]
    entries = leaderboard(runs)
    path = write_leaderboard(tmp_path, entries)
    rows = json.loads(path.read_text())
    assert [(row["name"], row["seeds"]) for row in rows] == [(long[:-7], [0]), ("counts", [0, 1, 2])]
    assert rows[1]["exact_match"]["value"] == pytest.approx(0.525)
    console = Console(file=io.StringIO(), width=80)
    console.print(leaderboard_table(entries))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "0.525 ±0.025" in text
    assert leaderboard([]) == []


def test_missing_and_damaged_counts_are_reported(tmp_path):
    finished = run(tmp_path, "multi", 30)
    predicted, true = finished.counts("test")
    assert predicted.dtype == np.uint8
    np.testing.assert_array_equal(true, TRUE.numpy())
    path = finished.folder / "predictions.npz"
    with pytest.raises(ValueError, match="is damaged"):
        read_counts(path, "seen", fix="run it again")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist: delete the run folder"):
        finished.counts("test")
