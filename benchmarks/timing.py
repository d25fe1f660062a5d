"""How things are timed and weighed: interleaved, so that a noisy moment hits all contestants; medians."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

Action = Callable[[], object]


def interleaved(actions: Mapping[str, Action], *, repeats: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each action, run in turns, in one order and then in the other: nobody always goes first."""
    for action in actions.values():
        for _ in range(warmup):
            action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    order = [*actions.items()]
    for _ in range(repeats):
        for name, action in order:
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
        order.reverse()
    return {name: statistics.median(times) for name, times in seconds.items()}


def peak_bytes(action: Action) -> int:
    """The most memory that tensors made during the action hold at one time."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        action()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(accumulate(size for _, size in changes), default=0)


def matmul_gflops(size: int = 2048, repeats: int = 20) -> float:
    """The machine's best speed in float32 matrix products, all cores together: the limit of everything else."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    seconds = min(interleaved({"matmul": lambda: a @ b}, repeats=1)["matmul"] for _ in range(repeats))
    return 2 * size**3 / seconds / 1e9
