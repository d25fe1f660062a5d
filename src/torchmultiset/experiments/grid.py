"""All cells together: what is done, what is to be run, how it goes, and what failed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torchmultiset.experiments.cells import Cell
from torchmultiset.experiments.engines import Submit
from torchmultiset.experiments.scales import SCALES
from torchmultiset.experiments.work import LOG, PROGRESS, RECORD, Folders, is_done, read_json
from torchmultiset.experiments.worker import Job
from torchmultiset.pipeline.config import RunConfig, to_dict
from torchmultiset.pipeline.record import CONFIG, FORMER, differences, read_config, translated
from torchmultiset.training.loop import CHECKPOINT, EPOCHS

__all__ = [
    "Failure",
    "Running",
    "Snapshot",
    "State",
    "failures_in_words",
    "forget",
    "look",
    "refuse_changed",
    "run_grid",
]

_TAIL = 12
# Less than this share of a cell says too little about its speed.
_ENOUGH = 0.02


class State(NamedTuple):
    """How far a cell has come."""

    done: bool
    epochs: int
    """That it has learned."""
    differs: list[str]
    """What the config of its record, or of its run folder, has otherwise than it has now."""


class Running(NamedTuple):
    """A cell that is at work."""

    cell: Cell
    epoch: int
    em: float | None
    """Exact match on the validation data after the last epoch."""
    share: float
    """Of its training that is done."""


class Snapshot(NamedTuple):
    """Where all of it is."""

    ended: Sequence[Cell]
    """Since the last one: those that are done now."""
    failed: int
    waiting: int
    """Not done yet, those at work included."""
    running: Sequence[Running]
    seconds_left: float | None


class Failure(NamedTuple):
    """A cell that could not be run."""

    cell: Cell
    reason: str
    tail: str
    """The end of its log."""


def look(cell: Cell, folders: Folders) -> State:
    """Whether a cell is done, and with this config: its record says so."""
    record, run = read_json(folders.result(cell) / RECORD), folders.run(cell)
    if record and "config" not in record:
        raise ValueError(f"{folders.result(cell) / RECORD} is damaged: delete it, and the cell is run again")
    if record:
        return State(is_done(cell, folders), cell.epochs, _differences(record["config"], cell))
    if not (run / CHECKPOINT).exists():  # nothing was learned that could be lost
        return State(False, 0, [])
    lines = (run / EPOCHS).read_text().count("\n") if (run / EPOCHS).exists() else 0
    return State(False, lines, _differences(read_config(run / CONFIG), cell))


def refuse_changed(cells: Sequence[Cell], folders: Folders) -> None:
    """Raise a ValueError if a cell was run, or begun, with another config than it has now."""
    changed = {cell.id: state.differs for cell in cells if (state := look(cell, folders)).differs}
    if changed:
        lines = [f"  {cell}: {'; '.join(differs)}" for cell, differs in changed.items()]
        raise ValueError(
            "these cells were run or begun with another config:\n"
            + "\n".join(lines)
            + "\nTo delete what there is of them and run them again: --again. To keep it: other folders, --results and"
            " --runs"
        )


def forget(cell: Cell, folders: Folders) -> None:
    """Delete a cell's record and run folder; a process that is still at work on it is waited for."""
    with folders.lock(cell):
        # The record first: without it, nothing else counts.
        (folders.result(cell) / RECORD).unlink(missing_ok=True)
        for folder in (folders.result(cell), folders.run(cell)):
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)


