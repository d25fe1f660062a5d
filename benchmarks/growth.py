"""Time and memory of a training step as functions of steps, classes, batch size and image size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import interleaved, peak_bytes
from torchmultiset.encoders import ConvEncoder
from torchmultiset.losses import multiset_loss
from torchmultiset.multiset import from_labels
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import greedy, rollout

FIGURE = Path("results/bench/growth.png")
USUAL = {"steps T": 4, "classes C": 10, "batch B": 64, "side of the image": 100}
SWEEPS = {
    "steps T": (1, 2, 4, 8, 16),
    "classes C": (10, 100, 1000, 10000),
    "batch B": (1, 4, 16, 64, 256),
    "side of the image": (40, 60, 100, 160, 240),
}


def measure(steps: int, classes: int, batch: int, side: int) -> tuple[float, float]:
    """Return the milliseconds and the peak megabytes of a training step of the paper's network with one layer."""
    torch.manual_seed(0)
    encoder = ConvEncoder()
    policy = ConvLSTMPolicy(classes, encoder.memory_shape(side, side), layers=1)
    adam = torch.optim.Adam([*encoder.parameters(), *policy.parameters()], fused=True)
    images = torch.rand(batch, 1, side, side)
    target = from_labels(torch.randint(0, classes, (batch, steps)), classes)

    def step() -> None:
        trajectory = rollout(policy, encoder(images), greedy, steps)
        adam.zero_grad()
        multiset_loss(trajectory.logits, trajectory.labels, target).backward()  # type: ignore[no-untyped-call]
        adam.step()

    return 1e3 * interleaved({"step": step}, repeats=5)["step"], peak_bytes(step) / 1e6


def measure_all() -> dict[str, list[dict[str, Any]]]:
    """Measure all sweeps, and draw the plot."""
    record = {name: [_point(name, value) for value in values] for name, values in SWEEPS.items()}
    _draw(record)
    return record


def _point(name: str, value: int) -> dict[str, Any]:
    ms, megabytes = measure(*(USUAL | {name: value}).values())
    return {"value": value, "ms": ms, "peak_mb": megabytes}


def _draw(record: dict[str, list[dict[str, Any]]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, ScalarFormatter

    figure, axes = plt.subplots(1, len(record), figsize=(13, 3.2), layout="constrained", sharey=True)
    for axis, (name, points) in zip(axes, record.items(), strict=True):
        x = [point["value"] for point in points]
        axis.plot(x, [point["ms"] for point in points], "o-", color="#1f77b4", label="time, ms")
        axis.plot(x, [point["peak_mb"] for point in points], "s--", color="#d62728", label="peak memory, MB")
        axis.set(xscale="log", yscale="log", xlabel=name, xticks=x, xticklabels=x)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(loc="lower right")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=120)
    plt.close(figure)
