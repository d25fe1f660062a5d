"""`make bench`: measure, show a table of each, keep one record in results/bench/."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks on standard error

from rich.console import Console

from benchmarks import features, generate, losses, training
from benchmarks.record import circumstances
from benchmarks.timing import matmul_gflops

RECORD = Path("results/bench/bench.json")


def main() -> None:
    console = Console()
    record = {
        **circumstances(),
        "matmul_gflops": matmul_gflops(),
        "training": training.report(console),
        "multiset_loss": losses.report(console),
        "generation": generate.report(console),
        "feature_cache": features.report(console),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    console.print(f"recorded in {RECORD}")


if __name__ == "__main__":
    main()
