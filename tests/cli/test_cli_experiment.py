"""`multiset experiment`, as a user runs it: processes that are killed, stopped and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import runner

DEADLINE = 600
CELLS = ["mnist-multi-10/dm-kl/seed-0", "mnist-multi-4/multi/seed-0"]
ONLY = [token for cell in CELLS for token in ("--only", cell)]
SMOKE = ["table-3", "--scale", "smoke", *ONLY]
ENGINES = {"processes": ("--workers", "2"), "ray": ("--workers", "2", "--ray", "local")}


class Command:
    """The command in a process of its own, in a folder of its own; in the background it ignores Ctrl-C."""

    def __init__(self, folder: Path, *tokens: str, background: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchmultiset", "experiment", *tokens],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # The tests themselves may run in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.SIG_DFL),
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def wait_for(self, condition):
        """What the condition gives, once that is something."""
        deadline = time.monotonic() + DEADLINE
        while not (found := condition()):
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)
        return found

    def in_the_middle(self) -> tuple[str, int] | None:
        """A cell that is learning now, and the process that does it."""
        for cell in CELLS:
            told = read(self.folder / "runs" / "experiments" / "smoke" / cell / "progress.json")
            done = (self.folder / "results" / "smoke" / cell / "record.json").exists()
            if 0 < told.get("share", 0) < 1 and not done and exists(told["pid"]):
                return cell, told["pid"]
        return None


def read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def records(folder: Path) -> dict[str, dict]:
    base = folder / "results" / "smoke"
    return {path.parent.relative_to(base).as_posix(): read(path) for path in sorted(base.rglob("record.json"))}


def weights(folder: Path) -> dict[str, str]:
    return {cell: record["weights_sha256"] for cell, record in records(folder).items()}


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def starts(folder: Path, cell: str) -> int:
    """How often a cell was begun, or gone on with."""
    return (folder / "runs" / "experiments" / "smoke" / cell / "log.txt").read_text().count("Data: ")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two cells that nobody disturbed, at a time."""
    folder = tmp_path_factory.mktemp("whole")
    code, out, err = Command(folder, *SMOKE, "--workers", "2", "--threads", "1").end()
    assert code == 0, err
    assert out == "All 2 cells are done; see results/smoke.\n"
    assert sorted(line.split(":")[0] for line in err.splitlines()) == CELLS
    assert "(2 of 2 done)" in err.splitlines()[-1]
    return folder


@pytest.fixture
def data(whole):
    return "--data", str(whole / "data")


def test_each_cell_has_its_record(whole):
    told = records(whole)
    assert [*told] == CELLS
    assert all(record["cell"] == cell for cell, record in told.items())
    assert (whole / "results" / "smoke" / CELLS[0] / "entropy.json").exists()