def run_grid(
    cells: Sequence[Cell],
    submit: Submit,
    folders: Folders,
    *,
    threads: int,
    mnist: str = "",
    watch: Callable[[Snapshot], None] = lambda _: None,
    every: float = 0.5,
) -> list[Failure]:
    """Run cells, whose data has been made, and wait for all of them.

    Args:
        cells: Those that are not done.
        submit: From `subprocesses` or `on_ray`.
        folders: Where things are.
        threads: Of each cell.
        mnist: Where the digits are, for cells that make new images of them.
        watch: Told how it goes.
        every: Seconds between two looks.

    Returns:
        What failed, in the end; the others are done.
    """
    for cell in cells:  # what an earlier try left would look like one that is at work
        (folders.run(cell) / PROGRESS).unlink(missing_ok=True)
    places = str(folders.results), str(folders.runs), str(folders.data)
    jobs = [Job(cell.scale, cell.id, str(Path.cwd()), *places, threads, mnist) for cell in cells]
    waiting = {submit(job): cell for job, cell in zip(jobs, cells, strict=True)}
    clock, failures = _Clock(cells), list[Failure]()
    while waiting:
        futures, _ = wait(waiting, timeout=every, return_when=FIRST_COMPLETED)
        ended = []
        for future in futures:
            cell, error = waiting.pop(future), future.exception()
            clock.note(cell, 1.0)
            if error is None and (folders.result(cell) / RECORD).exists():
                ended.append(cell)
            else:
                failures.append(_failure(cell, folders, error))
        running = [at_work for cell in waiting.values() if (at_work := _running(cell, folders))]
        for at_work in running:
            clock.note(at_work.cell, at_work.share)
        left = clock.left([*waiting.values()], len(running))
        watch(Snapshot(ended, len(failures), len(waiting), running, left))
    return failures


def failures_in_words(failures: Sequence[Failure]) -> str:
    """What failed, with the end of each log."""
    parts = [f"{cell.id}: {reason}. Its log ends:\n{tail}" for cell, reason, tail in failures]
    number = "1 cell" if len(failures) == 1 else f"{len(failures)} cells"
    return "\n\n".join([f"{number} failed; start the same command again to try again", *parts])


class _Clock:
    """Measures how long cells take, in proportion to what their scale assumes."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.known = all(SCALES[cell.scale].speed_is_known for cell in cells)
        # Of each cell: when it was seen first and last, and its share then.
        self.seen: dict[str, tuple[Cell, float, float, float, float]] = {}

    def note(self, cell: Cell, share: float) -> None:
        """This much is done now."""
        now = time.monotonic()
        _, first, share_first, *_ = self.seen.get(cell.id, (cell, now, share, now, share))
        self.seen[cell.id] = cell, first, share_first, now, share

    def left(self, cells: Sequence[Cell], at_once: int) -> float | None:
        """Seconds until these are done; None if nothing is known yet."""
        each = []
        for cell in cells:
            pace = self._pace(cell.data_set) or self._pace() or (1.0 if self.known else None)
            if pace is None:
                return None
            share = self.seen[cell.id][-1] if cell.id in self.seen else 0.0
            each.append(pace * cell.seconds * (1 - share))
        return max(sum(each) / max(at_once, 1), *each) if each else 0.0

    def _pace(self, data_set: str | None = None) -> float | None:
        """Seconds for each assumed one, on one data set or on all."""
        spent = expected = 0.0
        for cell, first, share_first, last, share in self.seen.values():
            if data_set in (None, cell.data_set) and share - share_first > _ENOUGH:
                spent += last - first
                expected += cell.seconds * (share - share_first)
        return spent / expected if expected else None


def _differences(before: dict[str, Any], cell: Cell) -> list[str]:
    """What a resolved config has otherwise; what the data settles, "auto", may be anything."""
    now = translated(to_dict(cell.config()))
    # A field that is newer than the record had its default.
    before = translated(before)
    then = {name: before.get(name, value) for name, value in (to_dict(RunConfig()) | FORMER).items() if name in now}
    return differences(then, now)


def _running(cell: Cell, folders: Folders) -> Running | None:
    path = folders.run(cell) / PROGRESS
    told = read_json(path)
    if not told:
        return None
    return Running(cell, told.get("epoch", 0), told.get("em"), told.get("share", 0.0))


def _failure(cell: Cell, folders: Folders, error: BaseException | None) -> Failure:
    # Ray wraps what went wrong in more than anyone wants to read.
    told = str(getattr(error, "cause", None) or error or "ended without a record").strip()
    first = told.partition("\n")[0].rstrip(".") or type(error).__name__
    log = folders.run(cell) / LOG
    lines = log.read_text(errors="replace").splitlines()[-_TAIL:] if log.exists() else []
    return Failure(cell, first, "\n".join(f"  {line}" for line in lines) or "  (there is none)")
