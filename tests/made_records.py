"""Synthetic records of experiments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from paper.cells import Cell, Position
from paper.records import has_entropy

CLASSES = ["cat", "dog", "<b>$x$|_y_"]


def place(table: str, row: str, at: Sequence[int], paper: dict[str, float] | None, **different: Any) -> dict[str, Any]:
    about = {"row": row, "column": "MNIST Multi (4)", "place": list(at), "split": "test", "paper": paper}
    return {table: about | different}


def true_counts(n: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 3, size=(n, len(CLASSES))).astype(np.uint8)


def declared(cell: str, tables: dict[str, Any]) -> Cell:
    """A declared cell of the tables."""
    data_set, method, seed = cell.split("/")
    at = {name: Position(**{**place, "place": tuple(place["place"])}) for name, place in tables.items()}
    return Cell("smoke", data_set, method, int(seed.removeprefix("seed-")), at)


def about(cell: str, tables: dict[str, Any]) -> dict[str, Any]:
    """Fields of a cell's record that do not depend on its results."""
    data_set, method, seed = cell.split("/")
    number = int(seed.removeprefix("seed-"))
    command = f"an older command for {cell}"
    names = {"cell": cell, "data_set": data_set, "method": method, "seed": number}
    return {**names, "tables": tables, "command": command}


def write_record(
    folder: Path,
    cell: str,
    tables: dict[str, Any],
    right: Sequence[bool],
    *,
    true: np.ndarray | None = None,
    f1: float = 0.75,
    class_f1: float | None = 0.625,
    constant: dict[str, Any] | None = None,
    epochs: Sequence[float] = (0.25, 0.5),
    **different: Any,
) -> Path:
    """Write a record and its other files; `right` marks the correctly predicted examples of test and validation."""
    true = true_counts(len(right)) if true is None else true
    predicted = true.copy()
    predicted[~np.array(right), 0] += 1
    scores = {"examples": len(right), "exact_match": sum(right) / len(right), "interval": [0.125, 0.875]}
    scores |= {"precision": 0.5, "recall": 0.5, "f1": f1}
    names = CLASSES if true.shape[1] == len(CLASSES) else map(str, range(true.shape[1]))
    classes = [
        {"labels": 10, "predicted": 8, "precision": 0.75, "recall": 0.6, "f1": 0.66},
        {"labels": 4, "predicted": 0, "precision": None, "recall": 0.0, "f1": 0.0},
        {"labels": 0, "predicted": 2, "precision": 0.0, "recall": None, "f1": 0.0},
    ]
    metrics = {
        "overall": scores,
        "class_f1": class_f1,
        "sizes": {"1": scores | {"examples": 3}, "2": scores | {"examples": 4}},
        "classes": dict(zip(names, cycle(classes))),
        "constant": constant
        or {"multiset": {"cat": 2}, "scores": scores | {"exact_match": 0.0625, "f1": 0.375}, "class_f1": 0.25},
    }
    record = {
        "format": 1,
        "scale": "smoke",
        **about(cell, tables),
        "config": {},
        "weights_sha256": "0",
        "best_epoch": 2,
        "metrics": {"test": metrics | {"split": "test"}, "validation": metrics | {"split": "validation"}},
        "run": {"minutes": 1.5, "parameters": 87_083, "data": {"name": "some-data", "sha256": "0"}},
    }
    at = folder / cell
    at.mkdir(parents=True)
    lines = [
        {"epoch": i, "loss": 1.0, "validation_em": em, "validation_f1": 0.5, "images_per_second": 100.0 * i}
        for i, em in enumerate(epochs, start=1)
    ]
    (at / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arrays = {
        f"{split}_{name}": a
        for split in ("test", "validation")
        for name, a in (("predicted", predicted), ("true", true))
    }
    np.savez_compressed(at / "predictions.npz", classes=np.array(CLASSES), **arrays)
    if has_entropy(tables):
        (at / "entropy.json").write_text(json.dumps(entropy()))
    (at / "record.json").write_text(json.dumps(record | different))
    return at / "record.json"


def entropy() -> dict[str, Any]:
    curve = {"examples": [4, 4], "mean": [1.0, 0.5], "std": [0.1, 0.1], "quantiles": [[0.1, 0.2, 1.0, 1.2, 1.4]] * 2}
    both = {"instances": curve, "classes": curve}
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    named = {"split": "validation", "unit": "nats", "examples": 4, "levels": levels}
    return {**named, "policy": curve, "oracle": both, "oracle_on_policy_path": both}
