"""Many training runs: any configs on any data, each in its own process, resumable.

::

    folder/
      <name>/             a run folder, as `multiset train` writes it, with log.txt and progress.json
      sweep.json          written by `pipeline.sweep_table`

A finished run is never trained again, and one that was killed resumes from its checkpoint. A run is *stale* if its
config or the checksum of its data has changed since it was made: `sweep` refuses to continue until stale runs are
deleted (``again=True``).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchmultiset._checks import check
from torchmultiset.pipeline.config import RunConfig, to_dict
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import (
    CONFIG,
    FORMER,
    data_record,
    differences,
    read_config,
    read_json,
    read_record,
    translated,
)
from torchmultiset.pipeline.workers import LOG, PROGRESS, Crew, Job, available_cores, lock_of, on_ray, subprocesses
from torchmultiset.training.checkpoint import CHECKPOINT, EPOCHS
from torchmultiset.viz.intervals import Counts

__all__ = [
    "Failure",
    "FinishedRun",
    "Running",
    "Snapshot",
    "SweepResult",
    "Workers",
    "changed_data",
    "changed_settings",
    "describe_failures",
    "epochs_done",
    "forget",
    "is_finished",
    "refuse_stale",
    "stale",
    "sweep",
]

_TAIL = 12  # lines of a log that a failure shows
_ENOUGH = 0.02  # a smaller share of a run is too little to measure its speed


@dataclass(frozen=True)
class Workers:
    """Processes that execute the runs."""

    number: int = 1
    """Runs at a time; on a Ray cluster, Ray decides."""
    threads: int | None = None
    """Threads of each run; None: the processors of this machine divided by `number`."""
    retries: int = 1
    """Number of times that a failed run is retried."""
    ray: str | None = None
    """Address of a Ray cluster, or "local" to start one; None: subprocesses."""
    gpus: int | float = 0
    """GPUs of each run, on Ray. Subprocesses take the GPUs of the machine in turn."""

    @property
    def threads_each(self) -> int:
        """Threads of each run."""
        return self.threads or max(available_cores() // self.number, 1)

    def crew(self) -> AbstractContextManager[Crew]:
        """Start the processes, or connect to Ray."""
        if self.ray is None:
            return subprocesses(self.number, retries=self.retries)
        return on_ray(self.ray, workers=self.number, threads=self.threads_each, gpus=self.gpus, retries=self.retries)


class Running(NamedTuple):
    """Progress of a run that is being trained."""

    name: str
    epoch: int
    """Epochs done."""
    epochs: int
    em: float | None
    """Exact match on the validation data after the last epoch."""
    f1: float | None
    """F1 on the validation data after the last epoch."""
    share: float
    """Fraction of the training that is done."""


class Snapshot(NamedTuple):
    """Progress of a sweep."""

    ended: Sequence[str]
    """Runs that finished since the last snapshot."""
    failed: int
    waiting: int
    """Number of runs that are not finished, running ones included."""
    running: Sequence[Running]
    seconds_left: float | None
    """Estimate of the remaining time; None if nothing is known yet."""


class Failure(NamedTuple):
    """A failed run that is not retried."""

    name: str
    reason: str
    tail: str
    """Last lines of its log."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained and tested."""

    name: str
    config: RunConfig
    folder: Path
    record: Mapping[str, Any]
    """Content of ``run.json``: scores under the names of the splits, data, versions, minutes."""

    def counts(self, split: str) -> Counts:
        """Read the predicted and true counts (N, C) of a split."""
        return read_counts(self.folder / COUNTS, split, fix="delete the run folder, and the run is trained again")


class SweepResult(NamedTuple):
    """Result of a sweep."""

    finished: dict[str, FinishedRun]
    """By name, in the order of the runs that were given."""
    failures: list[Failure]
    stopped: list[str]
    """Runs that `stop` ended early; another sweep resumes them."""


