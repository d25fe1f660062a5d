from __future__ import annotations

import time

import pytest
import torch
from pet_table import FAST, write_pets

from torchmultiset.pipeline import workers
from torchmultiset.pipeline.config import RunConfig, config_of, to_dict
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.workers import Job, WorkerError, subprocesses, work

pytestmark = pytest.mark.slow


def test_a_config_is_unchanged_by_a_round_trip():
    config = config_of(
        {"data": "x", "channels": [4, 8], "objective": "rl", "entropy_weight": 0.5, "lr": 0.5, "seed": 7}
    )
    assert config_of(to_dict(config)) == config
    assert (config.model.channels, config.objective.entropy_weight, config.seed) == ((4, 8), 0.5, 7)
    assert config_of({}) == RunConfig()
    with pytest.raises(ValueError, match="there is no setting epoks"):
        config_of({"epoks": 3})


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0", "1", "2", "0"]), ("4,GPU-7", ["4", "GPU-7", "4", "GPU-7"])]
)
def test_gpus_are_assigned_to_workers_in_turn(monkeypatch, visible, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3 if visible is None else 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = workers._gpus(4)
    assert gpus is not None
    assert [gpus.get_nowait() for _ in range(4)] == expected


def test_without_a_gpu_none_is_assigned(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert workers._gpus(4) is None


@pytest.fixture
def job(tmp_path):
    return Job("multi/seed-0", str(tmp_path), "runs/multi/seed-0", {}, 1)


def play(monkeypatch, program: str) -> None:
    """Make workers execute this program instead of training."""
    real = workers.subprocess.Popen
    start = lambda command, **options: real([command[0], "-c", program], **options)  # noqa: E731
    monkeypatch.setattr(workers.subprocess, "Popen", start)


def test_a_failing_run_is_retried_and_then_reported(monkeypatch, job, tmp_path):
    play(monkeypatch, "print('here'); raise SystemExit(7)")
    with subprocesses(1, retries=2) as crew:
        error = crew.submit(job).exception(60)
    assert isinstance(error, WorkerError)
    assert str(error) == "failed 3 times, the last time with exit code 7"
    assert (tmp_path / job.folder / "log.txt").read_text() == "here\n" * 3


def test_a_run_may_succeed_when_it_is_retried(monkeypatch, job):
    play(monkeypatch, "import os\nif not os.path.exists('been'):\n    os.mkdir('been')\n    os.kill(os.getpid(), 9)")
    with subprocesses(1) as crew:
        assert crew.submit(job).result(60) is None


def test_a_signal_is_reported(monkeypatch, job):
    play(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with subprocesses(1, retries=0) as crew:
        assert str(crew.submit(job).exception(60)) == "failed once, the last time by SIGKILL"


# Reports its start, and ends when its standard input is closed.
WAITS = "import sys; print('here', flush=True); sys.stdin.read(); sys.exit(130)"


def test_an_error_in_the_block_stops_all_workers(monkeypatch, job, tmp_path):
    play(monkeypatch, WAITS)
    log, futures = tmp_path / job.folder / "log.txt", []

    def interrupt() -> None:
        with subprocesses(1) as crew:
            futures.extend([crew.submit(job), crew.submit(job)])
            while not (log.exists() and log.read_text()):
                time.sleep(0.005)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert isinstance(futures[0].exception(0), WorkerError)
    assert futures[1].cancelled()
    assert log.read_text() == "here\n"


def test_a_stopped_run_is_not_retried(monkeypatch, job, tmp_path):
    play(monkeypatch, WAITS)
    other = job._replace(name="other", folder="runs/other")
    log = tmp_path / job.folder / "log.txt"
    with subprocesses(1, retries=5) as crew:
        futures = [crew.submit(job), crew.submit(other)]
        while not (log.exists() and log.read_text()):
            time.sleep(0.005)
        crew.stop("other")  # not started yet
        crew.stop(job.name)
        assert [isinstance(future.exception(60), WorkerError) for future in futures] == [True, True]
    assert log.read_text() == "here\n"
    assert (tmp_path / "runs" / "other" / "log.txt").read_text() == ""


def note(name, folder, task, *, text):
    """The function that the test below calls after a run."""
    (folder / "note.txt").write_text(f"{text} {name} {len(task.splits['test'])}")


def test_work_trains_and_calls_a_function_even_if_the_run_is_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pets(tmp_path)
    values = to_dict(config_of({"data": "pets.csv", "objective": "multi", **FAST}))
    job = Job("a", str(tmp_path), "runs/a", values, 1, ("multiset", "sweep"), f"{__name__}:note", {"text": "after"})
    threads = torch.get_num_threads()
    try:
        work(job)
        record = read_record(tmp_path / "runs" / "a")
        assert (record["finished"], record["command"], record["threads"]) == (True, "multiset sweep", 1)
        tests = record["examples"]["test"]
        assert (tmp_path / "runs" / "a" / "note.txt").read_text() == f"after a {tests}"
        (tmp_path / "runs" / "a" / "note.txt").unlink()
        work(job)
        assert (tmp_path / "runs" / "a" / "note.txt").read_text() == f"after a {tests}"
        assert read_record(tmp_path / "runs" / "a") == record
    finally:
        torch.set_num_threads(threads)
