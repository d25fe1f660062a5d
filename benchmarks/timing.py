"""Timing and memory measurements, interleaved so that noise affects all contestants alike."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

Action = Callable[[], object]


def interleaved(actions: Mapping[str, Action], *, repeats: int, warmup: int = 2) -> dict[str, float]:
    """Return the median seconds of each action; they run in turns, in alternating order."""
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
    """Return the peak memory of tensors allocated during the action."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        action()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(accumulate(size for _, size in changes), default=0)


def forward_backward(
    losses: Mapping[str, Callable[[], Tensor]], logits: Tensor, *, repeats: int
) -> dict[str, dict[str, float]]:
    """Measure forward + backward of each loss: milliseconds, and peak memory relative to the logits."""

    def act(loss: Callable[[], Tensor]) -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        logits.grad = None

    actions = {name: partial(act, loss) for name, loss in losses.items()}
    seconds = interleaved(actions, repeats=repeats)
    return {
        "ms": {name: 1e3 * seconds[name] for name in losses},
        "memory": {name: peak_bytes(action) / logits.nbytes for name, action in actions.items()},
    }


def matmul_gflops(size: int = 2048, repeats: int = 20) -> float:
    """Measure the machine's peak speed: float32 matrix products on all cores."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    seconds = min(interleaved({"matmul": lambda: a @ b}, repeats=1)["matmul"] for _ in range(repeats))
    return 2 * size**3 / seconds / 1e9
