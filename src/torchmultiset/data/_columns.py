"""Encoding of table columns as numbers, fitted on the training examples and reused for prediction."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from torchmultiset.data._parse import Problems, did_you_mean, show
from torchmultiset.data._records import Cell, Record, read_cell
from torchmultiset.data.tokens import TokenText

__all__ = ["TABLE", "Column", "check_columns", "encode", "encode_rows", "learn_columns", "table_records"]

TABLE = Path("the table")
"""Name of a table in memory in error messages."""

_HANDFUL = 100
"""Maximum number of different strings in a column of categories."""
_PATHS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".npy")


@dataclass(frozen=True)
class Column:
    """A numeric column, a column of categories that is one-hot encoded, or a column of free text.

    Example:
        >>> Column("colour", categories=("blue", "red")).encode(["red", "blue", "pink", None]).tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
        >>> Column("metres", mean=2.5).encode([1.0, None]).tolist()
        [[1.0], [2.5]]
    """

    name: str
    categories: tuple[str, ...] = ()
    """Sorted categories of the training examples; empty for other columns."""
    mean: float = 0.0
    """Mean over the training examples, which replaces empty cells of a numeric column."""
    empty: int = 0
    """Number of empty cells in the file that the column was fitted on."""
    text: bool = False
    """Whether the column is free text, which an encoder reads byte by byte."""
    different: int = 0
    """Number of different texts of the training examples; 0 if the column is named ``text``."""

    def encode(self, cells: Sequence[Cell]) -> Float32[np.ndarray, "n d"]:
        """Return numbers unchanged, categories one-hot encoded (unknown ones are zeros), and text as 0 columns."""
        if self.text:
            return np.zeros((len(cells), 0), dtype=np.float32)
        if self.categories:
            return np.array([[cell == name for name in self.categories] for cell in cells], dtype=np.float32)
        return np.array([[self.mean if cell is None else cell] for cell in cells], dtype=np.float32)


def learn_columns(records: Sequence[Record], train: Bool[np.ndarray, " n"], problems: Problems) -> tuple[Column, ...]:
    """Fit the columns of a table to the training examples, the records of the mask `train` (N,).

    The column ``text`` is free text. Any other column is numeric if any of its cells is a number. Otherwise it has
    categories, or free text if there are more than 100 different strings or more than half as many as lines.
    """
    columns = []
    for name in records[0].cells:
        cells = [record.cells.get(name) for record in records]
        known = [cell for cell, learned in zip(cells, train, strict=True) if learned and cell is not None]
        texts = {cell for cell in known if isinstance(cell, str)}
        column = Column(name, empty=cells.count(None))
        if name == "text":
            column = replace(column, text=True)
        elif not known:
            problems.add(0, f"the column {name!r} is empty in all training examples: fill it in, or remove it")
        elif any(isinstance(cell, float) or _with_point(cell) for cell in cells if cell is not None):
            _check_numbers(name, records, problems)
            column = replace(column, mean=float(np.mean([cell for cell in known if isinstance(cell, float)] or 0)))
        else:
            many = len(texts) > max(2, min(_HANDFUL, len(known) / 2))
            if many and all(text.lower().endswith(_PATHS) for text in texts):
                fix = "name it 'image' or 'array', or '#...' to ignore it"
                found = f"{len(texts)} different values in {len(known)} lines"
                problems.add(0, f"the column {name!r} has {found}, which look like paths: {fix}")
            elif many:
                column = replace(column, text=True, different=len(texts))
            else:
                column = replace(column, categories=tuple(sorted(texts)))
        columns.append(column)
    return tuple(columns)


def check_columns(columns: Sequence[Column], records: Sequence[Record], problems: Problems) -> None:
    """Compare a table with the columns seen in training, and warn about unknown categories."""
    found, wanted = records[0].cells, [column.name for column in columns]
    missing = [name for name in wanted if name not in found]
    for name in missing:
        problems.add(0, f"the column {name!r}, used in training, is missing: add it")
    for name in found:
        if name not in wanted:
            fix = "remove it, or start its name with '#' to ignore it"
            problems.add(0, f"the column {name!r} was not used in training{did_you_mean(name, missing)}: {fix}")
    for column in columns:
        if column.text:
            continue
        if not column.categories:
            _check_numbers(column.name, records, problems)
            continue
        cells = [record.cells.get(column.name) for record in records]
        others = [cell for cell in cells if cell is not None and cell not in column.categories]
        if others and column.name in found:
            warnings.warn(
                f"{len(others)} of {len(cells)} cells of {column.name!r} have a category not seen in training, such as"
                f" {show(others[0])}; they are treated as empty",
                stacklevel=3,
            )


def encode(columns: Sequence[Column], records: Sequence[Record]) -> Float32[np.ndarray, "n d"] | TokenText:
    """Encode all columns and concatenate them (N, D); texts of several columns are joined by line breaks."""
    numbers = np.concatenate([one.encode([record.cells[one.name] for record in records]) for one in columns], 1)
    texts = [column.name for column in columns if column.text]
    if not texts:
        return numbers
    return TokenText(["\n".join(_as_text(record.cells[name]) for name in texts) for record in records], numbers)


def _as_text(cell: Cell) -> str:
    if isinstance(cell, float):  # a number in a column that was text in training
        return str(int(cell)) if cell.is_integer() else str(cell)
    return cell or ""


def encode_rows(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Float32[np.ndarray, "n d"] | TokenText:
    """Encode rows of a table in memory, which must have all columns seen in training; other columns are ignored.

    None and NaN are empty cells.

    Example:
        >>> encode_rows([Column("metres", mean=2.5)], [{"metres": 1, "note": "a"}, {"metres": float("nan")}]).tolist()
        [[1.0], [2.5]]
    """
    missing = [column.name for column in columns if any(column.name not in row for row in rows)]
    if missing:
        names = [column.name for column in columns]
        raise ValueError(
            f"this model reads the columns {', '.join(names)}, but the table has no {' and no '.join(missing)}"
        )
    records = table_records([{column.name: row[column.name] for column in columns} for row in rows])
    problems = Problems(TABLE)
    check_columns(columns, records, problems)
    problems.stop()
    return encode(columns, records)


def table_records(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Return the rows of a table in memory as records without labels."""
    problems = Problems(TABLE)
    records = []
    for line, row in enumerate(rows, start=1):
        cells = {name: problems.attempt(line, read_cell, _plain(cell), name) for name, cell in row.items()}
        records.append(Record(line, "features", labels=(), id=f"line {line}", cells=cells))
    problems.stop()
    return records


def _plain(cell: Any) -> Any:
    """Convert a cell to a Python object: NumPy numbers to Python numbers, missing values to None."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    return None if cell is None or str(cell) in ("nan", "NaT", "<NA>") else cell


def _check_numbers(name: str, records: Sequence[Record], problems: Problems) -> None:
    wrong = [(record.line, cell) for record in records if isinstance(cell := record.cells.get(name), str)]
    if wrong:
        line, cell = wrong[0]
        more = f" ({len(wrong)} lines have no number there)" if len(wrong) > 1 else ""
        paths = "name a column of text 'text', one of paths 'image' or 'array', and one to ignore '#...'"
        fix = f"write {_with_point(cell)}" if _with_point(cell) else f"leave it empty if unknown; {paths}"
        problems.add(line, f"{name!r} must be a number such as 0.5, but is {show(cell)}{more}: {fix}")


def _with_point(text: str) -> str:
    """Return the text with decimal commas replaced by points if that is a number, else an empty string."""
    number = text.replace(",", ".")
    try:
        float(number)
    except ValueError:
        return ""
    return number
