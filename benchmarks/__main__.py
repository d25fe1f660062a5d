"""`make bench`: measure, show a table of each, keep one record in results/bench/."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks on standard error

from rich.console import Console

from benchmarks import features, generate, growth, latency, losses, profile, training, tried
from benchmarks.record import circumstances
from benchmarks.timing import matmul_gflops

RECORD = Path("results/bench/bench.json")


def main() -> None:
    console = Console()
    gflops = matmul_gflops()
    record = {
        **circumstances(),
        "matmul_gflops": gflops,
        **training.report(console, gflops),
        "profile": profile.report(console),
        "tried": tried.report(console),
        "latency": latency.report(console),
        "multiset_loss": losses.report(console),
        "generation": generate.report(console),
        "feature_cache": features.report(console),
        "growth": growth.report(console),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    console.print(f"recorded in {RECORD} and {growth.FIGURE}")


if __name__ == "__main__":
    main()
