"""Adverse conditions: a full disk, a read-only folder, files that vanish, two runs in one folder."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign.kills import DEADLINE, fresh, half_written, start_victim
from campaign.scenarios import SCENARIOS

__all__ = ["adverse_conditions", "tmpfs"]

NAMES = ("training", "data build", "feature cache with views", "save", "export")
KILOBYTES = (0, 8, 40, 120, 400, 1_200)
_REASONS = ("space", "full", "Errno 28", "free on its disk", "Read-only", "read-only", "Errno 30")


@contextlib.contextmanager
def tmpfs(folder: Path, kilobytes: int) -> Iterator[None]:
    """Mount a small file system in memory.

    Raises:
        PermissionError: Only root may do that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={max(kilobytes, 4)}k"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(f"a file system cannot be mounted here: {done.stderr.strip() or 'mount failed'}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def _end(process: Any, log: Path) -> tuple[int | None, str]:
    process.join(DEADLINE)
    code = process.exitcode
    if code is None:
        process.kill()
    return code, log.read_text()


def _run(name: str, folder: Path, log: Path) -> tuple[int | None, str]:
    """Run a command to its end; return the exit code, and what it printed."""
    log.write_text("")
    return _end(start_victim(name, folder, log), log)


def _undisturbed(name: str, root: Path) -> object:
    """Return the outcome of a command that nothing disturbs."""
    fresh(SCENARIOS[name], root / "whole")
    _run(name, root / "whole", root / "whole.log")
    return SCENARIOS[name].outcome(root / "whole")


def _judge(code: int | None, text: str, reasons: tuple[str, ...]) -> str:
    """Return what is wrong with how a command ended; empty if nothing is."""
    if code is None:
        return "it did not end"
    if code == 0:
        return ""
    if "Traceback" in text:
        last = text.strip().splitlines()[-1][:200]
        # `save` and the cache are library calls: an OSError with the reason is a clear error.
        clear = last.startswith(("OSError", "FileNotFoundError", "ValueError", "safetensors")) and any(
            r in last for r in reasons
        )
        return "" if clear else f"uncaught: {last}"
    if code < 0:
        return f"it was ended by signal {-code}"
    return "" if any(reason in text for reason in reasons) else f"unclear: {text[-200:]}"


def _used(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()) // 1024 + 16


def disk_full(root: Path, name: str) -> list[str]:
    """Run a command on disks that are full after so many kilobytes, then again with space."""
    failures, expected = [], _undisturbed(name, root)
    disk, log = root / "disk", root / "log"
    for extra in KILOBYTES:
        with tmpfs(disk, 4_000):
            folder = disk / "it"
            fresh(SCENARIOS[name], folder)
            _remount(disk, f"size={_used(disk) + extra}k")
            code, text = _run(name, folder, log)
            problem = _judge(code, text, _REASONS)
            problems = [problem] * bool(problem) + [f"half-written: {file}" for file in half_written(folder)]
            _remount(disk, "size=200m")
            code, text = _run(name, folder, log)
            if code or SCENARIOS[name].outcome(folder) != expected:
                problems.append(f"with space again, it ended with code {code}, or another result: {text[-200:]}")
            failures += [f"{extra} kB left: {problem}" for problem in problems]
    return failures


def read_only(root: Path, name: str) -> list[str]:
    """Run a command in a folder that cannot be written to."""
    log = root / "log"
    with tmpfs(root / "disk", 4_000):
        folder = root / "disk" / "it"
        fresh(SCENARIOS[name], folder)
        _remount(root / "disk", "ro")
        code, text = _run(name, folder, log)
    problem = "it succeeded" if code == 0 else _judge(code, text, _REASONS)
    return [problem] * bool(problem)


def vanishing(root: Path, name: str, moments: int) -> list[str]:
    """Delete one random file, or the whole folder, at random moments of a command."""
    failures, rng = [], random.Random(f"vanish {name}")
    folder, log = root / "it", root / "log"
    fresh(SCENARIOS[name], folder)
    start = time.monotonic()
    _run(name, folder, log)
    lasts = time.monotonic() - start
    for number in range(moments):
        fresh(SCENARIOS[name], folder)
        log.write_text("")
        process = start_victim(name, folder, log)
        process.join(rng.uniform(0.1, 0.9) * lasts)
        written = [file for file in folder.rglob("*") if file.is_file()]
        if number % 3 == 2:
            shutil.rmtree(folder / "run", ignore_errors=True)
        elif written:
            rng.choice(written).unlink(missing_ok=True)
        code, text = _end(process, log)
        problem = _judge(code, text, ("there is no", "but has no", "No such file", "missing", "damaged", "vanished"))
        failures += [problem] * bool(problem)
    return failures


def two_at_once(root: Path, name: str, times: int) -> list[str]:
    """Start a command twice in one folder; each must end correctly, or refuse to start."""
    failures, expected = [], _undisturbed(name, root)
    for _ in range(times):
        folder, logs = root / "it", [root / "a.log", root / "b.log"]
        fresh(SCENARIOS[name], folder)
        for one in logs:
            one.write_text("")
        processes = [start_victim(name, folder, one) for one in logs]
        ends = [_end(process, one) for process, one in zip(processes, logs, strict=True)]
        problems = [_judge(code, text, ("another process",)) for code, text in ends]
        if all(code for code, _ in ends):
            problems.append("both failed")
        elif SCENARIOS[name].outcome(folder) != expected:
            problems.append("the outcome differs from that of one run alone")
        failures += [problem for problem in problems if problem]
    return failures


def adverse_conditions(root: Path, *, moments: int = 6) -> dict[str, Any]:
    """Try all conditions; those that need root are skipped, with the reason, where it is missing."""
    tried, skipped = Counter[str](), dict[str, str]()
    failures: list[str] = []

    def note(what: str, name: str, count: int, found: list[str]) -> None:
        tried[what] += count
        failures.extend(f"{what}, {name}: {problem}" for problem in found)
        print(what, name, found, flush=True)

    for name in NAMES:
        try:
            note("disk full", name, len(KILOBYTES), disk_full(root / f"full-{name}", name))
            note("read-only folder", name, 1, read_only(root / f"ro-{name}", name))
        except PermissionError as error:
            skipped["disk full and read-only folder"] = str(error)
            break
    for name in ("training", "data build", "feature cache with views"):
        note("vanishing file", name, moments, vanishing(root / f"vanish-{name}", name, moments))
        note("two runs at once", name, moments, two_at_once(root / f"two-{name}", name, moments))
    return {"tried": sum(tried.values()), "conditions": dict(tried), "skipped": skipped, "failures": failures}
