"""Inputs in memory: lists of strings, lists of arrays, and tables with text or categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from torchmultiset._checks import check
from torchmultiset.data._columns import TABLE, Column, encode, encode_rows, learn_columns, table_records
from torchmultiset.data._parse import Problems
from torchmultiset.data.examples import Inputs
from torchmultiset.data.tokens import TokenKind, TokenRows, TokenText

__all__ = ["InMemory", "read_in_memory", "table_rows"]


class InMemory(NamedTuple):
    """Inputs that were read from Python objects."""

    inputs: Inputs
    tokens: TokenKind | None
    """Kind of inputs of varying length; None for a table without free text."""
    columns: tuple[Column, ...]
    """Columns of a table; empty for other inputs."""


def read_in_memory(x: Any, *, columns: Sequence[Column] = ()) -> InMemory | None:
    """Read strings, arrays of different length, or a DataFrame with text or categories.

    Args:
        x: A list, Series or array of strings; a list of arrays (N, D); or a DataFrame, some of whose columns are not
            numeric.
        columns: Columns that a model was trained on, to encode a table in the same way; if empty, they are fitted.

    Returns:
        The inputs; None for anything else, such as a table of numbers.

    Raises:
        ValueError: The objects are of different kinds, or a column cannot be read.

    Example:
        >>> read_in_memory(["ethanol", ""]).tokens
        'text'
        >>> read_in_memory([[1, 2], [3, 4]]) is None
        True
    """
    table = table_rows(x)
    if table is not None:
        return _read_table(table, columns)
    if isinstance(x, str) or not hasattr(x, "__len__") or getattr(x, "ndim", 1) != 1:
        return None
    rows = [*x]
    texts = [isinstance(row, str) for row in rows]
    if any(texts):
        check(all(texts), "X", "strings only, or no strings", rows[texts.index(False)] if not all(texts) else "")
        return InMemory(TokenText(rows), "text", ())
    vectors = [_vectors(row, i) for i, row in enumerate(rows) if _is_matrix(row)]
    if not vectors:
        return None
    check(len(vectors) == len(rows), "X", "arrays (N, D) only, or none of them", f"{len(rows)} of several kinds")
    return InMemory(TokenRows(vectors), "either", ())


def table_rows(x: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a DataFrame of pandas or Polars; None for anything else."""
    if not (hasattr(x, "columns") and hasattr(x, "to_dict")):
        return None
    rows = x.to_dicts() if hasattr(x, "to_dicts") else x.to_dict("records")
    return [{str(name): cell for name, cell in row.items()} for row in rows]


def _read_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> InMemory | None:
    if columns:
        inputs = encode_rows(columns, rows)
    else:
        if not any(isinstance(cell, str) for row in rows for cell in row.values()):
            return None
        records, problems = table_records(rows), Problems(TABLE)
        columns = learn_columns(records, np.ones(len(records), dtype=bool), problems)
        problems.stop()
        inputs = encode(columns, records)
    return InMemory(inputs, "text" if isinstance(inputs, TokenText) else None, tuple(columns))


def _is_matrix(row: Any) -> bool:
    """Return whether an object is an array (N, D), or a list of lists."""
    if hasattr(row, "ndim"):
        return bool(row.ndim == 2)
    return isinstance(row, list | tuple) and (not row or isinstance(row[0], list | tuple | np.ndarray))


def _vectors(row: Any, i: int) -> Shaped[np.ndarray, "n d"]:
    try:
        numbers = np.asarray(row, dtype=np.float32)
    except (ValueError, TypeError):
        numbers = np.empty(0, dtype=np.float32)
    if numbers.size == 0 and len(row) == 0:
        return np.zeros((0, 0), dtype=np.float32)
    check(numbers.ndim == 2 and bool(np.isfinite(numbers).all()), f"X[{i}]", "an array (N, D) of finite numbers", row)
    return numbers
