"""Record the calibration or entropy of a shipped model: ``python tools/measure_model.py entropy mnist-multi-4 DATA``.

Runs ``multiset evaluate`` on the model's data. ``calibration`` uses the test split, and writes
results/<name>/calibration.json and docs/images/calibration.png; ``entropy`` uses the validation split, and writes
results/<name>/entropy.json and entropy.png.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from torchmultiset.pipeline.record import data_record, environment, portable_command


def main(what: str, name: str, data: str) -> None:
    """Run the evaluation, and write the record and the figure."""
    out = Path("results") / name
    flags = {
        "calibration": ["--figure", "docs/images/calibration.png"],
        "entropy": ["--split", "validation", "--no-calibration", "--entropy", str(out / "entropy.png")],
    }
    command = ["evaluate", name, data, "--json", *flags[what]]
    run = subprocess.run([sys.executable, "-m", "torchmultiset", *command], check=True, stdout=subprocess.PIPE)
    measured = json.loads(run.stdout)
    record = {
        "command": " ".join(["multiset", *portable_command(command)]),
        "model": name,
        "data": data_record(data),
        **environment(),
        **(measured if what == "calibration" else {"split": "validation", **measured["entropy"]}),
    }
    (out / f"{what}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
