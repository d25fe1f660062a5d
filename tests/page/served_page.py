"""The page in a process of its own."""

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
    """The address of what Python serves, given these arguments; Ctrl-C ends it, and it may complain of nothing."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = process.stdout.readline()
            found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+)\. Press Ctrl-C to stop\.\n", said)
            assert found, said + process.stderr.read()
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
        code, complaints = process.wait(60), process.stderr.read()
        assert (code, complaints) == (130, "multiset: stopped\n"), complaints
