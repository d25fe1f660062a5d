"""Chemical names to multisets of heavy atoms: ``python -m benchmarks.chemicals [--minutes 14] [--split name formula]``.

The package `chemicals` has the names and formulas of PubChem's compounds; those with 1 to 10 atoms other than
hydrogen are used. They are split by name, and by heavy atoms, so that no formula is in two splits. `multiset train`
without other flags is compared with ridge regression on counts of 1- to 4-grams and with the majority baseline. Writes
results/any-input/chemicals.json.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import circumstances

RECORD = Path("results/any-input/chemicals.json")
_TABLES = ("chemical identifiers pubchem large.tsv", "chemical identifiers pubchem small.tsv")
_FORMULA, _NAME = 2, 7  # columns of these tables
_MOST = 10
_PENALTIES = (0.1, 0.3, 1.0, 3.0)

Names = Mapping[str, Mapping[str, int]]


def read_names() -> dict[str, Counter[str]]:
    """Return the heavy atoms of each compound by its name."""
    found: dict[str, Counter[str]] = {}
    folder = Path(str(distribution("chemicals").locate_file("chemicals/Identifiers")))  # nothing is imported
    for table in _TABLES:
        for line in (folder / table).read_text(encoding="utf-8").splitlines():
            cells = line.split("\t")
            if len(cells) <= _NAME or not re.fullmatch(r"([A-Z][a-z]?\d*)+", cells[_FORMULA]):
                continue
            atoms = heavy_atoms(cells[_FORMULA])
            name = cells[_NAME].strip()
            if name and 1 <= atoms.total() <= _MOST:
                found.setdefault(name, atoms)
    return found


def heavy_atoms(formula: str) -> Counter[str]:
    """Return the atoms of a formula such as C2H5Cl, without hydrogen and its isotopes."""
    atoms: Counter[str] = Counter()
    for symbol, number in re.findall(r"([A-Z][a-z]?)(\d*)", formula):
        atoms[symbol] += int(number or 1)
    return Counter({symbol: number for symbol, number in atoms.items() if symbol not in ("H", "D", "T")})


def split_of(key: str) -> str:
    """Return a split that depends on the key alone: 70% train, 15% validation, 15% test."""
    share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.7 else "validation" if share < 0.85 else "test"


def write_table(path: Path, names: Names, key: Callable[[str], str]) -> dict[str, str]:
    """Write a CSV file with names, labels and splits, and return the split of each name."""
    splits = {name: split_of(key(name)) for name in names}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "labels", "split"])
        for name, atoms in names.items():
            writer.writerow([name, ";".join(f"{symbol}:{number}" for symbol, number in atoms.items()), splits[name]])
    return splits


def ridge_on_ngrams(names: Names, splits: Mapping[str, str]) -> dict[str, Any]:
    """Return the exact match of rounded ridge regression on 1- to 4-gram counts; validation data sets the penalty."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import Ridge

    symbols = sorted({symbol for atoms in names.values() for symbol in atoms})
    parts = {split: [name for name in names if splits[name] == split] for split in ("train", "validation", "test")}
    ngrams = CountVectorizer(analyzer="char", ngram_range=(1, 4), lowercase=False, min_df=2)
    x = {split: (ngrams.fit_transform if split == "train" else ngrams.transform)(parts[split]) for split in parts}
    y = {split: np.array([[names[one][symbol] for symbol in symbols] for one in parts[split]]) for split in parts}
    scores = {}
    for penalty in _PENALTIES:
        model = Ridge(alpha=penalty, solver="sparse_cg", tol=1e-3).fit(x["train"].astype(np.float64), y["train"])
        scores[penalty] = {
            split: float((np.rint(model.predict(x[split])).clip(0) == y[split]).all(1).mean())
            for split in ("validation", "test")
        }
    best = max(scores, key=lambda penalty: scores[penalty]["validation"])
    return {"penalty": best, "features": len(ngrams.vocabulary_), "em": scores[best]["test"]}


def majority(names: Names, splits: Mapping[str, str]) -> float:
    """Return the exact match of the most frequent multiset of the training data."""
    rows = {name: tuple(sorted(atoms.items())) for name, atoms in names.items()}
    (most, _), *_ = Counter(rows[name] for name in names if splits[name] == "train").most_common(1)
    tested = [rows[name] == most for name in names if splits[name] == "test"]
    return sum(tested) / len(tested)


def main() -> None:
    """Train on both splits, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="budget of multiset train; default: its own")
    parser.add_argument("--split", nargs="+", default=["name", "formula"], choices=["name", "formula"])
    parser.add_argument("--table", type=Path, help="only write the names, split by name, to this CSV file")
    options = parser.parse_args()
    names = read_names()
    if options.table is not None:
        write_table(options.table, names, lambda one: one)
        return
    formulas = {name: "".join(f"{s}{n}" for s, n in sorted(atoms.items())) for name, atoms in names.items()}
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {"measured": {}}
    record: dict[str, Any] = {**circumstances(), "chemicals": version("chemicals"), "measured": before["measured"]}
    for by in options.split:
        with tempfile.TemporaryDirectory() as name:
            table, run = Path(name, f"chemicals-by-{by}.csv"), Path(name, "run")
            splits = write_table(table, names, (lambda one: one) if by == "name" else formulas.__getitem__)
            began, busy = time.monotonic(), os.getloadavg()[0]
            budget = [] if options.minutes is None else ["--minutes", f"{options.minutes:g}"]
            command = ["train", table.name, *budget, "--out", "run"]
            subprocess.run([sys.executable, "-m", "torchmultiset", *command], cwd=name, check=True)
            result = json.loads((run / "run.json").read_text())
            record["measured"][by] = {
                "command": f"multiset {' '.join(command)}",
                "examples": dict(Counter(splits.values())),
                "classes": len({symbol for atoms in names.values() for symbol in atoms}),
                "minutes": round((time.monotonic() - began) / 60, 1),
                "load": [round(busy, 1), round(os.getloadavg()[0], 1)],
                "test": result["test"],
                "verdict": result.get("verdict", ""),
                "leaderboard": json.loads((run / "leaderboard.json").read_text()),
                "ridge_on_ngrams": ridge_on_ngrams(names, splits),
                "majority_em": majority(names, splits),
            }
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
