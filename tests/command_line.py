"""Running the command line: in this process, or as a user does."""

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
    monkeypatch.setattr("torchmultiset.pipeline.auto.MINUTES", 0.0)  # one model, unless a test asks for a portfolio
    for variable in ("TORCHMULTISET_MNIST", "TORCHMULTISET_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*tokens: object) -> tuple[int, list[str], str]:
        code = main([str(token) for token in tokens], commands=commands)
        out, err = capsys.readouterr()
        return code, [line.rstrip() for line in out.splitlines()], err

    return run


def process(*tokens: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as a user does."""
    command = [sys.executable, "-m", "torchmultiset", *map(str, tokens)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


def cells(lines: list[str], first: str) -> list[str]:
    """The other cells of the table row that starts with this one."""
    (row,) = (line for line in lines if line.split()[:1] == [first])
    return re.split(r"\s{2,}", row.strip())[1:]


def flags_of(values: dict[str, object]) -> list[str]:
    """The fields of a dataclass as one types them."""
    flags = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return flags
