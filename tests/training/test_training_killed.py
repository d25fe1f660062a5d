"""Runs that are killed and resumed end bit for bit like a run that is not interrupted."""

from __future__ import annotations

import random
import signal
from functools import cache
from pathlib import Path

import pytest
from tiny_runs import Child, outcome

from torchmultiset.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

TASKS = ("batch norm", "reinforce", "dropout")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    @cache
    def run(name):
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert Child(name, folder, resume=False).end() == 0
        return outcome(folder)

    return run


def position(folder: Path) -> tuple[int, int]:
    progress = read_checkpoint(folder / "checkpoint.pt")["progress"]
    return progress["epoch"], progress["step"]


@pytest.mark.parametrize("name", TASKS)
def test_a_run_killed_at_random_moments_is_resumed(name, tmp_path, uninterrupted):
    folder, rng = tmp_path / "run", random.Random(name)
    positions = []
    for _ in range(5):
        child = Child(name, folder)
        steps = rng.randint(8, 14)
        child.wait_for(lambda child=child, steps=steps: child.steps.value >= steps)
        child.send(signal.SIGKILL)
        assert child.end() == -signal.SIGKILL
        positions.append(position(folder))
    assert positions == sorted(set(positions))  # each process resumed after the checkpoint of the previous one
    assert any(step for _, step in positions)  # at least one stopped within an epoch
    assert Child(name, folder).end() == 0
    assert outcome(folder) == uninterrupted(name)


@pytest.mark.parametrize("moment", ["half a checkpoint", "checkpoint.pt.partial", "epochs.jsonl.partial"])
def test_a_run_killed_during_the_second_save_is_resumed(moment, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    kill_at(moment, folder)
    assert (folder / moment.replace("half a checkpoint", "checkpoint.pt.partial")).exists()
    assert position(folder) == (0, 5)
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == uninterrupted("batch norm")


@pytest.mark.parametrize("moment", ["weights-*.partial", "predictor.json.partial"])
def test_a_run_killed_while_the_best_weights_are_replaced_is_resumed(moment, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    kill_at(moment, folder)
    assert len(list((folder / "best").glob(moment))) == 1
    epoch, step = position(folder)
    assert epoch >= 1
    assert step == 10  # an epoch has twelve steps, so its end is repeated
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == uninterrupted("batch norm")


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    kill_at("half a checkpoint", folder, time=1)
    assert not (folder / "checkpoint.pt").exists()
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == uninterrupted("batch norm")


def kill_at(moment: str, folder: Path, *, time: int = 2) -> None:
    child = Child("batch norm", folder, stop_at=(moment, time))
    child.wait_for(child.reached.is_set)
    child.send(signal.SIGKILL)
    assert child.end() == -signal.SIGKILL


def test_ctrl_c_finishes_and_saves_the_current_step(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    assert Child("dropout", folder, interrupt=(8,)).end() == 3
    assert position(folder) == (0, 8)
    assert Child("dropout", folder).end() == 0
    assert outcome(folder) == uninterrupted("dropout")


def test_a_second_ctrl_c_stops_at_once(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    assert Child("dropout", folder, interrupt=(8, 8)).end() == 3
    assert position(folder) == (0, 5)
    assert Child("dropout", folder).end() == 0
    assert outcome(folder) == uninterrupted("dropout")


def test_a_run_stopped_with_ctrl_c_is_resumed(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    child = Child("batch norm", folder)
    child.wait_for(lambda: child.steps.value >= 20)
    child.send(signal.SIGINT)
    assert child.end() == 3
    assert position(folder) >= (1, 0)
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == uninterrupted("batch norm")
