"""Counts of particles from simulated collisions: ``python -m benchmarks.collisions [--minutes 3]``.

Runs examples/collisions.py in a temporary folder, and writes its scores and the leaderboard to
results/any-input/collisions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import circumstances

RECORD = Path("results/any-input/collisions.json")


def main() -> None:
    """Run the example, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    options = parser.parse_args()
    began, busy = time.monotonic(), os.getloadavg()[0]
    command = ["examples/collisions.py", "runs/collisions", "--minutes", f"{options.minutes:g}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, command[1])
        subprocess.run([sys.executable, Path(command[0]).resolve(), *command[1:]], cwd=name, check=True)
        record = {
            **circumstances(),
            "command": f"python {' '.join(command)}",
            "minutes": round((time.monotonic() - began) / 60, 1),
            "load": [round(busy, 1), round(os.getloadavg()[0], 1)],
            "measured": json.loads((folder / "scores.json").read_text()),
            "leaderboard": json.loads((folder / "run" / "leaderboard.json").read_text()),
        }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
