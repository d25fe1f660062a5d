from __future__ import annotations

import time

import pytest
import torch

from torchmultiset.experiments import engines
from torchmultiset.experiments.engines import subprocesses
from torchmultiset.experiments.worker import CellError, Job


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0", "1", "2", "0"]), ("4,GPU-7", ["4", "GPU-7", "4", "GPU-7"])]
)
def test_workers_take_the_gpus_in_turn(monkeypatch, visible, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3 if visible is None else 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = engines._gpus(4)
    assert gpus is not None
    assert [gpus.get_nowait() for _ in range(4)] == expected


def test_without_a_gpu_none_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert engines._gpus(4) is None


@pytest.fixture
def job(tmp_path):
    return Job("smoke", "mnist-multi-4/multi/seed-0", str(tmp_path), "results", "runs", "data", 1)


def play(monkeypatch, program: str) -> None:
    """Let workers run this, and not PyTorch."""
    real = engines.subprocess.Popen
    start = lambda command, **options: real([command[0], "-c", program], **options)  # noqa: E731
    monkeypatch.setattr(engines.subprocess, "Popen", start)


def test_what_fails_is_tried_so_often_and_then_given_up(monkeypatch, job, tmp_path):
    play(monkeypatch, "print('here'); raise SystemExit(7)")
    with subprocesses(1, retries=2) as submit:
        error = submit(job).exception(60)
    assert isinstance(error, CellError)
    assert str(error) == "failed 3 times, the last time with exit code 7"
    assert (tmp_path / "runs" / "smoke" / job.cell / "log.txt").read_text() == "here\n" * 3


def test_what_fails_once_may_succeed_the_second_time(monkeypatch, job):
    play(monkeypatch, "import os\nif not os.path.exists('been'):\n    os.mkdir('been')\n    os.kill(os.getpid(), 9)")
    with subprocesses(1) as submit:
        assert submit(job).result(60) is None


def test_a_signal_is_named(monkeypatch, job):
    play(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with subprocesses(1, retries=0) as submit:
        assert str(submit(job).exception(60)) == "failed once, the last time by SIGKILL"


def test_an_error_in_the_block_ends_the_workers_and_lets_no_other_begin(monkeypatch, job, tmp_path):
    # A worker says that it is there, and ends when its standard input does.
    play(monkeypatch, "import sys; print('here', flush=True); sys.stdin.read(); sys.exit(130)")
    log, futures = tmp_path / "runs" / "smoke" / job.cell / "log.txt", []

    def interrupt() -> None:
        with subprocesses(1) as submit:
            futures.extend([submit(job), submit(job)])
            while not (log.exists() and log.read_text()):
                time.sleep(0.005)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert isinstance(futures[0].exception(0), CellError)
    assert futures[1].cancelled()
    assert log.read_text() == "here\n"
