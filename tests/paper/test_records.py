"""Reading records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from made_records import declared, place, true_counts, write_record

from paper.records import read_runs

TABLES = place("table-3", "L_multi", (0, 0), {"em": 0.95, "f1": 0.987})
MULTI, RL = "mnist-multi-4/multi/seed-0", "mnist-multi-4/rl/seed-0"
CORRECT = [True, False, True, True]


def test_runs_have_the_declared_order(tmp_path):
    path = write_record(tmp_path, MULTI, TABLES, CORRECT)
    other = write_record(tmp_path, "another/one/seed-3", {}, CORRECT)
    runs = read_runs(tmp_path, [declared(RL, TABLES), declared(MULTI, TABLES)])
    assert [(run.cell, run.path) for run in runs] == [(RL, None), (MULTI, path), ("another/one/seed-3", other)]
    assert [run.done for run in runs] == [False, True, True]
    # Declared cells have the current command, even if their record has an older one.
    assert runs[0].command == f"python -m paper run table-3 --scale smoke --only {RL}"
    assert runs[1].command == f"python -m paper run table-3 --scale smoke --only {MULTI}"
    assert runs[2].command == "an older command for another/one/seed-3"
    at = runs[1].tables["table-3"]
    assert (at.row, at.place, at.split, at.paper) == ("L_multi", (0, 0), "test", {"em": 0.95, "f1": 0.987})
    assert (runs[1].best_epoch, runs[1].minutes, runs[2].seed) == (2, 1.5, 3)


def test_a_cell_without_a_record_is_not_done(tmp_path):
    write_record(tmp_path, MULTI, TABLES, CORRECT).unlink()
    assert [run.done for run in read_runs(tmp_path, [declared(MULTI, TABLES)])] == [False]
    assert read_runs(tmp_path / "nowhere") == []


def test_epochs_and_predictions_of_a_record_are_read(tmp_path):
    write_record(tmp_path, MULTI, TABLES, CORRECT, epochs=(0.1, 0.7))
    (run,) = read_runs(tmp_path)
    assert [line["validation_em"] for line in run.epochs()] == [0.1, 0.7]
    assert run.entropy() is None
    predicted, true = run.predictions("test")
    np.testing.assert_array_equal(true, true_counts(4))
    assert (predicted == true).all(1).tolist() == CORRECT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ('{"format": 2}', "has format 2, and this version reads 1"),
        ('{"format": 1, "cell": "a"}', "is not the record of an experiment"),
        ("[]", "is not the record of an experiment"),
    ],
)
def test_a_damaged_record_is_reported_with_its_file(tmp_path, content, message):
    path = write_record(tmp_path, MULTI, TABLES, CORRECT)
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_runs(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["nothing", "no zip", "no test data"])
def test_damaged_predictions_are_reported_with_a_remedy(tmp_path, damage):
    path = write_record(tmp_path, MULTI, TABLES, CORRECT).with_name("predictions.npz")
    if damage == "nothing":
        path.write_bytes(b"")
    elif damage == "no zip":
        path.write_bytes(b"PK\x03\x04 and then something else")
    else:
        np.savez(path, classes=np.array(["cat"]))
    with pytest.raises(ValueError, match=f"is damaged.* {MULTI} --again"):
        read_runs(tmp_path)[0].predictions("test")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{MULTI} --again"):
        read_runs(tmp_path)[0].predictions("test")


def test_a_missing_run_has_no_epochs():
    with pytest.raises(ValueError, match=f"{RL} has not been run"):
        read_runs("nowhere", [declared(RL, TABLES)])[0].epochs()


def test_damaged_files_of_a_record_are_reported(tmp_path):
    tables = TABLES | place("entropy", "L_multi", (0, 0), None)
    path = write_record(tmp_path, MULTI, tables, CORRECT)
    (run,) = read_runs(tmp_path)
    assert run.entropy()["policy"]["mean"] == [1.0, 0.5]
    for name, read in (("epochs.jsonl", run.epochs), ("entropy.json", run.entropy)):
        path.with_name(name).write_text(json.dumps({})[:-1])
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            read()
