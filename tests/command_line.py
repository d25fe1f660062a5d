"""The command line, run in this process or in a new one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from cyclopts import App

from torchmultiset.cli import app, main

Run = Callable[..., tuple[int, list[str], str]]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, commands: App = app) -> Run:
    """Run a command in this process: exit code, lines on standard output, text on standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("torchmultiset.pipeline.auto.MINUTES", 0.0)  # one model, unless a test sets another budget
    for variable in ("TORCHMULTISET_MNIST", "TORCHMULTISET_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*tokens: object) -> tuple[int, list[str], str]:
        code = main([str(token) for token in tokens], commands=commands)
        out, err = capsys.readouterr()
        return code, [line.rstrip() for line in out.splitlines()], err

    return run


def process(*tokens: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process."""
    command = [sys.executable, "-m", "torchmultiset", *map(str, tokens)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


def cells(lines: list[str], first: str) -> list[str]:
    """Cells of the table row that starts with `first`, without that cell."""
    (row,) = (line for line in lines if line.split()[:1] == [first])
    return re.split(r"\s{2,}", row.strip())[1:]


def flags_of(values: dict[str, object]) -> list[str]:
    """Command-line flags for the fields of a dataclass."""
    flags = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return flags
