"""Record the calibration of a shipped model: ``python tools/calibration_of_model.py mnist-multi-4 DATA``.

Runs ``multiset evaluate`` on the test split of DATA, and writes its output with the commit, the data's checksum and the
machine to results/<name>/calibration.json, and its figure to docs/images/calibration.png.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from torchmultiset.pipeline.record import data_record, environment, portable_command


def main(name: str, data: str) -> None:
    """Run the evaluation, and write the record and the figure."""
    command = ["evaluate", name, data, "--json", "--figure", "docs/images/calibration.png"]
    run = subprocess.run([sys.executable, "-m", "torchmultiset", *command], check=True, stdout=subprocess.PIPE)
    record = {
        "command": " ".join(["multiset", *portable_command(command)]),
        "model": name,
        "data": data_record(data),
        **environment(),
        **json.loads(run.stdout),
    }
    (Path("results") / name / "calibration.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
