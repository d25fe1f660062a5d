"""Reads the records of cells: finished runs with their numbers, and missing runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paper.cells import Cell, Position
from torchmultiset.data._npy import readable
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.record import read_json
from torchmultiset.training.checkpoint import EPOCHS
from torchmultiset.viz.intervals import Counts

__all__ = ["ENTROPY", "ENTROPY_TABLES", "RECORD", "WORTH", "CellRun", "has_entropy", "read_runs"]

RECORD, ENTROPY, WORTH = "record.json", "entropy.json", "worth.json"
_FORMAT = 1
ENTROPY_TABLES = ("entropy", "policy")
"""Tables with a figure of the policies' entropy at each step."""


@dataclass(frozen=True, eq=False)
class CellRun:
    """One method on one data set with one seed, done or still missing."""

    cell: str
    data_set: str
    method: str
    seed: int
    tables: Mapping[str, Position]
    command: str
    """Command that runs it alone."""
    path: Path | None = None
    """Its record; None if there is none yet."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Split -> `Report.to_json`; empty if it is missing."""
    data: str | None = None
    """Name of its data."""
    best_epoch: int | None = None
    minutes: float | None = None
    parameters: int | None = None

    @property
    def done(self) -> bool:
        """Whether there is a record."""
        return self.path is not None

    def epochs(self) -> list[dict[str, Any]]:
        """Read its learning curve, a dictionary for each epoch."""
        path = self._beside(EPOCHS)
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): {self._again}") from None

    def entropy(self) -> dict[str, Any] | None:
        """Read the policy's entropy at each step; None if it was not measured."""
        return self._if_there(ENTROPY)

    def worth(self) -> dict[str, Any] | None:
        """Read likelihood and calibration; empty if they cannot be computed, None if they were not measured."""
        return self._if_there(WORTH)

    def predictions(self, split: str) -> Counts:
        """Read predicted and true counts (N, C) of the examples of a split, in the order of the data set."""
        return read_counts(self._beside(COUNTS), split, fix=self._again)

    def has_predictions(self, split: str) -> bool:
        """Return whether the predictions for a split were kept; some older records lack those of validation data."""
        path = self._file(COUNTS)
        if path is None:
            return False
        with readable(path, self._again), np.load(path, allow_pickle=False) as arrays:
            return f"{split}_predicted" in arrays

    @property
    def _again(self) -> str:
        return f"run the cell again with: {self.command} --again"

    def _file(self, name: str) -> Path | None:
        """Return a file beside the record; None if there is none."""
        path = None if self.path is None else self.path.with_name(name)
        return path if path is not None and path.is_file() else None

    def _beside(self, name: str) -> Path:
        if self.path is None:
            raise ValueError(f"{self.cell} has not been run: {self.command}")
        path = self._file(name)
        if path is None:
            raise FileNotFoundError(f"{self.path.with_name(name)} does not exist: {self._again}")
        return path

    def _if_there(self, name: str) -> dict[str, Any] | None:
        path = self._file(name)
        return None if path is None else read_json(path, fix=self._again)


def has_entropy(tables: Iterable[str]) -> bool:
    """Return whether the entropy of a run of these tables is measured."""
    return not {*ENTROPY_TABLES}.isdisjoint(tables)


def read_runs(folder: str | Path, cells: Iterable[Cell] = ()) -> list[CellRun]:
    """Read all runs of a scale: those with a record, and the declared ones that have none.

    Args:
        folder: ``RESULTS/<scale>``.
        cells: Declared cells, in the order of the tables. Their tables and commands replace those of older records.

    Raises:
        ValueError: A record is damaged.
    """
    done = {run.cell: run for run in map(_read, sorted(Path(folder).glob("**/record.json")))}
    known = []
    for cell in cells:
        tables = dict[str, Position](cell.tables.items())
        missing = CellRun(cell.id, cell.data_set, cell.method, cell.seed, tables, cell.command)
        known.append(replace(done.pop(cell.id, missing), tables=tables, command=cell.command))
    return [*known, *done.values()]


def _read(path: Path) -> CellRun:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            raise ValueError(f"{path} has format {record['format']}, and this version reads {_FORMAT}")
        tables = {name: Position(**{**at, "place": tuple(at["place"])}) for name, at in record["tables"].items()}
        about = record["cell"], record["data_set"], record["method"], record["seed"], tables, record["command"], path
        run = record["run"]
        more = record["best_epoch"], run["minutes"], run.get("parameters")
        return CellRun(*about, record["metrics"], run["data"]["name"], *more)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the cell is run again") from None
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is not the record of an experiment ({error!r}): move it elsewhere") from None
