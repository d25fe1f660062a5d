"""Kills: SIGKILL at random moments, then the same command again, until the result can be compared."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from campaign.scenarios import SCENARIOS, Scenario

__all__ = ["fresh", "half_written", "kill_all", "kill_scenario", "start_victim"]

DEADLINE = 240.0
_CHAIN = 5
"""Kills of one run before it may end."""


def _victim(name: str, folder: Path, log: Path) -> None:
    import torch

    os.setsid()
    torch.set_num_threads(1)
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # figures take longer than training here
    SCENARIOS[name].run(folder)


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["campaign.kills", "campaign.kinds", "lightning_fabric", "torchmultiset.cli.train"])


def start_victim(name: str, folder: Path, log: Path) -> Any:
    process = _FORKS.Process(target=_victim, args=(name, folder, log), daemon=False)
    process.start()
    return process


def half_written(folder: Path) -> Iterator[str]:
    """Yield the files that look whole by their names, but cannot be read."""
    from torchmultiset.model.predictor import Predictor
    from torchmultiset.training.checkpoint import read_checkpoint

    for file in sorted(folder.rglob("*")):
        try:
            if file.suffix == ".json" and file.is_file():
                json.loads(file.read_text())
            elif file.suffix == ".toml":
                tomllib.loads(file.read_text())
            elif file.name == "epochs.jsonl":
                [json.loads(line) for line in file.read_text().splitlines()]
            elif file.name == "checkpoint.pt":
                read_checkpoint(file)
            elif file.suffix == ".npz":
                with np.load(file) as arrays:
                    [arrays[name] for name in arrays]
            elif file.name == "predictor.json":
                Predictor.load(file.parent)
            elif file.suffix == ".onnx":
                from onnxruntime import InferenceSession

                InferenceSession(file)
        except FileNotFoundError:
            continue  # workers of a killed command may still be ending
        except Exception as error:
            yield f"{file.relative_to(folder)}: {type(error).__name__}: {str(error)[:200]}"


def held_locks(folder: Path) -> list[str]:
    """Return the locks that a process holds."""
    held = []
    for file in folder.rglob("*.lock"):
        with file.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.append(file.name)
    return held


def _settle(folder: Path) -> list[str]:
    """Wait until the workers of a killed command have ended, and return the locks that are held after that."""
    deadline = time.monotonic() + 60
    while (held := held_locks(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def _finish(name: str, folder: Path, log: Path) -> str | None:
    process = start_victim(name, folder, log)
    process.join(DEADLINE)
    if process.exitcode == 0:
        return None
    state = "did not end" if process.exitcode is None else f"ended with code {process.exitcode}"
    process.kill()
    return f"{state}: {log.read_text()[-300:]}"


def kill_scenario(name: str, root: Path, wanted: int, seed: int, seconds: float = math.inf) -> dict[str, Any]:
    """Kill one scenario so many times; compare each chain of kills with a run that was never killed."""
    scenario, rng = SCENARIOS[name], random.Random(f"{seed} {name}")
    failures: list[str] = []
    whole = root / "whole"
    fresh(scenario, whole)
    start = time.monotonic()
    problem = _finish(name, whole, root / "whole.log")
    if problem:
        return {"kills": 0, "chains": 0, "failures": [f"without kills: {problem}"]}
    lasts, expected = time.monotonic() - start, scenario.outcome(whole)
    kills = chains = 0
    until = time.monotonic() + seconds
    while kills < wanted and not failures and chains < 3 * wanted and time.monotonic() < until:
        folder, log = root / "killed", root / "killed.log"
        fresh(scenario, folder)
        log.write_text("")
        chains += 1
        for _ in range(min(_CHAIN, wanted - kills)):
            process = start_victim(name, folder, log)
            start = time.monotonic()
            process.join(rng.uniform(0.02, 0.8) * lasts)
            if process.exitcode is not None:
                lasts = min(lasts, 0.9 * (time.monotonic() - start) + 0.1)
                if process.exitcode != 0:
                    failures.append(f"resumed, it ended with code {process.exitcode}: {log.read_text()[-300:]}")
                break
            os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                if name == "training in two processes":  # as a shell does that ends a job
                    os.killpg(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            failures += [f"half-written: {file}" for file in half_written(folder)]
            failures += [f"a lock is held: {file}" for file in _settle(folder)]
        finished = {
            path: path.stat().st_mtime_ns for path in folder.glob("run/candidates/**/run.json") if _is_finished(path)
        }
        problem = _finish(name, folder, log)
        if problem:
            failures.append(f"after kills, it {problem}")
        elif scenario.outcome(folder) != expected:
            failures.append("the outcome differs from that of a run that was never killed")
        again = [str(path.relative_to(folder)) for path, when in finished.items() if path.stat().st_mtime_ns != when]
        failures += [f"a finished candidate was trained again: {path}" for path in again]
        left = [path.name for path in folder.rglob("*.partial")]
        failures += [f"left behind: {path}" for path in left] + [f"a lock is held: {path}" for path in _settle(folder)]
        shutil.rmtree(folder)
    return {"kills": kills, "chains": chains, "failures": failures}


def _is_finished(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text()).get("finished"))
    except (OSError, ValueError):
        return False


def fresh(scenario: Scenario, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scenario.prepare(folder)


def kill_all(
    root: Path,
    kills: int,
    seed: int,
    *,
    names: Sequence[str] = tuple(SCENARIOS),
    seconds: float = math.inf,
    shown: bool = False,
) -> dict[str, Any]:
    """Kill all scenarios, about so many times in all, and begin no chain of kills after so many seconds."""
    results = {}
    total = sum(SCENARIOS[name].share for name in names)
    for name in names:
        share, start = SCENARIOS[name].share / total, time.monotonic()
        wanted = max(1, math.ceil(kills * share))
        results[name] = kill_scenario(name, root / name.replace(" ", "-"), wanted, seed, seconds * share)
        results[name]["minutes"] = round((time.monotonic() - start) / 60, 2)
        if shown:
            print(name, results[name], flush=True)
    return {
        "seed": seed,
        "tried": sum(one["kills"] for one in results.values()),
        "scenarios": results,
        "failures": [f"{name}: {failure}" for name, one in results.items() for failure in one["failures"]],
    }
