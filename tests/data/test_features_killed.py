from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORKER = """
    import sys, time
    import numpy as np, torch
    from torchmultiset.data.features import cache_features

    class Slow:
        name = "slow"
        def fingerprint(self):
            return "0"
        def __call__(self, images):
            time.sleep(float(sys.argv[2]))
            with open(sys.argv[3], "a") as log:
                log.writelines(f"{int(image[0, 0, 0])}\\n" for image in images)
            return images.float().mean((2, 3), keepdim=True)

    images = np.arange(40, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(4, 2).repeat(4, 3)
    cache = cache_features(Slow(), images, sys.argv[1], keys=[str(i) for i in range(40)], batch_size=2)
    assert (cache[np.arange(40)] == np.arange(40)[:, None, None, None]).all()
    print("complete", len(cache))
"""


def start_worker(folder: Path, seconds: float, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(folder), str(seconds), str(log)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone)


def finish(worker: subprocess.Popen[str]) -> None:
    out, err = worker.communicate(timeout=300)
    assert worker.returncode == 0, err
    assert out == "complete 40\n"


def test_a_killed_run_is_resumed(tmp_path):
    folder, index = tmp_path / "cache", tmp_path / "cache" / "index.jsonl"
    worker = start_worker(folder, 0.5, tmp_path / "first")
    deadline = time.monotonic() + 300
    while not (index.exists() and index.read_text().count("\n") >= 6):
        assert worker.poll() is None, worker.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    done = index.read_text().count("\n")
    assert 6 <= done < 40
    finish(start_worker(folder, 0.0, tmp_path / "second"))
    again = (tmp_path / "second").read_text().split()
    assert again == [str(i) for i in range(done, 40)]  # each missing image once
    assert [json.loads(line)[0] for line in index.read_text().splitlines()] == [str(i) for i in range(40)]


def test_two_processes_compute_each_image_once(tmp_path):
    workers = [start_worker(tmp_path / "cache", 0.02, tmp_path / name) for name in "ab"]
    for worker in workers:
        finish(worker)
    logs = [tmp_path / name for name in "ab" if (tmp_path / name).exists()]
    computed = [line for log in logs for line in log.read_text().split()]
    assert len(computed) == 41  # one image twice, to determine the shape
    assert len(set(computed)) == 40
