"""Cells: what the tables are made of. Each is a run config with the paper's numbers; one that tables share is one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast, get_args

from torchmultiset._checks import check_one_of
from torchmultiset.experiments.beyond import BEYOND, BEYOND_METHODS
from torchmultiset.experiments.paper import COLUMNS, METHODS, TABLES, DataSetName, Numbers, TableName
from torchmultiset.experiments.scales import SCALES, DataPlan, ScaleName
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.presets import PresetName, values_of
from torchmultiset.training.config import OptimConfig

_METHODS = {**METHODS, **BEYOND_METHODS}

__all__ = ["Cell", "Place", "all_cells", "choose", "find"]


@dataclass(frozen=True)
class Place:
    """Where a cell stands in a table."""

    row: str
    column: str
    place: tuple[int, int]
    """Number of the row and of the column."""
    split: str
    """What the table's numbers are measured on."""
    paper: Numbers | None

    def to_json(self) -> dict[str, Any]:
        """As a record has it; deviations only where there are some."""
        numbers = None if self.paper is None else {k: v for k, v in self.paper._asdict().items() if v is not None}
        told = {"row": self.row, "column": self.column, "place": list(self.place), "split": self.split}
        return {**told, "paper": numbers}


@dataclass(frozen=True)
class Cell:
    """One run of one method on one data set."""

    scale: ScaleName
    data_set: DataSetName
    method: str
    seed: int
    tables: Mapping[TableName, Place]
    """All that it belongs to."""

    @property
    def id(self) -> str:
        """A name that stays: also the path of its folders."""
        return f"{self.data_set}/{self.method}/seed-{self.seed}"

    @property
    def plan(self) -> DataPlan:
        """Its data."""
        return SCALES[self.scale].data[self.data_set]

    def config(self, data: str | Path = "data", *, mnist: str = "") -> RunConfig:
        """What is run, as `multiset train` would have it from the same preset, recipe and flags.

        Args:
            data: Folder of the data sets.
            mnist: Where the digits are, for cells that make new images of them; empty: as for `load_digits`.
        """
        preset = self.plan.preset or cast(PresetName, self.data_set)
        values = values_of(preset, SCALES[self.scale].recipe)
        values |= {"mnist": mnist} if mnist else {}
        values |= self.plan.values
        if "rates" in self.tables:
            values |= self.plan.short
        elif self.plan.rates:
            values |= {"lr": self.plan.rates[_loss_of(self.method)]}
        values |= {**_METHODS[self.method], "data": str(Path(data, self.plan.path))}
        parts = {"data": DataConfig, "model": ModelConfig, "objective": ObjectiveConfig, "optim": OptimConfig}
        made = {name: _part(part, values) for name, part in parts.items()}
        return RunConfig(**made, seed=self.seed)

    def to_json(self) -> dict[str, Any]:
        """What a record says of it before it is run."""
        return {
            "cell": self.id,
            "data_set": self.data_set,
            "method": self.method,
            "seed": self.seed,
            "tables": {name: place.to_json() for name, place in self.tables.items()},
            "command": self.command,
        }

    @property
    def seconds(self) -> float:
        """How long it takes, by what the scale assumes."""
        return self.plan.seconds(self.epochs)

    @property
    def epochs(self) -> int:
        """Number of training epochs."""
        epochs = self.config().optim.epochs
        assert epochs is not None
        return epochs

    @property
    def command(self) -> str:
        """What runs this cell and no other."""
        table = next(iter(self.tables))
        return shlex.join(["multiset", "experiment", table, "--scale", self.scale, "--only", self.id])


def all_cells(scale: ScaleName, tables: Iterable[TableName] = get_args(TableName)) -> list[Cell]:
    """The cells of some tables, each once, in the order of data sets, methods and seeds.

    A cell says of all tables that it belongs to, whichever are asked for.

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
    places: dict[tuple[DataSetName, str, int], dict[TableName, Place]] = {}
    for name, table in {**TABLES, **BEYOND}.items():
        for i, (method, row) in enumerate(table.rows.items()):
            for j, data_set in enumerate(table.columns):
                if row.only is not None and data_set not in row.only:
                    continue
                place = Place(row.title, COLUMNS[data_set], (i, j), table.split, row.numbers[j])
                for seed in range(_seeds(scale, name, data_set, method)):
                    places.setdefault((data_set, method, seed), {})[name] = place
    cells = [Cell(scale, *key, of) for key, of in places.items() if wanted & {*of}]
    return sorted(cells, key=lambda cell: ([*COLUMNS].index(cell.data_set), [*_METHODS].index(cell.method), cell.seed))


def choose(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Those whose id fits one of the patterns, or begins with one; all if there is no pattern.

    Raises:
        ValueError: A pattern fits none.

    Example:
        >>> [cell.id for cell in choose(all_cells("paper", ["table-3"]), ["*/multi/*", "mnist-multi-4/rl"])][:2]
        ['mnist-multi-4/multi/seed-0', 'mnist-multi-4/rl/seed-0']
    """
    for pattern in patterns:
        if not any(_fits(cell, pattern) for cell in cells):
            near = get_close_matches(pattern, [cell.id for cell in cells], n=3, cutoff=0)
            raise ValueError(f"no cell is called {pattern}; there are {len(cells)}, such as {', '.join(near)}")
    return [cell for cell in cells if not patterns or any(_fits(cell, pattern) for pattern in patterns)]


def find(scale: ScaleName, cell_id: str) -> Cell:
    """The cell of this name."""
    (found,) = (cell for cell in all_cells(scale) if cell.id == cell_id)
    return found


def _fits(cell: Cell, pattern: str) -> bool:
    return fnmatchcase(cell.id, pattern) or fnmatchcase(cell.id, f"{pattern.rstrip('/')}/*")


def _seeds(scale: ScaleName, table: TableName, data_set: DataSetName, method: str) -> int:
    """How many runs a cell has; none where the scale leaves it out."""
    if data_set not in SCALES[scale].data:
        return 0
    if data_set.startswith("coco"):
        return SCALES[scale].coco_seeds.get(table, 0)
    of_table = SCALES[scale].digit_seeds.get(table)
    return 0 if of_table is None else of_table.get(method, 1)


def _loss_of(method: str) -> str:
    """The method whose learning rate this one has: variations in rank and strategy have that of their loss."""
    return {"multi-stochastic": "multi", "multi-oracle": "multi", "multi-paper": "multi"}.get(
        method, "seq" if method.startswith("seq-") else method
    )


def _part(part: Any, values: Mapping[str, Any]) -> Any:
    return part(**{field.name: values[field.name] for field in fields(part) if field.name in values})
