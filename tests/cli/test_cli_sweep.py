"""`multiset sweep` in new processes, which are killed, interrupted and restarted."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import runner
from killed_commands import Command, exists
from pet_table import write_pets

from torchmultiset._install import pip_install
from torchmultiset.cli.sweep import expand
from torchmultiset.model.serialization import read_description

pytestmark = pytest.mark.slow

RUNS = ["objective-multi/seed-0", "objective-counts/seed-0"]
SETTINGS = ["--objective", "multi", "counts", "--epochs", "15", "--batch-size", "4", "--units", "8", "--hidden", "8"]
WORKERS = ["--workers", "2", "--threads", "1"]
ENGINES = {"processes": [], "ray": ["--ray", "local"]}


def sweep(folder: Path, *tokens: str, background: bool = False) -> Command:
    folder.mkdir(exist_ok=True)
    if not (folder / "pets.csv").exists():
        write_pets(folder, examples=200)
    words = [sys.executable, "-m", "torchmultiset", "sweep", "pets.csv", *SETTINGS, *WORKERS, *tokens]
    return Command(folder, words, folder / "runs" / "pets-sweep", RUNS, background=background)


def weights(folder: Path) -> dict[str, str]:
    models = {name: folder / "runs" / "pets-sweep" / name / "model" for name in RUNS}
    return {name: read_description(path)["weights_sha256"] for name, path in models.items() if path.exists()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted sweep."""
    folder = tmp_path_factory.mktemp("whole")
    code, out, err = sweep(folder).end()
    assert code == 0, err
    assert sorted(line.split(":")[0] for line in err.splitlines()) == sorted(RUNS)
    assert "(2 of 2 done)" in err.splitlines()[-1]
    assert max(map(len, out.splitlines())) <= 80
    entries = json.loads((folder / "runs" / "pets-sweep" / "sweep.json").read_text())
    assert {entry["name"] for entry in entries} == {"objective-multi", "objective-counts"}
    best = max(entries, key=lambda entry: entry["validation_em"])
    assert f"multiset evaluate runs/pets-sweep/{best['name']}/seed-0 pets.csv" in out
    return folder


@pytest.mark.parametrize("engine", [*ENGINES.values()], ids=[*ENGINES])
def test_the_run_of_a_killed_worker_is_resumed(engine, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # must be ignored by --ray local
    command = sweep(tmp_path / "killed", *engine)
    killed = None
    while killed is None:
        name, pid = command.wait_for(command.in_the_middle)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed = None if name in weights(command.folder) else name  # otherwise the run had just finished
    code, _, err = command.end()
    assert code == 0, err
    assert command.starts(killed) == 2
    assert weights(command.folder) == weights(whole)


def test_a_sweep_resumes_after_ctrl_c_and_after_a_kill(whole, tmp_path):
    folder = tmp_path / "stopped"
    command = sweep(folder)
    name, worker = command.wait_for(command.in_the_middle)
    command.process.send_signal(signal.SIGINT)
    code, _, err = command.end()
    assert (code, err.splitlines()[-1]) == (130, "multiset: stopped: start the same command again to resume")
    assert not exists(worker)
    assert (folder / "runs" / "pets-sweep" / name / "checkpoint.pt").exists()

    command = sweep(folder, background=True)
    _, worker = command.wait_for(command.in_the_middle)
    command.process.kill()
    command.end()

    command = sweep(folder)  # waits for a worker of the killed command that may still be saving
    code, _, err = command.end()
    assert code == 0, err
    assert not exists(worker)
    assert weights(folder) == weights(whole)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (ENGINES["processes"], "failed 2 times, the last time with exit code 1"),
        (ENGINES["ray"], "[Errno 17] File exists"),  # Ray does not count attempts
    ],
    ids=[*ENGINES],
)
def test_a_failing_run_is_retried_and_reported_while_the_others_finish(engine, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    folder, (good, bad) = tmp_path / "failing", RUNS
    (folder / "runs" / "pets-sweep" / bad).mkdir(parents=True)
    (folder / "runs" / "pets-sweep" / bad / "best").write_text("a file where the best weights should go")
    command = sweep(folder, *engine)
    code, out, err = command.end()
    assert code == 1
    assert [*weights(folder)] == [good]
    assert "objective-multi" in out  # the leaderboard of the other runs
    assert command.starts(bad) == 2
    report = err[err.index("multiset: 1 run failed") :]
    (reported,) = (line for line in report.splitlines() if line.startswith(bad))
    assert reported.startswith(f"{bad}: {reason}")
    assert "best" in report.splitlines()[-1]
    assert "Traceback" not in report


# The grid


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch)