def test_what_is_done_is_skipped(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    code, out, err = Command(whole, *SMOKE, "--ray", "an address that nobody asks").end()
    assert (code, err) == (0, "")
    assert out == "All 2 cells are done; see results/smoke.\n"
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.mark.parametrize("engine", [*ENGINES.values()], ids=[*ENGINES])
def test_a_worker_that_is_killed_loses_nothing(engine, whole, data, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where --ray local must not look
    command = Command(tmp_path / "killed", *SMOKE, *data, "--threads", "1", *engine)
    killed = None
    while killed is None:
        cell, pid = command.wait_for(command.in_the_middle)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        # It may have ended just before: then another one has to do.
        killed = None if cell in records(command.folder) else cell
    code, _, err = command.end()
    assert code == 0, err
    assert starts(command.folder, killed) == 2
    assert weights(command.folder) == weights(whole)


def test_stopped_by_ctrl_c_and_then_killed_it_goes_on_where_it_was(whole, data, tmp_path):
    cell, folder = CELLS[0], tmp_path / "stopped"
    options = ["entropy", "--scale", "smoke", "--only", cell, *data, "--threads", "1"]
    command = Command(folder, *options)
    _, worker = command.wait_for(command.in_the_middle)
    command.process.send_signal(signal.SIGINT)
    code, _, err = command.end()
    assert code == 130
    assert err == "multiset: stopped: start the same command again, and it goes on where it was\n"
    assert not exists(worker)
    assert (folder / "runs" / "experiments" / "smoke" / cell / "checkpoint.pt").exists()

    command = Command(folder, *options, background=True)
    _, worker = command.wait_for(command.in_the_middle)
    command.process.kill()
    command.end()

    command = Command(folder, *options)  # the worker of the one before may still be saving: it is waited for
    code, _, err = command.end()
    assert code == 0, err
    assert not exists(worker)
    assert starts(folder, cell) == 3
    assert weights(folder) == {cell: weights(whole)[cell]}


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (ENGINES["processes"], "failed 2 times, the last time with exit code 1"),
        (ENGINES["ray"], "[Errno 17] File exists"),  # Ray counts no tries: the error itself is told
    ],
    ids=[*ENGINES],
)
def test_a_cell_that_fails_is_tried_again_and_reported_and_the_others_are_not_lost(
    engine, reason, data, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where --ray local must not look
    folder, (good, bad) = tmp_path / "failing", CELLS
    run = folder / "runs" / "experiments" / "smoke" / bad
    run.mkdir(parents=True)
    (run / "best").write_text("a file where the best weights should go")
    code, out, err = Command(folder, *SMOKE, *data, "--threads", "1", *engine).end()
    assert (code, out) == (1, "")
    assert [*records(folder)] == [good]
    assert starts(folder, bad) == 2
    report = err[err.index("multiset: 1 cell failed") :]
    (told,) = (line for line in report.splitlines() if line.startswith(bad))
    assert told.startswith(f"{bad}: {reason}")
    assert told.endswith(". Its log ends:")
    assert "best" in report.splitlines()[-1]
    assert "Traceback" not in report


def test_a_changed_config_is_refused_until_it_is_asked_for_again(whole, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "smoke" / CELLS[1]
    folder.mkdir(parents=True)
    told = records(whole)[CELLS[1]]
    told["config"] |= {"epochs": 30, "lr": 0.5}
    (folder / "record.json").write_text(json.dumps(told))
    run = runner(capsys, monkeypatch)
    options = ["experiment", "table-3", "--scale", "smoke", "--only", CELLS[1], *data]
    code, _, err = run(*options)
    assert code == 1
    assert f"{CELLS[1]}: epochs was 30 and is now 3; lr was 0.5 and is now 0.003" in err
    assert "--again" in err
    _, lines, _ = run(*options, "--dry-run")
    assert any("changed: epochs was 30" in line for line in lines)
    code, _, err = run(*options, "--again", "--threads", 1)
    assert code == 0, err
    assert records(tmp_path)[CELLS[1]]["weights_sha256"] == told["weights_sha256"]


# What is asked for


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for variable in ("TORCHMULTISET_COCO", "TORCHMULTISET_MNIST"):
        monkeypatch.delenv(variable, raising=False)
    return runner(capsys, monkeypatch)


def test_a_dry_run_lists_the_cells_and_what_is_done(run, whole, monkeypatch):
    monkeypatch.chdir(whole)
    code, lines, _ = run("experiment", "table-1", "table-3", "--scale", "smoke", "--dry-run")
    assert code == 0
    rows = {line.split()[0]: line for line in lines if "/seed-" in line}
    assert len(rows) == 8 + 30 - 2
    assert [cell for cell, row in rows.items() if row.endswith(" done")] == [CELLS[1], CELLS[0]]
    assert rows["coco-easy/seq-area/seed-0"].split(maxsplit=1)[1].split() == ["table-1", "to", "be", "run"]
    assert lines[-1].startswith("36 cells, 2 done; the others take ")


def test_a_cell_of_which_not_all_is_measured_is_called_so(run, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / "results" / "smoke" / CELLS[1] / "worth.json").unlink()
    folders = ("--results", tmp_path / "copy" / "results", "--runs", tmp_path / "copy" / "runs" / "experiments")
    _, lines, _ = run("experiment", "table-3", "--scale", "smoke", "--dry-run", "--only", CELLS[1], *folders)
    assert any(line.endswith(" to be measured") for line in lines)


def test_a_dry_run_touches_nothing(run, tmp_path):
    code, lines, _ = run("experiment", "all", "--scale", "paper", "--dry-run")
    assert code == 0
    assert lines[-1] == "126 cells, 0 done."  # how long that takes is not known
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("tokens", "code", "message"),
    [
        (["table-4", "--scale", "smoke"], 2, "table-4"),
        (["table-1"], 2, "--scale"),
        (["--scale", "smoke"], 2, "NAMES"),
        (["table-1", "--scale", "tiny"], 2, "tiny"),
        (["table-1", "--scale", "smoke", "--workers", "0"], 2, "--workers"),
        (["table-1", "--scale", "smoke", "--only", "mnist-multi-10"], 1, "no cell is called mnist-multi-10"),
        (["table-1", "--scale", "small"], 1, "all 70,000 digits of MNIST"),
        (["table-2", "--scale", "small"], 1, "name its folder (--coco"),
    ],
)
def test_what_is_wrong_is_said(run, tokens, code, message, tmp_path):
    ended, _, err = run("experiment", *tokens)
    assert ended == code
    assert message in err
    assert "Traceback" not in err


def test_without_ray_it_is_said_how_to_get_it(run, monkeypatch, whole, data):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("experiment", *SMOKE, *data, "--ray", "local")
    assert code == 1
    assert err == 'multiset: --ray needs Ray, which is not installed: pip install "torchmultiset[cluster]"\n'
