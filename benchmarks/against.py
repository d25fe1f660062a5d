"""Training speed of this commit beside an earlier one: ``python -m benchmarks.against COMMIT``; about five minutes.

Both run the training step of `benchmarks.training` in turns, each from its own source, with the same libraries. Writes
results/bench/against.json and the table of docs/performance.md.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contestant import OURS, SHAPES
from benchmarks.document import PAGE, between, table
from benchmarks.record import circumstances
from benchmarks.training import contest, contestants, free_port
from torchmultiset._files import write_whole

RECORD = Path("results/bench/against.json")
NOW, THEN = "now", "then"


def main() -> None:
    """Measure both commits, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    commit = parser.parse_args().commit
    found = subprocess.run(["git", "rev-parse", commit], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", found, "src", "benchmarks"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        rows = [measure(steps, layers, Path(folder)) for steps, layers in SHAPES]
    record = {**circumstances(), "against": found, "measured": rows}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    lines = document(rows)
    write_whole(PAGE, between(PAGE.read_text(), "against", lines, record))
    print(*lines, sep="\n")


def measure(steps: int, layers: int, source: Path) -> dict[str, Any]:
    """Return the images per second of this commit and of the one whose source is in the folder."""
    ours = contestants(steps, layers, train=True)[OURS]
    speed = contest({NOW: ours, THEN: replace(ours, port=free_port())}, repeats=31, sources={THEN: source})
    return {"steps": steps, "layers": layers, "images/s": speed}


def document(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the page."""
    cells = [
        [
            str(row["steps"]),
            str(row["layers"]),
            *(f"{row['images/s'][name]:.0f}" for name in (THEN, NOW)),
            f"{row['images/s'][NOW] / row['images/s'][THEN]:.2f}x",
        ]
        for row in rows
    ]
    return table(["T", "layers", "then, images/s", "now, images/s", "now / then"], cells)


if __name__ == "__main__":
    main()
