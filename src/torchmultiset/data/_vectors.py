"""Sets and sequences of vectors in a manifest: detection, validation and reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from torchmultiset.data._arrays import read_rows
from torchmultiset.data._npy import open_array
from torchmultiset.data._parse import Problems
from torchmultiset.data._records import Record
from torchmultiset.data.tokens import TokenRows

__all__ = ["VECTORS", "recognise_vectors", "token_rows", "wrong_vectors"]

VECTORS = ("set", "sequence", "either")
"""Kinds of records that are sets or sequences of vectors."""


def recognise_vectors(records: list[Record], folder: Path, *, always: bool = False) -> list[Record]:
    """Mark records of arrays (N, D) as sets or sequences if N differs between them but D does not.

    Arrays of one shape are images, unless `always`.
    """
    if always:
        return [replace(record, kind="either") for record in records]
    shapes = set()
    for record in records:
        try:
            shapes.add(open_array(folder / record.path, "").shape)
        except (OSError, ValueError):
            continue  # reported when it is read
    differ = len(shapes) > 1 and all(len(shape) == 2 for shape in shapes) and len({shape[1] for shape in shapes}) == 1
    return [replace(record, kind="either") for record in records] if differ else records


def wrong_vectors(records: Sequence[Record], folder: Path, problems: Problems) -> dict[int, str]:
    """Return the unreadable sets and sequences by line; record vectors of inconsistent length as problems."""
    broken: dict[int, str] = {}
    first: tuple[int, int] | None = None
    for record in records:
        try:
            rows = _rows(record, folder)
        except (OSError, ValueError) as error:
            broken[record.line] = str(error)
            continue
        if not rows.shape[1]:
            continue  # an empty list of vectors
        line, width = first = first or (record.line, rows.shape[1])
        if rows.shape[1] != width:
            found = f"the vectors have {rows.shape[1]} numbers, but those on line {line} have {width}"
            problems.add(record.line, f"{found}: use one length")
    if first is None and not broken:
        problems.add(0, "all sets and sequences are empty: add vectors")
    return broken


def token_rows(records: Sequence[Record], folder: Path) -> TokenRows:
    """Read the sets or sequences of all records."""
    rows = [_rows(record, folder) for record in records]
    width = max((each.shape[1] for each in rows), default=1) or 1
    return TokenRows([each if each.shape[1] else np.zeros((0, width), dtype=np.float32) for each in rows])


def _rows(record: Record, folder: Path) -> Float32[np.ndarray, "n d"]:
    return read_rows(folder / record.path) if record.rows is None else record.rows