def test_finished_runs_are_skipped(run, whole, monkeypatch):
    monkeypatch.chdir(whole)

    def written():
        files = (path for path in whole.rglob("*") if path.is_file() and path.name != "sweep.json")
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    code, lines, err = run("sweep", "pets.csv", *SETTINGS, "--ray", "an unused address")
    assert (code, err) == (0, "")
    assert any("Leaderboard" in line for line in lines)
    assert written() == before


TWO_BY_TWO = [
    *("pets.csv", "--lr", "1e-3", "0.1", "--channels", "4,8", "16,32"),
    *("--hidden", "8", "--grey", "--strides", "16,32", "--holdout", "1/3", "--seed", "3", "4"),
]


def test_the_grid_is_the_product_of_all_values():
    varied = ["--lr", "1e-3", "0.1", "--channels", "4,8", "16,32", "--seed", "3", "4"]
    runs = expand(["pets.csv", *varied, "--hidden", "8", "--grey", "--strides", "16,32", "--holdout", "1/3"])
    assert len(runs) == 8
    config = runs["lr-0.1_channels-16,32/seed-4"]
    assert (config.optim.lr, config.model.channels, config.model.hidden) == (0.1, (16, 32), 8)
    assert (config.data.data, config.data.grey, config.data.strides, config.seed) == ("pets.csv", True, (16, 32), 4)


def test_each_run_has_the_settings_of_train():
    runs = expand(["--preset", "mnist-multi-4", "--recipe", "fast", "paper"])
    assert [*runs] == ["recipe-fast/seed-0", "recipe-paper/seed-0"]
    assert [config.optim.epochs for config in runs.values()] == [12, 200]


def test_a_dry_run_lists_the_runs_and_their_state(run, whole, monkeypatch):
    monkeypatch.chdir(whole)
    code, lines, _ = run("sweep", "pets.csv", *SETTINGS, "--seed", 0, 1, "--dry-run")
    assert code == 0
    states = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if "/seed-" in line}
    assert states == {
        **dict.fromkeys(RUNS, "done"),
        **{name.replace("seed-0", "seed-1"): "to be trained" for name in RUNS},
    }
    _, lines, _ = run("sweep", "pets.csv", *SETTINGS, "--lr", 0.5, "--dry-run")
    assert sum("stale: lr was 0.003 and is now 0.5" in " ".join(line.split()) for line in lines) == 2
    code, _, err = run("sweep", "pets.csv", *SETTINGS, "--lr", 0.5)
    assert code == 1
    assert "these runs are stale" in err


@pytest.mark.parametrize(
    ("tokens", "code", "message"),
    [
        (["pets.csv", "--objective", "multy"], 2, "multy"),
        (["pets.csv", "--objectve", "multi"], 2, "--objective"),
        (["--objective", "multi"], 2, "no data set is specified"),
        (["pets.csv", "--resume"], 1, "--resume is not a setting of a sweep"),
        (["pets.csv", "--lr", "1", "--lr", "2"], 1, "--lr is specified twice"),
        (["pets.csv", "--seed", "1", "1"], 1, "two runs have the name seed-1"),
        (["pets.csv", "--workers", "0"], 2, "--workers"),
        (["nowhere.csv"], 1, "nowhere.csv"),
    ],
)
def test_errors_are_explained(run, tokens, code, message):
    ended, _, err = run("sweep", *tokens)
    assert (ended, message in err) == (code, True), err
    assert "Traceback" not in err


def test_without_ray_the_error_has_the_install_command(run, monkeypatch, tmp_path):
    write_pets(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("sweep", "pets.csv", "--ray", "local")
    assert code == 1
    assert err == f"multiset: --ray needs Ray, which is not installed: {pip_install('cluster')}\n"
