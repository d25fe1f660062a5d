"""`make campaign`: run the campaign, write results/campaign.json and docs/campaign.md.

``python -m campaign damage kills`` repeats only these parts and keeps the others in the record; ``--minutes`` and the
counts set the length; ``python -m campaign page`` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from campaign.conditions import adverse_conditions
from campaign.damage import damaged_inputs
from campaign.execution import check_execution
from campaign.kills import kill_all
from campaign.numbers import degenerate_data
from campaign.page import page
from campaign.server import abuse
from torchmultiset.pipeline.record import environment

RECORD = Path("results/campaign.json")
PAGE = Path("docs/campaign.md")


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "execution": lambda _, __: check_execution(Path.cwd()),
    "damage": lambda root, given: damaged_inputs(
        root, given.inputs, given.seed, seconds=30 * given.minutes, shown=True
    ),
    "kills": lambda root, given: kill_all(root, given.kills, given.seed, seconds=24 * given.minutes, shown=True),
    "conditions": lambda root, _: adverse_conditions(root),
    "server": lambda root, given: abuse(root, given.requests, given.seed),
    "numbers": lambda root, _: degenerate_data(root),
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or page; default: all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="half for damaged inputs, 0.4 for kills")
    parser.add_argument("--inputs", type=int, default=10_000, help="number of damaged inputs")
    parser.add_argument("--kills", type=int, default=200, help="number of kills")
    parser.add_argument("--requests", type=int, default=1_000, help="number of requests to the server")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    if unknown := {*given.parts} - {*PARTS, "page"}:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in given.parts or PARTS:
        if name == "page":
            continue
        start, about = time.monotonic(), {"date": datetime.now(UTC).isoformat(timespec="seconds"), **environment()}
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            result = PARTS[name](Path(folder), given)
        record[name] = {**about, "minutes": round((time.monotonic() - start) / 60, 1), **result}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")  # after each part, because they take minutes
        print(f"{name}: {len(result['failures'])} failures", flush=True)
    PAGE.write_text(page(record))
    print(f"Wrote {RECORD} and {PAGE}.")
    return int(any(part["failures"] for part in record.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
