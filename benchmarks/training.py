"""Training and prediction speed of the paper's MNIST Multi network, compared with plain implementations.

Each contestant has its own processes, which run steps in turns while the others wait: ours as `multiset train` runs it
on this machine, one process per core; ours in one process; and the plain ones, which use all cores with threads.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.contestant import BATCH, EVALUATED, OURS, PLAIN, SHAPES, Contest, make
from benchmarks.profile import mflop
from benchmarks.timing import matmul_gflops, peak_bytes
from torchmultiset.pipeline.run import EXAMPLES_EACH

IN_ONE = "in one process"


class Runner:
    """The running processes of one contestant, from the source in a folder: by default, from here."""

    def __init__(self, contest: Contest, source: Path | None = None) -> None:
        self.processes = []
        paths = {} if source is None else {"PYTHONPATH": f"{source / 'src'}{os.pathsep}{source}"}
        for rank in range(contest.processes):
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": contest.port, "RANK": rank}
            environment = {name: str(value) for name, value in {**place, "WORLD_SIZE": contest.processes}.items()}
            command = [sys.executable, "-m", "benchmarks.contestant", json.dumps(asdict(contest))]
            self.processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=source,
                    env={**os.environ, **paths, **environment, "OMP_NUM_THREADS": str(contest.threads)},
                )
            )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def seconds(self, steps: int) -> float:
        """Run some steps, and return the seconds per step of the slowest process."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        times = []
        for process in self.processes:
            assert process.stdout
            times.append(float(process.stdout.readline()))
        return max(times) / steps


def contest(
    contests: Mapping[str, Contest],
    *,
    repeats: int = 15,
    steps: int = 2,
    sources: Mapping[str, Path] | None = None,
) -> dict[str, float]:
    """Return the images per second of each contestant, as medians over turns; some may have a source of their own."""
    seconds: dict[str, list[float]] = {name: [] for name in contests}
    with ExitStack() as stack:
        runners = {
            name: stack.enter_context(Runner(each, (sources or {}).get(name))) for name, each in contests.items()
        }
        for runner in runners.values():
            runner.seconds(1)
        turn = [*runners.items()]
        for _ in range(repeats):
            for name, runner in turn:
                seconds[name].append(runner.seconds(steps))
            turn.reverse()
    return {name: contests[name].batch / statistics.median(times) for name, times in seconds.items()}


def contestants(steps: int, layers: int, *, train: bool) -> dict[str, Contest]:
    cores = torch.get_num_threads()
    one = Contest(OURS, steps, layers, train, batch=BATCH if train else 8 * EVALUATED, threads=cores)
    processes = max(1, min(cores, BATCH // EXAMPLES_EACH))
    several = replace(one, processes=processes, threads=cores // processes, port=free_port())
    ours = {OURS: several, IN_ONE: one} if train and processes > 1 else {OURS: one}
    return ours | {name: replace(one, name=name) for name in PLAIN}


def measure_training() -> dict[str, Any]:
    """Measure the speed and the memory of training."""
    gflops = matmul_gflops()
    rows = [_row(steps, layers, train=True) for steps, layers in SHAPES]
    for row in rows:
        row["mflop"] = sum(mflop(row["steps"], row["layers"]).values())
        row["share of the peak"] = row["images/s"][OURS] * row["mflop"] / 1000 / gflops
        held = {name: peak_bytes(make(Contest(name, row["steps"], row["layers"]))) for name in (OURS, *PLAIN)}
        row["peak_mb"] = {name: size / 1e6 for name, size in held.items()}
    return {"matmul GFLOP/s": gflops, "rows": rows}


def measure_prediction() -> list[dict[str, Any]]:
    """Measure the speed of prediction."""
    return [_row(steps, layers, train=False) for steps, layers in SHAPES]


def _row(steps: int, layers: int, *, train: bool) -> dict[str, Any]:
    speed = contest(contestants(steps, layers, train=train), steps=2 if train else 1)
    ratio = {name: speed[OURS] / speed[name] for name in PLAIN}
    return {"steps": steps, "layers": layers, "images/s": speed, "ratio": ratio}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
