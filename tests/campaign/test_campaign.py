"""The campaign with few faults, in about a minute; `make campaign` injects thousands."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

from campaign.conditions import disk_full, read_only, tmpfs, two_at_once
from campaign.damage import Crew, damage, damaged_inputs, judge
from campaign.formats import by_structure
from campaign.kills import kill_scenario
from campaign.kinds import KINDS
from campaign.mutate import by_bytes
from campaign.numbers import degenerate_data
from campaign.page import page
from campaign.server import abuse
from torchmultiset._files import write_whole

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICK = [name for name, kind in KINDS.items() if kind.weight > 1] + ["checkpoint"]


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    """A worker process, which takes seconds to start, and valid inputs to damage."""
    crew = Crew(tmp_path_factory.mktemp("crew"), QUICK)
    yield crew
    crew.close()


def test_damaged_inputs_are_refused_or_read_correctly(crew, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("campaign.damage.Crew", lambda *_: crew)
        patch.setattr(crew, "close", lambda: None)
        result = damaged_inputs(crew.root, 150, seed=1, names=QUICK)
    assert result["failures"] == []
    assert result["tried"] == 150
    assert sum(kind.get("refused", 0) for kind in result["kinds"].values()) > 60


def test_the_same_seed_gives_the_same_damage(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    KINDS["table (CSV)"].build(base)
    once, again, other = (damage("table (CSV)", 5, seed, base, tmp_path / "s")[1].read_bytes() for seed in (0, 0, 1))
    assert once == again != other


def test_the_judge_distinguishes_wrong_unclear_and_correct_outcomes(tmp_path):
    file = tmp_path / "folder" / "x.npy"
    assert judge("model", file, 0, "other", "", "valid") == (
        "wrong success",
        "x.npy was read without an error, with another result",
    )
    assert judge("model", file, 0, "valid", "", "valid") == ("read", "")
    assert judge("array (.npy)", file, 1, "", "it is damaged: save it again", "")[0] == "unclear"
    assert judge("array (.npy)", file, 1, "", "x.npy is damaged", "")[0] == "unclear"
    assert judge("array (.npy)", file, 1, "", "x.npy is damaged: save it again", "") == ("refused", "")


def test_a_worker_that_dies_is_replaced(crew):
    restarts = crew.restarts
    os.kill(crew.process.pid, signal.SIGSTOP)  # so that it dies during a case
    threading.Timer(0.2, crew.process.kill).start()
    assert crew.attempt("table (CSV)", 1, 0)["outcome"] == "crash"
    assert crew.restarts == restarts + 1
    assert crew.attempt("table (CSV)", 2, 0)["outcome"] in ("read", "refused")


@pytest.mark.parametrize("name", ["save", "feature cache with views"])
def test_killed_processes_leave_valid_files(tmp_path, name):
    result = kill_scenario(name, tmp_path, 2, seed=1)
    assert result["failures"] == []
    assert result["kills"] >= 1


def test_full_and_read_only_disks_are_reported(tmp_path):
    try:
        with tmpfs(tmp_path / "disk", 100):
            pass
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"needs root: {error}")
    with tmpfs(tmp_path / "disk", 100), pytest.raises(OSError, match=r"No space left on device: .*disk/file"):
        write_whole(tmp_path / "disk" / "file", bytes(200_000))
    assert disk_full(tmp_path / "full", "feature cache with views") == []
    assert read_only(tmp_path / "read-only", "save") == []


def test_two_runs_in_one_folder_do_not_disturb_each_other(tmp_path):
    assert two_at_once(tmp_path, "training", 1) == []


def test_the_server_answers_good_requests_and_refuses_damaged_ones(tmp_path):
    result = abuse(tmp_path / "served", 64, seed=1, browser=False)
    assert result["failures"] == []
    assert result["requests"]["good"] == 32
    assert result["damaged requests"]["read"] > 0
    assert result["damaged requests"]["refused"] > 20
    assert result["default rate"] == {"200": 60, "429": 10}


def test_training_on_degenerate_data_stays_finite(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # figures take longer than training here
    result = degenerate_data(tmp_path, objectives=("counts",), precisions=("32-true",))
    assert result["failures"] == []
    assert result["data"]["all inputs equal"] == {"finite": 1}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.toml", "a.txt"])
def test_mutations_change_the_content(name):
    content = {"a.json": b'{"a": [1, 2]}', "a.jsonl": b'{"a": 1}\n{"b": 2}\n', "a.csv": b"a,b\n1,2\n"}.get(
        name, b"a = 1\nb = 2\n"
    )
    for mutate in (by_bytes, by_structure(name)):
        assert len({mutate(content, random.Random(seed)) for seed in range(40)}) > 15


def test_the_page_matches_the_record():
    record = json.loads((ROOT / "results" / "campaign.json").read_text())
    assert (ROOT / "docs" / "campaign.md").read_text() == page(record)
