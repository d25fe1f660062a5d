"""Where cells run: a subprocess for each on this machine, or a task for each on Ray.

Both give a `Submit`: it takes a job and gives a future that ends when the cell is done, or has failed for good.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any, TypeAlias

import torch

from torchmultiset.experiments.worker import CellError, Job, log_of, work_with_log

__all__ = ["Submit", "on_ray", "subprocesses"]

Submit: TypeAlias = Callable[[Job], "Future[Any]"]

_PATIENCE = 30  # seconds that tasks on Ray have to save where they are
# glibc keeps memory that is freed, instead of giving it back and having it cleared again in each step of training.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


@contextmanager
def subprocesses(workers: int, *, retries: int = 1) -> Iterator[Submit]:
    """Run each cell in a process of its own, so many at a time.

    Each lives only as long as this process: at the latest when this one is gone, even killed, it saves where it is and
    ends. So does it when the block is left by an exception, Ctrl-C among them; a second Ctrl-C does not wait for that.

    Args:
        workers: How many at a time.
        retries: How often a cell that failed is tried again; it goes on from its last checkpoint.
    """
    crew = _Crew(retries, _gpus(workers))
    pool = ThreadPoolExecutor(workers)
    try:
        yield lambda job: pool.submit(crew.run, job)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        crew.stop()
        try:
            pool.shutdown()
        except KeyboardInterrupt:
            crew.kill()
            raise


@contextmanager
def on_ray(address: str, *, workers: int, threads: int, gpus: int | float = 0, retries: int = 1) -> Iterator[Submit]:
    """Run each cell as a task on Ray, which decides where and when, and tries again what failed.

    Args:
        address: Of a cluster whose machines have this package and share the working folder; or ``"local"``: one that is
            started for this, on this machine.
        workers: How many at a time, if it is local.
        threads: Processors that each takes.
        gpus: GPUs that each takes.
        retries: How often a cell that failed, or whose process was killed, is tried again.
    """
    # Before the import, which reads them: nothing is reported to anyone, and no GPU is hidden that was not asked for.
    # Workers of a local Ray inherit all of them.
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **_MALLOC}
    os.environ.update({name: value for name, value in ours.items() if name not in os.environ})
    ray: Any = import_module("ray")  # whose annotations do not allow for what it can do

    local = {"num_cpus": workers * threads, "include_dashboard": False}
    ray.init(
        address,  # "local" is a Ray of its own, whatever runs here already
        **(local if address == "local" else {}),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    # A process for each task, as without Ray.
    again = {"max_retries": retries, "retry_exceptions": True, "max_calls": 1}
    task = ray.remote(num_cpus=threads, num_gpus=gpus, **again)(work_with_log)
    references: list[Any] = []

    def submit(job: Job) -> Future[Any]:
        references.append(task.remote(job))
        future: Future[Any] = references[-1].future()
        return future

    try:
        with redirect_stdout(sys.stderr):  # Ray prints what it retries
            yield submit
    except BaseException:
        for reference in references:
            ray.cancel(reference)
        ray.wait(references, num_returns=len(references), timeout=_PATIENCE)
        raise
    finally:
        ray.shutdown()


class _Crew:
    """The processes that are at work."""

    def __init__(self, retries: int, gpus: queue.Queue[str] | None) -> None:
        self.retries, self.gpus = retries, gpus
        self.lock = threading.Lock()
        self.children: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def run(self, job: Job) -> None:
        """Run a cell, and again if it fails; from a thread."""
        gpu = self.gpus.get() if self.gpus else None
        try:
            for _ in range(1 + self.retries):
                code = self._once(job, gpu)
                if code == 0 or self.stopped:
                    break
        finally:
            if self.gpus and gpu is not None:
                self.gpus.put(gpu)
        if code != 0:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise CellError(f"failed {_times(1 + self.retries)}, the last time {how}")

    def stop(self) -> None:
        """Let no other begin, and those that are at work save where they are."""
        with self.lock:
            self.stopped = True
            for child in self.children:
                assert child.stdin is not None
                child.stdin.close()

    def kill(self) -> None:
        """End all at once."""
        for child in [*self.children]:
            child.kill()

    def _once(self, job: Job, gpu: str | None) -> int:
        command = [sys.executable, "-u", "-m", "torchmultiset.experiments.worker", json.dumps(job._asdict())]
        environment = {**_MALLOC, **os.environ, "OMP_NUM_THREADS": str(job.threads)}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        log = log_of(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, self.lock:
            if self.stopped:
                return 1
            # A session of its own, so that Ctrl-C comes to this process alone, which passes it on once.
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=job.root,
                start_new_session=True,
            )
            self.children.add(child)
        code = child.wait()
        with self.lock:
            self.children.discard(child)
            if child.stdin is not None:
                child.stdin.close()
        return code


def _gpus(workers: int) -> queue.Queue[str] | None:
    """The GPUs in turn, one for each worker; None without any."""
    count = torch.cuda.device_count()
    if not count:
        return None
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [*map(str, range(count))]
    gpus: queue.Queue[str] = queue.Queue()
    for worker in range(workers):
        gpus.put(names[worker % len(names)])
    return gpus


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
