"""Train on photographs of playing cards without flags: ``python -m benchmarks.photographs FOLDER [--splits 5]``.

FOLDER holds the images and their table. `multiset train` is run on several random splits of it, and compared on the
test images with the baselines that it fits; images with two or more objects are also scored separately. Each finished
split is written to results/photographs.json and not run again; the table of docs/which-loss.md shows all of them. With
``--finetune``, split 0 is run as `multiset train --finetune most --minutes 45` instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.document import between, table
from benchmarks.record import circumstances
from torchmultiset.metrics import exact_match, f1
from torchmultiset.pipeline.baselines import predict_baselines
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import data_record, read_record

RECORD, PAGE = Path("results/photographs.json"), Path("docs/which-loss.md")
OURS = "multiset train"
FINETUNE = ["--finetune", "most", "--minutes", "45"]
_ALL, _SEVERAL = "all images", "two or more objects"


def main() -> None:
    """Train on the splits that have no result yet, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--finetune", action="store_true", help="fine-tune on split 0 for 45 minutes instead")
    options = parser.parse_args()
    source = next(options.folder.resolve().glob("*.csv"))
    record: dict[str, Any] = {"data": data_record(str(source)), "runs": []}
    if RECORD.exists():
        record = json.loads(RECORD.read_text())
    for seed in range(1 if options.finetune else options.splits):
        flags = FINETUNE if options.finetune else []
        if not any(run["split_seed"] == seed and run["flags"] == flags for run in record["runs"]):
            record["runs"].append(learn(source, seed, flags))
            record["means"] = means([run for run in record["runs"] if not run["flags"]])
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(document(record, PAGE.read_text()))


def learn(source: Path, seed: int, flags: Sequence[str]) -> dict[str, Any]:
    """Train on one split, and return the scores of the model and the baselines on its test images."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", str(source), "--split-seed", str(seed), *flags]
        subprocess.run([sys.executable, "-m", "torchmultiset", *command, "--out", folder + "/run"], check=True)
        minutes = (time.monotonic() - began) / 60
        run = read_record(Path(folder, "run"))
        predicted, true = read_counts(Path(folder, "run", COUNTS), "test", fix="run it again")
        compared = Path(folder, "run", "leaderboard.json")
        leaderboard = json.loads(compared.read_text()) if compared.exists() else []
    splits = prepare(RunConfig(data=DataConfig(data=str(source), split_seed=seed))).splits
    answers = {OURS: torch.from_numpy(predicted.astype(np.int64)), **predict_baselines(splits["train"], splits["test"])}
    target = torch.from_numpy(true.astype(np.int64))
    several = target.sum(1) > 1
    return {
        **circumstances(),
        "split_seed": seed,
        "flags": list(flags),
        "examples": run["examples"],
        "minutes": round(minutes, 1),
        "epochs": run["best_epoch"],
        "leaderboard": leaderboard,
        "test": {_ALL: _scores(answers, target), _SEVERAL: _scores(answers, target, several)},
    }


def means(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean scores of each method over the splits, for all images and for those with several objects."""
    return {
        part: {
            method: {
                score: float(np.mean([run["test"][part][method][score] for run in runs]))
                for score in ("exact_match", "f1")
            }
            for method in runs[0]["test"][part]
            if method != "examples"
        }
        for part in (_ALL, _SEVERAL)
        if runs
    }


def _scores(answers: Mapping[str, Tensor], target: Tensor, chosen: Tensor | None = None) -> dict[str, Any]:
    """Return the number of chosen examples, and exact match and F1 of each method on them."""
    chosen = torch.ones(len(target), dtype=torch.bool) if chosen is None else chosen
    scores = {
        name: {
            "exact_match": exact_match(counts[chosen], target[chosen]).mean().item(),
            "f1": f1(counts[chosen], target[chosen]).mean().item(),
        }
        for name, counts in answers.items()
    }
    return {"examples": int(chosen.sum()), **scores}


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the table of this record."""
    plain = [run for run in record["runs"] if not run["flags"]]
    methods = [name for name in plain[0]["test"][_ALL] if name != "examples"]
    rows = [[_name(name), *_means(plain, name)] for name in methods]
    rows += [
        [f"`multiset train {' '.join(run['flags'])}`, split {run['split_seed']}", *_means([run], OURS)]
        for run in record["runs"]
        if run["flags"]
    ]
    header = ["", *(f"{score}, {part}" for part in (_ALL, _SEVERAL) for score in ("EM", "F1"))]
    return between(page, "photographs", table(header, rows), *record["runs"])


def _name(method: str) -> str:
    names = {OURS: f"`{OURS}`", "majority": "majority baseline", "neighbour": "nearest neighbour"}
    return names.get(method, "ridge regression")


def _means(runs: Sequence[Mapping[str, Any]], method: str) -> list[str]:
    """Return the mean and the range over the splits of each score."""
    cells = []
    for part in (_ALL, _SEVERAL):
        for score in ("exact_match", "f1"):
            values = [run["test"][part][method][score] for run in runs]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.2f}{spread}")
    return cells


if __name__ == "__main__":
    main()
