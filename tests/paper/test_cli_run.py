"""`python -m paper run` in new processes: killed workers and stale cells."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import runner
from killed_commands import Command, read
from workers_here import workers_here

from paper.__main__ import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CELLS = ["mnist-multi-10/dm-kl/seed-0", "mnist-multi-4/multi/seed-0"]
ONLY = [token for cell in CELLS for token in ("--only", cell)]
SMOKE = ["table-3", "--scale", "smoke", *ONLY]


def command(folder: Path, *tokens: str) -> Command:
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "paper", "run", *tokens, "--workers", "2", "--threads", "1"]
    return Command(folder, words, folder / "runs" / "experiments" / "smoke", CELLS)


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Make the package `paper`, which is not installed, importable in new processes."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])
    yield
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def records(folder: Path) -> dict[str, dict]:
    base = folder / "results" / "smoke"
    return {path.parent.relative_to(base).as_posix(): read(path) for path in sorted(base.rglob("record.json"))}


def weights(folder: Path) -> dict[str, str]:
    return {cell: record["weights_sha256"] for cell, record in records(folder).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two cells of an uninterrupted command."""
    folder = tmp_path_factory.mktemp("whole")
    code, out, err = command(folder, *SMOKE).end()
    assert code == 0, err
    assert out == "All 2 cells are done; see results/smoke.\n"
    assert sorted(line.split(":")[0] for line in err.splitlines()) == CELLS
    assert [*records(folder)] == CELLS
    assert (folder / "results" / "smoke" / CELLS[0] / "entropy.json").exists()
    return folder


@pytest.fixture
def data(whole):
    return "--data", str(whole / "data")


def test_the_run_of_a_killed_worker_is_resumed(whole, data, tmp_path):
    running = command(tmp_path / "killed", *SMOKE, *data)
    killed = None
    while killed is None:
        cell, pid = running.wait_for(running.in_the_middle)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed = None if cell in records(running.folder) else cell  # otherwise the cell had just finished
    code, _, err = running.end()
    assert code == 0, err
    assert running.starts(killed) == 2
    assert weights(running.folder) == weights(whole)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commands = runner(capsys, monkeypatch, app)
    for variable in ("TORCHMULTISET_COCO", "TORCHMULTISET_MNIST"):
        monkeypatch.delenv(variable, raising=False)
    return lambda *tokens: commands("run", *tokens)


def test_done_cells_are_skipped(whole, run, monkeypatch):
    monkeypatch.chdir(whole)
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    code, lines, err = run(*SMOKE, "--ray", "an unused address")
    assert (code, lines, err) == (0, ["All 2 cells are done; see results/smoke."], "")
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_stale_cell_is_refused_until_it_is_run_again(whole, data, tmp_path, run):
    folder = tmp_path / "results" / "smoke" / CELLS[1]
    folder.mkdir(parents=True)
    stale = records(whole)[CELLS[1]]
    stale["config"] |= {"epochs": 30, "lr": 0.5}
    (folder / "record.json").write_text(json.dumps(stale))
    options = ["table-3", "--scale", "smoke", "--only", CELLS[1], *data]
    code, _, err = run(*options)
    assert code == 1
    assert f"{CELLS[1]}: epochs was 30 and is now 3; lr was 0.5 and is now 0.006" in err
    assert "--again" in err
    _, lines, _ = run(*options, "--dry-run")
    assert any("stale: epochs was 30" in line for line in lines)
    assert lines[-1] == "1 cells, 1 with a record, 1 stale."
    with workers_here():
        code, _, err = run(*options, "--again", "--threads", 1)
    assert code == 0, err
    assert records(tmp_path)[CELLS[1]]["weights_sha256"] == stale["weights_sha256"]


def test_a_dry_run_lists_the_cells_and_their_state(run, whole, monkeypatch):
    monkeypatch.chdir(whole)
    code, lines, _ = run("table-1", "table-3", "--scale", "smoke", "--dry-run")
    assert code == 0
    rows = {line.split()[0]: line for line in lines if "/seed-" in line}
    assert len(rows) == 8 + 30 - 2
    assert [cell for cell, row in rows.items() if row.endswith(" done")] == [CELLS[1], CELLS[0]]
    assert rows["coco-easy/seq-area/seed-0"].split(maxsplit=1)[1].split() == ["table-1", "to", "be", "run"]
    assert lines[-1].startswith("36 cells, 2 with a record; the others take about ")


def test_a_dry_run_writes_nothing(run, tmp_path):
    code, lines, _ = run("all", "--scale", "paper", "--dry-run")
    assert code == 0
    assert lines[-1] == "126 cells, 0 with a record."  # their duration is unknown
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("tokens", "code", "message"),
    [
        (["table-4", "--scale", "smoke"], 2, "table-4"),
        (["table-1"], 2, "--scale"),
        (["--scale", "smoke"], 2, "NAMES"),
        (["table-1", "--scale", "tiny"], 2, "tiny"),
        (["table-1", "--scale", "smoke", "--workers", "0"], 2, "--workers"),
        (["table-1", "--scale", "smoke", "--only", "mnist-multi-10"], 1, "no cell matches mnist-multi-10"),
        (["table-1", "--scale", "small"], 1, "all 70,000 digits of MNIST"),
        (["table-2", "--scale", "small"], 1, "pass its folder (--coco"),
    ],
)
def test_errors_are_explained(run, tokens, code, message):
    ended, _, err = run(*tokens)
    assert (ended, message in err) == (code, True), err
    assert err.startswith("python -m paper: ")
    assert "Traceback" not in err
