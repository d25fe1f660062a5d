"""`make bench`: run all benchmarks, print their tables, and write one record to results/bench/.

``python -m benchmarks losses growth`` repeats only these parts and keeps the others in the record.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler on standard error

from rich.console import Console
from rich.table import Table

from benchmarks import features, generate, growth, latency, lm, losses, objectives, profile, training, tried
from benchmarks.document import AIMED_AT, AIMS, PAGE, aims, document
from benchmarks.record import circumstances

RECORD = Path("results/bench/bench.json")
PARTS: dict[str, Callable[[Console], Any]] = {
    "training": training.report,
    "prediction": training.report_prediction,
    "profile": profile.report,
    "tried": tried.report,
    "latency": latency.report,
    "losses": losses.report,
    "objectives": objectives.report,
    "generation": generate.report,
    "features": features.report,
    "growth": growth.report,
    "lm": lm.report,
}


def main(wanted: list[str]) -> None:
    if unknown := {*wanted} - {*PARTS}:
        sys.exit(f"unknown part: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    console = Console()
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if wanted and RECORD.exists() else {}
    for name in wanted or PARTS:
        record[name] = {**circumstances(), "measured": PARTS[name](console)}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")  # after each part, because they take minutes
    PAGE.write_text(document(record, PAGE.read_text()))
    if {*AIMED_AT} <= {*record}:
        summary = Table(*AIMS, title="Targets")
        for row in aims(record):
            summary.add_row(*row)
        console.print(summary)
    console.print(f"Wrote {RECORD}, {growth.FIGURE} and the tables of {PAGE}.")


if __name__ == "__main__":
    main(sys.argv[1:])