def sweep(
    runs: Mapping[str, RunConfig],
    folder: str | Path,
    *,
    workers: Workers = Workers(),  # noqa: B008  (frozen)
    again: bool = False,
    command: Sequence[str] = (),
    after: tuple[str, Mapping[str, Any]] | None = None,
    seconds: Mapping[str, float] | None = None,
    watch: Callable[[Snapshot], None] = lambda _: None,
    stop: Callable[[Snapshot], Collection[str]] = lambda _: (),
    every: float = 0.5,
    progress: bool = False,
) -> SweepResult:
    """Train all runs that are not finished, and wait for them.

    Args:
        runs: Name -> config. A name is a relative path; by convention runs that differ only in the seed are called
            ``<name>/seed-<seed>``.
        folder: Folder of the run folders.
        workers: Processes that execute the runs.
        again: Delete these runs first.
        command: Command line for the records.
        after: ``("module:function", arguments)``: called as ``function(name, folder, task, **arguments)`` in the
            worker once a run is finished, where `task` is its prepared data; also called for runs that were finished
            before.
        seconds: Name -> expected seconds of a run, for the first estimates of the remaining time.
        watch: Called with a snapshot every half second.
        stop: Called with the same snapshot; returns the names of runs to stop. They save a checkpoint and end.
        every: Seconds between two snapshots.
        progress: Show progress bars while data is built or read.

    Raises:
        ValueError: A run is stale, or a config or its data is wrong.

    Example:
        >>> from torchmultiset.pipeline.config import config_of
        >>> runs = {f"{name}/seed-0": config_of({"data": "pets.csv", "objective": name}) for name in ("multi", "rl")}
        >>> result = sweep(runs, "runs/pets", workers=Workers(2))  # doctest: +SKIP
    """
    folder = Path(folder)
    for name in runs:
        check(bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts, "name", "relative", name)
    if again:
        for name in runs:
            forget(folder / name)
    refuse_stale({name: stale(folder / name, config) for name, config in runs.items()})
    missing = {name: config for name, config in runs.items() if after or not is_finished(folder / name)}
    # Data sets are built, and features of backbones computed, once and before the workers start.
    for config in {config.data: config for config in missing.values()}.values():
        prepare(config, progress=progress)
    more = workers.threads_each, tuple(command), *(after or ("", {}))
    jobs = [Job(name, str(Path.cwd()), str(folder / name), to_dict(config), *more) for name, config in missing.items()]
    failures, stopped = list[Failure](), list[str]()
    if jobs:
        clock = _Clock({name: config.data.data or "" for name, config in missing.items()}, seconds)
        with workers.crew() as crew:
            failures, stopped = _run(jobs, crew, folder, clock, watch, stop, every)
    finished = {
        name: FinishedRun(name, config, folder / name, record)
        for name, config in runs.items()
        if (record := read_record(folder / name)).get("finished")
    }
    return SweepResult(finished, failures, stopped)


def stale(folder: Path, config: RunConfig) -> list[str]:
    """Describe what has changed since the run in a folder was started; empty if nothing has.

    Args:
        folder: Run folder, which need not exist.
        config: Config as it is now.
    """
    if not is_finished(folder) and not (folder / CHECKPOINT).exists():
        return []  # no training would be lost
    before = read_record(folder).get("data", {})
    return changed_settings(read_config(folder / CONFIG), config) + changed_data(before, config.data.data or "")


