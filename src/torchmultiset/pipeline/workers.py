"""Training runs in separate processes: subprocesses on this machine, or tasks on Ray.

A subprocess executes ``python -m torchmultiset.pipeline.workers JOB``. Both engines provide a `Crew`: `submit` starts a
job and returns a future that is done when the run is finished or is not retried; `stop` lets a run save its checkpoint
and end.
"""

from __future__ import annotations

import _thread
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from filelock import FileLock

from torchmultiset._files import write_whole
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.pipeline.config import config_of
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.record import Watch
from torchmultiset.pipeline.run import train_run
from torchmultiset.training.checkpoint import Progress

__all__ = [
    "LOG",
    "PROGRESS",
    "Crew",
    "Job",
    "WorkerError",
    "available_cores",
    "lock_of",
    "on_ray",
    "subprocesses",
    "work",
]

LOG, PROGRESS = "log.txt", "progress.json"
_PATIENCE = 30  # seconds that tasks on Ray have to save a checkpoint
_EXPLAINED = (ImportError, OSError, ValueError)  # exceptions that are reported without a traceback


class WorkerError(RuntimeError):
    """A run failed in its worker."""


class Job(NamedTuple):
    """Description of a run for another process, which may be on another machine with the same file system."""

    name: str
    root: str
    """Working folder."""
    folder: str
    """Run folder, relative to `root` or absolute."""
    config: Mapping[str, Any]
    """Flat values of the config, as `to_dict` returns them."""
    threads: int
    command: tuple[str, ...] = ()
    """Command line for the record."""
    after: str = ""
    """``module:function`` to call once the run is finished: ``function(name, folder, task, **arguments)``."""
    arguments: Mapping[str, Any] = {}


@runtime_checkable
class Crew(Protocol):
    """Workers that execute jobs."""

    def submit(self, job: Job) -> Future[Any]:
        """Queue a job."""

    def stop(self, name: str) -> None:
        """Let the run of this name save its checkpoint and end; it is not retried."""


def lock_of(folder: Path) -> FileLock:
    """Return the lock of a run folder; the system frees it when the process that holds it is killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def work(job: Job) -> None:
    """Train or resume a run in this process, then call ``job.after``.

    If another process works on the same run, wait until it has ended.
    """
    os.chdir(job.root)
    if job.root not in sys.path:
        sys.path.insert(0, job.root)  # for ``after``
    torch.set_num_threads(job.threads)
    folder, config, tasks = Path(job.folder), config_of(job.config), list[Task]()

    def watch(task: Task) -> Watch:
        tasks.append(task)
        return _Notes(folder / PROGRESS, task)

    with lock_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / PROGRESS, json.dumps({"pid": os.getpid()}))
        # One process per run: several runs at a time use the other cores.
        train_run(config, folder, resume=True, devices=1, command=job.command, baselines=False, say=print, watch=watch)
        if job.after:
            module, _, function = job.after.partition(":")
            call = getattr(import_module(module), function)
            call(job.name, folder, tasks[0] if tasks else prepare(config), **job.arguments)


def _work_with_log(job: Job) -> None:
    """Like `work`, but write output to the run's log, and raise only exceptions that can be sent to the caller."""
    keep_freed_memory()
    log = Path(job.root, job.folder, LOG)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            work(job)
        except Exception as error:
            print(error) if isinstance(error, _EXPLAINED) else traceback.print_exc()
            raise WorkerError(str(error)) from None


class _Notes:
    """Writes the progress of a run to a file, about once a second."""

    def __init__(self, path: Path, task: Task) -> None:
        self.path, self.optim, self.examples = path, task.config.optim, len(task.splits["train"])
        self.written, self.epoch = 0.0, -1

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.written < 1 and progress.epoch == self.epoch:
            return
        self.written, self.epoch = now, progress.epoch
        seen = progress.seen(self.examples, self.optim.batch_size)
        last = progress.history[-1] if progress.history else {}
        state = {
            "pid": os.getpid(),
            "epoch": progress.epoch,
            "epochs": self.optim.last_epoch,
            "em": last.get("validation_em"),
            "f1": last.get("validation_f1"),
            "share": seen / (self.optim.last_epoch * self.examples),
        }
        write_whole(self.path, json.dumps(state))


@contextmanager
def subprocesses(workers: int, *, retries: int = 1) -> Iterator[Crew]:
    """Execute each job in its own process, `workers` at a time.

    When the block is left by an exception, Ctrl-C included, or when this process is killed, each of them saves its
    checkpoint and ends. A second Ctrl-C does not wait for that.

    Args:
        workers: Number of processes at a time.
        retries: Number of times that a failed run is retried, from its last checkpoint.
    """
    crew = _Subprocesses(workers, retries)
    try:
        yield crew
    finally:
        crew.pool.shutdown(wait=False, cancel_futures=True)
        crew.stop_all()
        try:
            crew.pool.shutdown()
        except KeyboardInterrupt:
            for child in [*crew.children.values()]:
                child.kill()
            raise


