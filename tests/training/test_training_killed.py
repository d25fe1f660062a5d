"""Runs that are killed and resumed end like the run that was not, to the bit."""

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
def never_killed(tmp_path_factory):
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
def test_killed_at_random_moments(name, tmp_path, never_killed):
    folder, chance = tmp_path / "run", random.Random(name)
    places = []
    for _ in range(5):
        child = Child(name, folder)
        steps = chance.randint(8, 14)
        child.wait_for(lambda child=child, steps=steps: child.steps.value >= steps)
        child.send(signal.SIGKILL)
        assert child.end() == -signal.SIGKILL
        places.append(position(folder))
    assert places == sorted(set(places))  # each went on from where the one before it was killed
    assert any(step for _, step in places)  # in the middle of an epoch
    assert Child(name, folder).end() == 0
    assert outcome(folder) == never_killed(name)


@pytest.mark.parametrize("moment", ["half a checkpoint", "checkpoint.pt.partial", "epochs.jsonl.partial"])
def test_killed_during_the_second_save(moment, tmp_path, never_killed):
    folder = tmp_path / "run"
    kill_at(moment, folder)
    assert (folder / moment.replace("half a checkpoint", "checkpoint.pt.partial")).exists()
    assert position(folder) == (0, 5)
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == never_killed("batch norm")


@pytest.mark.parametrize("moment", ["weights-*.partial", "predictor.json.partial"])
def test_killed_while_the_best_weights_are_replaced(moment, tmp_path, never_killed):
    folder = tmp_path / "run"
    kill_at(moment, folder)
    assert len(list((folder / "best").glob(moment))) == 1
    epoch, step = position(folder)
    assert epoch >= 1
    assert step == 10  # the epoch has twelve: it is ended once more
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == never_killed("batch norm")


def test_killed_before_there_is_a_checkpoint(tmp_path, never_killed):
    folder = tmp_path / "run"
    kill_at("half a checkpoint", folder, time=1)
    assert not (folder / "checkpoint.pt").exists()
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == never_killed("batch norm")


def kill_at(moment: str, folder: Path, *, time: int = 2) -> None:
    child = Child("batch norm", folder, stop_at=(moment, time))
    child.wait_for(child.reached.is_set)
    child.send(signal.SIGKILL)
    assert child.end() == -signal.SIGKILL


def test_ctrl_c_lets_the_step_at_hand_end_and_saves_it(tmp_path, never_killed):
    folder = tmp_path / "run"
    assert Child("dropout", folder, interrupt=(8,)).end() == 3
    assert position(folder) == (0, 8)
    assert Child("dropout", folder).end() == 0
    assert outcome(folder) == never_killed("dropout")


def test_ctrl_c_twice_does_not_wait(tmp_path, never_killed):
    folder = tmp_path / "run"
    assert Child("dropout", folder, interrupt=(8, 8)).end() == 3
    assert position(folder) == (0, 5)
    assert Child("dropout", folder).end() == 0
    assert outcome(folder) == never_killed("dropout")


def test_ctrl_c_at_any_moment(tmp_path, never_killed):
    folder = tmp_path / "run"
    child = Child("batch norm", folder)
    child.wait_for(lambda: child.steps.value >= 20)
    child.send(signal.SIGINT)
    assert child.end() == 3
    assert position(folder) >= (1, 0)
    assert Child("batch norm", folder).end() == 0
    assert outcome(folder) == never_killed("batch norm")