def changed_settings(before: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Describe how a resolved config differs from a config, except for settings chosen from the data.

    Args:
        before: Flat values of a run or record; settings that it lacks had their defaults.
        config: Config as it is now.
    """
    now, then = translated(to_dict(config)), translated(before)
    defaults = to_dict(RunConfig()) | FORMER
    return differences({name: then.get(name, defaults[name]) for name in now}, now)


def changed_data(before: Mapping[str, Any], data: str | Path) -> list[str]:
    """Describe how the checksum of a data set has changed; empty if it is the same, or if there is no data.

    Args:
        before: ``{"name": ..., "sha256": ...}`` of a run or record.
        data: Path of the data set.
    """
    try:
        now = data_record(data)["sha256"]
    except (OSError, StopIteration):
        return []
    then = before.get("sha256", now)
    return [] if then == now else [f"the data was {then[:12]}... and is now {now[:12]}..."]


def refuse_stale(changes: Mapping[str, Sequence[str]]) -> None:
    """Raise a ValueError that lists the stale runs, if there are any.

    Args:
        changes: Name -> what has changed.
    """
    lines = [f"  {name}: {'; '.join(changed)}" for name, changed in changes.items() if changed]
    if lines:
        raise ValueError(
            "these runs are stale, because their config or data has changed since they were made:\n"
            + "\n".join(lines)
            + "\nTo delete them and run them again: --again. To keep them: choose another folder"
        )


def forget(folder: Path) -> None:
    """Delete a run folder, after waiting for a process that still works on it."""
    with lock_of(folder), suppress(FileNotFoundError):
        shutil.rmtree(folder)


def epochs_done(folder: Path) -> int:
    """Return how many epochs of a run folder are done."""
    path = folder / EPOCHS
    return path.read_text().count("\n") if path.exists() else 0


def describe_failures(failures: Sequence[Failure]) -> str:
    """Describe the runs that failed, with the end of each log."""
    parts = [f"{name}: {reason}. Its log ends:\n{tail}" for name, reason, tail in failures]
    number = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
    return "\n\n".join([f"{number} failed; start the same command again to retry", *parts])


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is trained and tested."""
    return bool(read_record(folder).get("finished"))


def _run(
    jobs: Sequence[Job],
    crew: Crew,
    folder: Path,
    clock: _Clock,
    watch: Callable[[Snapshot], None],
    stop: Callable[[Snapshot], Collection[str]],
    every: float,
) -> tuple[list[Failure], list[str]]:
    for job in jobs:  # progress of an earlier attempt would look like a running one
        (folder / job.name / PROGRESS).unlink(missing_ok=True)
    waiting: dict[Future[Any], str] = {crew.submit(job): job.name for job in jobs}
    failures, stopped = list[Failure](), list[str]()
    while waiting:
        futures, _ = wait(waiting, timeout=every, return_when=FIRST_COMPLETED)
        ended = []
        for future in futures:
            name = waiting.pop(future)
            clock.note(name, 1.0)
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled() and is_finished(folder / name):
                ended.append(name)
            elif name not in stopped:
                failures.append(_failure(name, folder / name, error))
        running = [one for name in waiting.values() if (one := _progress(name, folder / name))]
        for one in running:
            clock.note(one.name, one.share)
        left = clock.left([*waiting.values()], len(running))
        snapshot = Snapshot(ended, len(failures), len(waiting), running, left)
        watch(snapshot)
        for name in {*stop(snapshot)} & {*waiting.values()} - {*stopped}:
            stopped.append(name)
            crew.stop(name)
    return failures, [name for name in stopped if not is_finished(folder / name)]


def _progress(name: str, folder: Path) -> Running | None:
    state = read_json(folder / PROGRESS)
    if not state:
        return None
    numbers = state.get("epoch", 0), state.get("epochs", 0), state.get("em"), state.get("f1"), state.get("share", 0.0)
    return Running(name, *numbers)


def _failure(name: str, folder: Path, error: BaseException | None) -> Failure:
    # Ray wraps an exception in several others; the cause is what a reader needs.
    message = str(getattr(error, "cause", None) or error or "ended without a result").strip()
    first = message.partition("\n")[0].rstrip(".") or type(error).__name__
    log = folder / LOG
    lines = log.read_text(errors="replace").splitlines()[-_TAIL:] if log.exists() else []
    return Failure(name, first, "\n".join(f"  {line}" for line in lines) or "  (there is none)")


class _Clock:
    """Estimates the remaining time from the speed so far, in proportion to the expected seconds."""

    def __init__(self, groups: Mapping[str, str], seconds: Mapping[str, float] | None) -> None:
        self.groups, self.known = groups, seconds is not None
        self.seconds = seconds or dict.fromkeys(groups, 1.0)
        # Name -> time and share at the first and at the last observation.
        self.seen: dict[str, tuple[float, float, float, float]] = {}

    def note(self, name: str, share: float) -> None:
        """Note how much of a run is done now."""
        now = time.monotonic()
        first, share_first, *_ = self.seen.get(name, (now, share, now, share))
        self.seen[name] = first, share_first, now, share

    def left(self, names: Sequence[str], at_once: int) -> float | None:
        """Return the seconds until these runs are done; None if nothing is known yet."""
        each = []
        for name in names:
            pace = self._pace(self.groups[name]) or self._pace() or (1.0 if self.known else None)
            if pace is None:
                return None
            share = self.seen[name][-1] if name in self.seen else 0.0
            each.append(pace * self.seconds[name] * (1 - share))
        return max(sum(each) / max(at_once, 1), *each) if each else 0.0

    def _pace(self, group: str | None = None) -> float | None:
        """Return the ratio of measured to expected seconds, on one data set or on all."""
        spent = expected = 0.0
        for name, (first, share_first, last, share) in self.seen.items():
            if group in (None, self.groups[name]) and share - share_first > _ENOUGH:
                spent += last - first
                expected += self.seconds[name] * (share - share_first)
        return spent / expected if expected else None
