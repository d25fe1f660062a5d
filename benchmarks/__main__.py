"""`make bench`: measure, show a table of each, keep one record in results/bench/."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks on standard error

from rich.console import Console
from rich.table import Table

from benchmarks import losses, training
from benchmarks.record import circumstances
from benchmarks.timing import matmul_gflops

RECORD = Path("results/bench/bench.json")


def training_table(console: Console) -> list[dict[str, float]]:
    table = Table(title="Training images/s, batch 64, 100x100 pixels (MNIST Multi)")
    plain = ("one convolution for all gates", "gate by gate")
    for column in ("T", "layers", "torchmultiset", *plain, "ratios", "loss's share"):
        table.add_column(column, justify="right")
    rows = []
    for layers in (1, 2):
        for steps in (4, 10):
            speed = training.measure(steps, layers)
            ours = speed["torchmultiset"]
            table.add_row(
                str(steps),
                str(layers),
                f"{ours:.0f}",
                *[f"{speed[name]:.0f}" for name in plain],
                " / ".join(f"{ours / speed[name]:.2f}x" for name in plain),
                f"{speed['share of the loss']:.2%}",
            )
            rows.append({"steps": steps, "layers": layers, **speed})
    console.print(table)
    return rows


def loss_table(console: Console) -> dict[str, object]:
    batch, steps, classes = 256, 10, 1000
    ways = losses.measure(batch, steps, classes)
    table = Table(title=f"Forward + backward, B={batch}, T={steps}, C={classes}")
    for column in ("", "ms", "peak MB", "time against cross-entropy"):
        table.add_column(column, justify="right")
    unit = ways["F.cross_entropy, probability targets"]["ms"]
    for name, cost in ways.items():
        table.add_row(name, f"{cost['ms']:.1f}", f"{cost['peak_mb']:.1f}", f"{cost['ms'] / unit:.2f}x")
    console.print(table)
    return {"batch": batch, "steps": steps, "classes": classes, "ways": ways}


def main() -> None:
    console = Console()
    record = {
        **circumstances(),
        "matmul_gflops": matmul_gflops(),
        "training": training_table(console),
        "multiset_loss": loss_table(console),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    console.print(f"recorded in {RECORD}")


if __name__ == "__main__":
    main()
