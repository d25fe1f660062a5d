"""`make bench`: run all benchmarks, write one record to results/bench/, and print and update their tables.

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

from benchmarks import features, generate, growth, latency, lm, losses, objectives, profile, reading, training, tried
from benchmarks.document import AIMED_AT, AIMS, PAGE, TABLES, aims, document, table
from benchmarks.record import circumstances

RECORD = Path("results/bench/bench.json")
PARTS: dict[str, Callable[[], Any]] = {
    "training": training.measure_training,
    "prediction": training.measure_prediction,
    "profile": profile.measure_all,
    "tried": tried.measure_all,
    "latency": latency.measure_all,
    "losses": losses.measure_all,
    "objectives": objectives.measure_all,
    "generation": generate.measure_all,
    "features": features.measure_all,
    "reading": reading.measure_all,
    "growth": growth.measure_all,
    "lm": lm.measure_all,
}


def main(wanted: list[str]) -> None:
    if unknown := {*wanted} - {*PARTS}:
        sys.exit(f"unknown part: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if wanted and RECORD.exists() else {}
    for name in wanted or PARTS:
        record[name] = {**circumstances(), "measured": PARTS[name]()}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")  # after each part, because they take minutes
        print(f"{name}:\n", *TABLES[name](record[name]["measured"]), "", sep="\n")
    PAGE.write_text(document(record, PAGE.read_text()))
    if {*AIMED_AT} <= {*record}:
        print(*table(AIMS, aims(record)), "", sep="\n")
    print(f"Wrote {RECORD}, {growth.FIGURE} and the tables of {PAGE}.")


if __name__ == "__main__":
    main(sys.argv[1:])
