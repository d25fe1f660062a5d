"""Records of experiments, read back: what was run, what came of it, and what is still missing.

::

    RESULTS/<scale>/<data set>/<method>/seed-<n>/
      record.json        what it is, its place in the paper's tables, the numbers
      epochs.jsonl       a line for each epoch
      predictions.npz    predicted and true counts of each example
      entropy.json       for the entropy figures
      worth.json         how probable it found the truth, and its predictions
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from torchmultiset.data._npy import readable

__all__ = ["ENTROPY_TABLES", "Place", "Run", "has_entropy", "read_runs", "run_of"]

_FORMAT = 1
ENTROPY_TABLES = ("entropy", "policy")
"""Those that have a figure of how sure the policies are at each step."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in one of the tables."""

    row: str
    column: str
    place: tuple[int, int]
    """Number of the row and of the column."""
    split: str
    """What the table's numbers are measured on."""
    paper: Mapping[str, float] | None
    """``em`` and ``f1``, with ``em_std`` and ``f1_std`` where the paper has them; None if it has no numbers."""


@dataclass(frozen=True, eq=False)
class Run:
    """One method on one data set with one seed, done or still to be done."""

    cell: str
    data_set: str
    method: str
    seed: int
    tables: Mapping[str, Place]
    command: str
    """What runs it, and nothing else."""
    path: Path | None
    """Its record; None if there is none yet."""
    metrics: Mapping[str, Any]
    """Split -> `Report.to_json`; empty if it is missing."""
    data: str | None = None
    """Name of the data that it really learned from."""
    best_epoch: int | None = None
    minutes: float | None = None
    parameters: int | None = None

    @property
    def done(self) -> bool:
        """Whether there is a record."""
        return self.path is not None

    def epochs(self) -> list[dict[str, Any]]:
        """How it learned, epoch by epoch."""
        path = self._beside("epochs.jsonl")
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise self._damaged(path, error) from None

    def entropy(self) -> dict[str, Any] | None:
        """How sure the policy is at each step; None if it was not asked."""
        return self._if_there("entropy.json")

    def worth(self) -> dict[str, Any] | None:
        """How probable it found the truth, and its predictions; empty if it does not know, None if it was not asked."""
        return self._if_there("worth.json")

    def predictions(self, split: str) -> tuple[UInt8[np.ndarray, "n c"], UInt8[np.ndarray, "n c"]]:
        """Predicted and true counts (N, C) of the examples of a split, in the order of the data set."""
        path = self._beside("predictions.npz")
        again = f"run the cell again with: {self.command} --again"
        with readable(path, again), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays[f"{split}_predicted"], arrays[f"{split}_true"]

    def _beside(self, name: str) -> Path:
        if self.path is None:
            raise ValueError(f"{self.cell} has not been run: {self.command}")
        path = self.path.with_name(name)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there: run the cell again with: {self.command} --again")
        return path

    def _if_there(self, name: str) -> dict[str, Any] | None:
        path = None if self.path is None else self.path.with_name(name)
        if path is None or not path.is_file():
            return None
        try:
            told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self._damaged(path, error) from None
        return told

    def _damaged(self, path: Path, error: Exception) -> ValueError:
        return ValueError(f"{path} is damaged ({error}): run the cell again with: {self.command} --again")


def has_entropy(tables: Iterable[str]) -> bool:
    """Whether a run of these tables says how sure it is at each step."""
    return not {*ENTROPY_TABLES}.isdisjoint(tables)


def run_of(told: Mapping[str, Any], path: Path | None = None) -> Run:
    """A run from what its record says; one that is missing has only the first part of a record.

    Args:
        told: ``cell``, ``data_set``, ``method``, ``seed``, ``tables`` and ``command``; of a record also the rest.
        path: The record.
    """
    tables = {
        name: Place(at["row"], at["column"], (at["place"][0], at["place"][1]), at["split"], at["paper"])
        for name, at in told["tables"].items()
    }
    about = (told["cell"], told["data_set"], told["method"], told["seed"], tables, told["command"], path)
    if path is None:
        return Run(*about, metrics={})
    run = told["run"]
    return Run(*about, told["metrics"], run["data"]["name"], told["best_epoch"], run["minutes"], run.get("parameters"))


def read_runs(folder: str | Path, declared: Iterable[Mapping[str, Any]] = ()) -> list[Run]:
    """All runs of a scale: those that have a record, and those that are declared and have none.

    Args:
        folder: ``RESULTS/<scale>``.
        declared: What there should be, in the order to show it in, as `run_of` takes it.

    Raises:
        ValueError: A record is damaged.
    """
    folder = Path(folder)
    done = {run.cell: run for run in map(_read, sorted(folder.glob("**/record.json")))}
    wanted = {told["cell"]: told for told in declared}
    # Tables that were thought of later have the cells of earlier ones: what is declared says where they stand.
    known = [
        replace(done.pop(cell), tables=run_of(told).tables) if cell in done else run_of(told)
        for cell, told in wanted.items()
    ]
    return [*known, *done.values()]


def _read(path: Path) -> Run:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["format"] != _FORMAT:
            raise ValueError(f"{path} has format {told['format']}, and this version reads {_FORMAT}")
        return run_of(told, path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the cell is run again") from None
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is not the record of an experiment ({error!r}): move it elsewhere") from None
