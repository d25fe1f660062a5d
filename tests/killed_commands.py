"""Commands in new processes, which tests kill while their workers train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEADLINE = 600


class Command:
    """A command that trains several runs; in the background it ignores Ctrl-C."""

    def __init__(
        self, folder: Path, words: Sequence[str], runs: Path, names: Sequence[str], *, background: bool = False
    ) -> None:
        self.folder, self.runs, self.names = folder, runs, names
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
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

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Poll until the condition returns a true value; return that value."""
        deadline = time.monotonic() + DEADLINE
        while not (found := condition()):
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.005)
        return found

    def in_the_middle(self) -> tuple[str, int] | None:
        """Name and process id of a run that is being trained; None if there is none."""
        for name in self.names:
            progress, record = (read(self.runs / name / file) for file in ("progress.json", "run.json"))
            if 0 < progress.get("share", 0) < 1 and not record.get("finished") and exists(progress["pid"]):
                return name, progress["pid"]
        return None

    def starts(self, name: str) -> int:
        """Number of times that a run was started or resumed."""
        return (self.runs / name / "log.txt").read_text().count("Data: ")


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
