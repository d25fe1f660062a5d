"""The page, served by a new process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[str]:
    """Address of the page served by Python with these arguments; Ctrl-C stops it, without other messages."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+)\. Press Ctrl-C to stop\.\n", line)
            assert found, line + process.stderr.read()
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
        code, err = process.wait(60), process.stderr.read()
        assert (code, err) == (130, "multiset: stopped\n"), err