@contextmanager
def on_ray(address: str, *, workers: int, threads: int, gpus: int | float = 0, retries: int = 1) -> Iterator[Crew]:
    """Execute each job as a task on Ray, which schedules the jobs and retries failed ones.

    Args:
        address: Address of a cluster whose machines have this package and share the working folder; or ``"local"``
            to start one on this machine.
        workers: Number of jobs at a time, on a local cluster.
        threads: Processors per job.
        gpus: GPUs per job.
        retries: Number of times that a run is retried if it failed or was killed.
    """
    # Set before the import, which reads them: no usage statistics, and GPUs stay visible to tasks that request none.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    ray: Any = import_module("ray")  # its annotations are too narrow for what is used here
    local = {"num_cpus": workers * threads, "include_dashboard": False}
    ray.init(
        address,  # "local" starts a new Ray even if another one runs here
        **(local if address == "local" else {}),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    # max_calls: one process per task, as without Ray.
    again = {"max_retries": retries, "retry_exceptions": True, "max_calls": 1}
    crew = _Ray(ray, ray.remote(num_cpus=threads, num_gpus=gpus, **again)(_work_with_log))
    try:
        with redirect_stdout(sys.stderr):  # Ray prints its retries
            yield crew
    except BaseException:
        references = [*crew.references.values()]
        for name in crew.references:
            crew.stop(name)
        ray.wait(references, num_returns=len(references), timeout=_PATIENCE)
        raise
    finally:
        ray.shutdown()


@dataclass
class _Ray:
    """Tasks on Ray."""

    ray: Any
    task: Any
    references: dict[str, Any] = field(default_factory=dict)

    def submit(self, job: Job) -> Future[Any]:
        self.references[job.name] = self.task.remote(job)
        future: Future[Any] = self.references[job.name].future()
        return future

    def stop(self, name: str) -> None:
        self.ray.cancel(self.references[name])


class _Subprocesses:
    """Processes on this machine, each started from a thread of a pool."""

    def __init__(self, workers: int, retries: int) -> None:
        self.retries, self.gpus, self.pool = retries, _gpus(workers), ThreadPoolExecutor(workers)
        self.lock = threading.Lock()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: set[str] = set()
        self.over = False

    def submit(self, job: Job) -> Future[Any]:
        return self.pool.submit(self._run, job)

    def stop(self, name: str) -> None:
        with self.lock:
            self.stopped.add(name)
            if name in self.children:
                _close(self.children[name])

    def stop_all(self) -> None:
        """Start no other process, and let the running ones save their checkpoints."""
        with self.lock:
            self.over = True
            for child in self.children.values():
                _close(child)

    def _run(self, job: Job) -> None:
        gpu = self.gpus.get() if self.gpus else None
        try:
            for _ in range(1 + self.retries):
                code = self._once(job, gpu)
                if code == 0 or self.over or job.name in self.stopped:
                    break
        finally:
            if self.gpus and gpu is not None:
                self.gpus.put(gpu)
        if code != 0:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            times = "once" if self.retries == 0 else f"{1 + self.retries} times"
            raise WorkerError(f"failed {times}, the last time {how}")

    def _once(self, job: Job, gpu: str | None) -> int:
        command = [sys.executable, "-u", "-m", __spec__.name, json.dumps(job._asdict())]
        environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        log = Path(job.root, job.folder, LOG)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, self.lock:
            if self.over or job.name in self.stopped:
                return 1
            # In its own session, so that Ctrl-C reaches only this process, which passes it on once.
            child = self.children[job.name] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=job.root,
                start_new_session=True,
            )
        code = child.wait()
        with self.lock:
            _close(self.children.pop(job.name))
        return code


def _close(child: subprocess.Popen[bytes]) -> None:
    """Close standard input: a worker that still trains saves its checkpoint and ends."""
    assert child.stdin is not None
    child.stdin.close()


def available_cores() -> int:
    """Return the number of processors that this process may use, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(workers: int) -> queue.Queue[str] | None:
    """Return the GPUs in turn, one for each worker; None without any."""
    count = torch.cuda.device_count()
    if not count:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [*map(str, range(count))]
    gpus: queue.Queue[str] = queue.Queue()
    for worker in range(workers):
        gpus.put(names[worker % len(names)])
    return gpus


def main() -> int:
    """Execute the job of the command line; save a checkpoint and end when standard input is closed."""

    def stop_with_parent() -> None:
        while os.read(0, 1):
            pass
        _thread.interrupt_main()

    # A shell makes background jobs ignore Ctrl-C, and this process would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=stop_with_parent, daemon=True).start()
    keep_freed_memory()
    try:
        work(Job(**json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except _EXPLAINED as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
