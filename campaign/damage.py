"""Damaged input: mutations of valid files, each read by the command line in a worker process with limits."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from campaign.formats import by_structure
from campaign.kinds import KINDS
from campaign.mutate import by_bytes

__all__ = ["MEGABYTES", "SECONDS", "Crew", "damaged_inputs", "judge"]

SECONDS = 20.0
"""Limit of the processor time of one input, so that other work on the machine does not count."""
_WAIT = 10 * SECONDS
"""Seconds after which a worker is killed in any case."""
MEGABYTES = 2_000
"""Limit of the memory that one input may take in addition; the system refuses more (RLIMIT_AS)."""

# A message tells what to do if it has a verb like these, or states what is expected.
_ADVICE = re.compile(
    r"\b(save|delete|write|use|build|replace|choose|remove|rename|resize|put|keep|raise|must|expected|should|start|"
    r"install|check|resume|train|export|download|give|pass|add|set|leave|correct|quote|repeat|repair|see|did you mean|"
    r"free up|convert)\b",
    re.IGNORECASE,
)


def damage(kind_name: str, case: int, seed: int, base: Path, scratch: Path) -> tuple[Path, Path, bool]:
    """Copy the valid files and damage one; return the folder, the file, and whether it differs."""
    kind, rng = KINDS[kind_name], random.Random(f"{seed} {kind_name} {case}")
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    files = sorted(file for pattern in kind.files for file in folder.glob(pattern) if file.is_file())
    file = rng.choice(files)
    before = file.read_bytes()
    mutate = by_structure(file.name) if case % 2 else by_bytes
    try:
        after = mutate(before, rng)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):  # a mutation does not apply to this file
        after = by_bytes(before, rng)
    file.write_bytes(after)
    return folder, file, after != before


def judge(kind_name: str, file: Path, code: int, read: str, errors: str, valid: str) -> tuple[str, str]:
    """Classify what a command did with a damaged file."""
    kind = KINDS[kind_name]
    if code == 0:
        if kind.checksum and read != valid:
            return "wrong success", f"{file.name} was read without an error, with another result"
        return "read", ""
    if file.name not in errors and file.parent.name not in errors and not re.search(kind.named, errors):
        return "unclear", f"the message does not name {file.name}: {errors[-300:]}"
    if not _ADVICE.search(errors):
        return "unclear", f"the message does not tell what to do: {errors[-300:]}"
    return "refused", ""


def _peak() -> int:
    """Return the peak of this process's memory since the last call, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(found[1]) if found else 0


def attempt(kind_name: str, case: int, seed: int, base: Path, scratch: Path, valid: str) -> dict[str, Any]:
    """Damage one file, run the command, and describe what happened."""
    folder, file, changed = damage(kind_name, case, seed, base, scratch)
    errors = io.StringIO()
    _peak()
    before, start = _peak(), time.process_time()
    outcome, detail = "read", ""
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code, read = KINDS[kind_name].run(folder, file)
            read = read.replace(str(folder), ".")
        outcome, detail = judge(kind_name, file, code, read, errors.getvalue(), valid)
    except BaseException as error:
        frames = reversed(traceback.extract_tb(error.__traceback__)[-5:])
        places = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)
        outcome, detail = "uncaught", f"{traceback.format_exception(error)[-1].strip()[:300]} | {places}"
    return {
        "kind": kind_name, "case": case, "file": file.name, "changed": changed, "outcome": outcome,
        "detail": detail.replace(str(folder), "."), "seconds": time.process_time() - start,
        "megabytes": max(0, _peak() - before) / 1e6,
    }  # fmt: skip


def _serve(pipe: Connection, root: Path) -> None:
    """In a worker: attempt what comes through the pipe."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    scratch = root / f"worker-{os.getpid()}"
    scratch.mkdir()
    os.chdir(scratch)
    os.environ |= {"COLUMNS": "200"}
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # libraries in C print their own warnings
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    size = 1024 * int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_AS, (size + MEGABYTES * 10**6, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # figures take longer than what is tested
    warm: set[str] = set()
    while True:
        order = pipe.recv()
        if order is None:
            shutil.rmtree(scratch, ignore_errors=True)
            return
        name, case, seed, valid = order
        if name not in warm:  # the first use of a kind imports modules, which is no part of reading it
            warm.add(name)
            with contextlib.suppress(BaseException), contextlib.redirect_stderr(io.StringIO()):
                read_valid(name, root / "base" / _slug(name), scratch / "valid")
        pipe.send(attempt(name, case, seed, root / "base" / _slug(name), scratch, valid))


def _build(root: Path, names: Sequence[str], pipe: Connection) -> None:
    """In a process of its own: write the valid files, and read each kind once."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    valid = {}
    for name in names:
        base = root / "base" / _slug(name)
        base.mkdir(parents=True)
        try:
            KINDS[name].build(base)
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                code, valid[name] = read_valid(name, base, root / "valid")
            if code:
                raise RuntimeError(f"the valid input of kind {name} was refused: {errors.getvalue()}")
        except BaseException:
            pipe.send(traceback.format_exc())
            return
    pipe.send(valid)


