"""What a process does that was started for one cell: ``python -m torchmultiset.experiments.worker JOB``."""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from torchmultiset.experiments.cells import find
from torchmultiset.experiments.scales import ScaleName
from torchmultiset.experiments.work import LOG, Folders, run_cell

__all__ = ["CellError", "Job", "log_of", "work", "work_with_log"]


class CellError(RuntimeError):
    """A cell failed."""


class Job(NamedTuple):
    """All that another process, maybe on another machine with the same file system, has to know."""

    scale: ScaleName
    cell: str
    root: str
    """The working folder."""
    results: str
    runs: str
    data: str
    threads: int
    mnist: str = ""
    """Where the digits are."""


_EXPLAINED = (ImportError, OSError, ValueError)  # by their messages


def log_of(job: Job) -> Path:
    """Where a worker writes what it has to say."""
    return Path(job.root, job.runs, job.scale, job.cell, LOG)


def work(job: Job) -> None:
    """Run the cell in this process."""
    os.chdir(job.root)
    folders = Folders(Path(job.results), Path(job.runs), Path(job.data))
    run_cell(find(job.scale, job.cell), folders, threads=job.threads, mnist=job.mnist)


def work_with_log(job: Job) -> None:
    """The same where nobody else writes down what it says: on Ray, which wants an exception that is easily told."""
    log = log_of(job)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            work(job)
        except Exception as error:
            print(error) if isinstance(error, _EXPLAINED) else traceback.print_exc()
            raise CellError(str(error)) from None


def main() -> int:
    """Run the cell that the command line names; stop, with a checkpoint, when standard input ends."""

    def stop_with_the_one_who_started_it() -> None:
        while os.read(0, 1):
            pass
        _thread.interrupt_main()

    # A shell lets what it starts in the background ignore Ctrl-C, and this would be ignored with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=stop_with_the_one_who_started_it, daemon=True).start()
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
