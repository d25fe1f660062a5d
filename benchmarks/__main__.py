"""`make bench`: measure, show a table of each part, keep one record in results/bench/.

``python -m benchmarks losses growth`` measures these parts again and leaves the others in the record as they are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks on standard error

from rich.console import Console
from rich.table import Table

from benchmarks import features, generate, growth, latency, losses, objectives, profile, training, tried
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
}


def main(wanted: list[str]) -> None:
    if unknown := {*wanted} - {*PARTS}:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    console = Console()
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if wanted and RECORD.exists() else {}
    for name in wanted or PARTS:
        record[name] = {**circumstances(), "measured": PARTS[name](console)}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")  # after each: they take minutes
    PAGE.write_text(document(record, PAGE.read_text()))
    if {*AIMED_AT} <= {*record}:
        summary = Table(*AIMS, title="What was aimed at")
        for row in aims(record):
            summary.add_row(*row)
        console.print(summary)
    console.print(f"recorded in {RECORD} and {growth.FIGURE}; tables in {PAGE}")


if __name__ == "__main__":
    main(sys.argv[1:])