def read_valid(name: str, base: Path, copy: Path) -> tuple[int, str]:
    """Read a copy of the valid files."""
    shutil.copytree(base, copy)
    file = next(file for pattern in KINDS[name].files for file in sorted(copy.glob(pattern)) if file.is_file())
    code, read = KINDS[name].run(copy, file)
    shutil.rmtree(copy)
    return code, read.replace(str(copy), ".")


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name).strip("-")


class Crew:
    """One worker process, replaced when it dies or takes too long."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.context = root, multiprocessing.get_context("spawn")
        here, there = self.context.Pipe()
        builder = self.context.Process(target=_build, args=(root, names, there))
        builder.start()
        answer = here.recv()
        builder.join()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        self.valid: dict[str, str] = answer
        self.restarts = 0
        self._start()

    def _start(self) -> None:
        self.pipe, there = self.context.Pipe()
        self.process = self.context.Process(target=_serve, args=(there, self.root), daemon=True)
        self.process.start()
        there.close()

    def attempt(self, name: str, case: int, seed: int) -> dict[str, Any]:
        """Attempt one case; a worker that dies or takes too long is a failure, and is replaced."""
        self.pipe.send((name, case, seed, self.valid[name]))
        outcome, start = "crash", time.monotonic()
        try:
            if self.pipe.poll(_WAIT):
                answer: dict[str, Any] = self.pipe.recv()
                if answer["seconds"] > SECONDS:
                    answer |= {"outcome": "slow", "detail": f"took {answer['seconds']:.0f} seconds of processor time"}
                return answer
            outcome = "slow"
        except (EOFError, ConnectionError):
            pass
        self.process.kill()
        self.process.join()
        detail = f"the process ended with code {self.process.exitcode}"
        self.restarts += 1
        self._start()
        seconds = time.monotonic() - start
        answer = {"kind": name, "case": case, "file": "", "changed": True, "outcome": outcome, "detail": detail}
        return {**answer, "seconds": seconds, "megabytes": 0.0}

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join(10)
        self.process.kill()


BAD = ("uncaught", "wrong success", "unclear", "crash", "slow")


def damaged_inputs(
    root: Path,
    cases: int,
    seed: int,
    *,
    names: Sequence[str] = tuple(KINDS),
    seconds: float = math.inf,
    shown: bool = False,
) -> dict[str, Any]:
    """Attempt so many cases, the kinds in turn, for at most so many seconds, and count what happened."""
    crew = Crew(root, names)
    turns = [name for turn in range(3) for name in names if turn < KINDS[name].weight]
    counts = {name: Counter[str]() for name in names}
    most = {name: {"seconds": 0.0, "megabytes": 0.0} for name in names}
    failures: list[dict[str, Any]] = []
    start = time.monotonic()
    try:
        for number in range(cases):
            if time.monotonic() - start > seconds:
                break
            name = turns[number % len(turns)]
            answer = crew.attempt(name, counts[name].total(), seed)
            counts[name][answer["outcome"]] += 1
            for key in most[name]:
                most[name][key] = max(most[name][key], round(answer[key], 3))
            if answer["outcome"] in BAD:
                failures.append({key: answer[key] for key in ("kind", "case", "file", "outcome", "detail")})
                if shown:
                    print(failures[-1], flush=True)
            if shown and number % 500 == 499:
                print(f"{number + 1} inputs, {len(failures)} failures, {time.monotonic() - start:.0f} s", flush=True)
    finally:
        crew.close()
    return {
        "tried": sum(count.total() for count in counts.values()),
        "seed": seed,
        "limits": {"seconds": SECONDS, "megabytes": MEGABYTES},
        "kinds": {
            name: {**counts[name], **{f"most {key}": value for key, value in most[name].items()}} for name in names
        },
        "failures": failures,
    }
