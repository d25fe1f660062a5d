"""Cells of the tables: each is a run config with the paper's numbers; a cell that tables share is run once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast, get_args

from paper.beyond import BEYOND, BEYOND_METHODS, SHORT
from paper.scales import SCALES, DataSet, ScaleName
from paper.tables import COLUMNS, METHODS, TABLES, DataSetName, TableName
from torchmultiset._checks import check_one_of
from torchmultiset.data.mnist_multi import Fresh
from torchmultiset.pipeline.config import RunConfig, config_of
from torchmultiset.pipeline.presets import PresetName, values_of

_METHODS = {**METHODS, **BEYOND_METHODS}

__all__ = ["Cell", "Position", "all_cells", "choose", "describe", "find"]


@dataclass(frozen=True)
class Position:
    """Position of a cell in a table."""

    row: str
    column: str
    place: tuple[int, int]
    """Numbers of the row and of the column."""
    split: str
    """Split on which the table's numbers are measured."""
    paper: Mapping[str, float] | None
    """``em`` and ``f1``, with ``em_std`` and ``f1_std`` where the paper has them; None if it has no numbers."""


@dataclass(frozen=True)
class Cell:
    """One run of one method on one data set."""

    scale: ScaleName
    data_set: DataSetName
    method: str
    seed: int
    tables: Mapping[TableName, Position]
    """Position in each table that contains the cell."""

    @property
    def id(self) -> str:
        """Permanent name, also the path of its folders."""
        return f"{self.data_set}/{self.method}/seed-{self.seed}"

    @property
    def data(self) -> DataSet:
        """Its data set at this scale."""
        return SCALES[self.scale].data[self.data_set]

    @property
    def fresh(self) -> Fresh:
        """New training images in each epoch, as for `mnist_multi.build`."""
        return cast(Fresh, _METHODS[self.method].get("fresh", "none"))

    @property
    def short(self) -> bool:
        """Whether it is a short run, which only chooses settings."""
        return not {*SHORT}.isdisjoint(self.tables)

    @property
    def path(self) -> str:
        """Path of its data set in the folder of the data."""
        return self.data.path if self.fresh == "none" else f"{self.data.path}-{self.fresh}"

    def config(self, folder: str | Path = "data") -> RunConfig:
        """Return the config that `multiset train` would use with the same preset, recipe and flags.

        Args:
            folder: Folder of the data sets.
        """
        values = values_of(self.data.preset or cast(PresetName, self.data_set), SCALES[self.scale].recipe)
        values |= self.data.values
        if self.short:
            values |= self.data.short
        elif _loss_of(self.method) in self.data.rates:
            values |= {"lr": self.data.rates[_loss_of(self.method)]}
        values |= {**_METHODS[self.method], "data": str(Path(folder, self.path)), "seed": self.seed}
        return config_of({name: value for name, value in values.items() if name != "fresh"})

    @property
    def seconds(self) -> float | None:
        """Expected duration; None if unknown."""
        return self.data.seconds(self.epochs)

    @property
    def epochs(self) -> int:
        """Number of training epochs."""
        epochs = self.config().optim.epochs
        assert epochs is not None
        return epochs

    @property
    def command(self) -> str:
        """Command that runs this cell alone."""
        table = next(iter(self.tables))
        return shlex.join(["python", "-m", "paper", "run", table, "--scale", self.scale, "--only", self.id])


def all_cells(scale: ScaleName, tables: Iterable[TableName] = get_args(TableName)) -> list[Cell]:
    """Return the cells of some tables, each once, in the order of data sets, methods and seeds.

    A cell has its positions in all tables, whichever are requested.

    Example:
        >>> [cell.id for cell in all_cells("paper", ["table-1"])][:2]
        ['mnist-multi-4/seq/seed-0', 'mnist-multi-4/seq-random-per-batch/seed-0']
        >>> [*all_cells("small", ["table-2"])[0].tables]
        ['table-2', 'table-3', 'beyond']
    """
    check_one_of("scale", scale, get_args(ScaleName))
    wanted = {*tables}
    for name in wanted:
        check_one_of("table", name, get_args(TableName))
    positions: dict[tuple[DataSetName, str, int], dict[TableName, Position]] = {}
    for name, table in {**TABLES, **BEYOND}.items():
        for i, (method, row) in enumerate(table.rows.items()):
            for j, data_set in enumerate(table.columns):
                if row.only is not None and data_set not in row.only:
                    continue
                printed = row.printed[j]._asdict() if row.printed else None
                paper = printed and {key: value for key, value in printed.items() if value is not None}
                position = Position(row.title, COLUMNS[data_set], (i, j), table.split, paper)
                for seed in range(_seeds(scale, name, data_set, method)):
                    positions.setdefault((data_set, method, seed), {})[name] = position
    cells = [Cell(scale, *key, of) for key, of in positions.items() if wanted & {*of}]
    return sorted(cells, key=lambda cell: ([*COLUMNS].index(cell.data_set), [*_METHODS].index(cell.method), cell.seed))


def choose(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose id matches one of the patterns, or begins with one; all if there is no pattern.

    Raises:
        ValueError: A pattern matches none.

    Example:
        >>> [cell.id for cell in choose(all_cells("paper", ["table-3"]), ["*/multi/*", "mnist-multi-4/rl"])][:2]
        ['mnist-multi-4/multi/seed-0', 'mnist-multi-4/rl/seed-0']
    """
    for pattern in patterns:
        if not any(_matches(cell, pattern) for cell in cells):
            near = get_close_matches(pattern, [cell.id for cell in cells], n=3, cutoff=0)
            raise ValueError(f"no cell matches {pattern}; there are {len(cells)}, such as {', '.join(near)}")
    return [cell for cell in cells if not patterns or any(_matches(cell, pattern) for pattern in patterns)]


def find(scale: ScaleName, cell_id: str) -> Cell:
    """Return the cell with this id."""
    (found,) = (cell for cell in all_cells(scale) if cell.id == cell_id)
    return found


def _matches(cell: Cell, pattern: str) -> bool:
    return fnmatchcase(cell.id, pattern) or fnmatchcase(cell.id, f"{pattern.rstrip('/')}/*")


def _seeds(scale: ScaleName, table: TableName, data_set: DataSetName, method: str) -> int:
    """Return the number of seeds of a cell; 0 where the scale leaves it out."""
    if data_set not in SCALES[scale].data:
        return 0
    if data_set.startswith("coco"):
        return SCALES[scale].coco_seeds.get(table, 0)
    of_table = SCALES[scale].digit_seeds.get(table)
    return 0 if of_table is None else of_table.get(method, 1)


def _loss_of(method: str) -> str:
    """Return the method whose learning rate this one shares: for other ranks and strategies, that of the loss."""
    return {"multi-stochastic": "multi", "multi-oracle": "multi", "multi-paper": "multi"}.get(
        method, "seq" if method.startswith("seq-") else method
    )


def describe(cell: Cell) -> dict[str, Any]:
    """Return the first part of a cell's record, which is known before it is run."""
    return {
        "cell": cell.id,
        "data_set": cell.data_set,
        "method": cell.method,
        "seed": cell.seed,
        "tables": {name: {**asdict(at), "place": [*at.place]} for name, at in cell.tables.items()},
        "command": cell.command,
    }
