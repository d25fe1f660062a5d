"""Conversion of the fields of each manifest line to a validated `Record`, collecting all problems.

A function that reads a field raises a ValueError that describes the fix; the caller adds the line number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

from torchmultiset.data._parse import Fields, Problems, did_you_mean, read_count, read_fields, show
from torchmultiset.data._splits import SPLITS

__all__ = ["Cell", "Record", "make_record", "read_records"]

Cell: TypeAlias = float | str | None
"""Number, text, or None for an empty cell."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Record:
    """One line of a manifest, validated independently of the others."""

    line: int
    kind: str
    """``"image"``, ``"array"``, ``"features"`` (also text), ``"set"``, ``"sequence"`` or ``"either"``."""
    path: str
    """Path of the image, array, set or sequence as written; empty for what the line itself contains."""
    features: Float32[np.ndarray, " d"]
    """Unnamed features (D,); empty for named features and other inputs."""
    cells: dict[str, Cell]
    """Named features as written, by column; empty for other inputs."""
    rows: Float32[np.ndarray, "n w"] | None
    """Vectors (N, D) of a set or sequence that the line contains; None for other inputs."""
    labels: tuple[str, ...]
    id: str
    split: str | None
    boxes: tuple[tuple[float, ...], ...] | None
    areas: tuple[float, ...] | None


def read_records(path: Path, problems: Problems, *, labelled: bool = True) -> list[Record]:
    """Read the valid lines of a .jsonl or .csv file and collect the problems of the others.

    Args:
        path: The file.
        problems: Collects the problems.
        labelled: Whether every line must have labels; if False, missing labels mean an empty multiset.
    """
    instead: Fields = {} if labelled else {"labels": []}
    records = [
        _record(line, fields if "counts" in fields else {**instead, **fields}, problems)
        for line, fields in read_fields(path, problems, labelled=labelled)
    ]
    return [record for record in records if record is not None]


def make_record(line: int, cells: Mapping[str, Any], problems: Problems) -> Record:
    """Return a row of a table in memory as a record without labels; a wrong cell is a problem, and becomes empty."""
    read = {name: problems.attempt(line, _cell, value, name) for name, value in cells.items()}
    return Record(line, "features", "", np.empty(0, dtype=np.float32), read, None, (), f"line {line}", None, None, None)


def _record(line: int, fields: Fields, problems: Problems) -> Record | None:
    fields = {key: value for key, value in fields.items() if value is not None and not key.startswith("#")}
    before = len(problems)
    problems.attempt(line, _check_keys, fields)
    values: Fields = {name: problems.attempt(line, read, fields) for name, read in _READ.items()}
    if len(problems) > before:
        return None
    values["id"] = values["id"] or values["path"] or f"line {line}"
    return Record(line=line, **values)


def _check_keys(fields: Fields) -> None:
    known = (*_READ, "text", *_FILES, "counts")
    for key in fields:
        if key not in known or key in ("kind", "path", "cells", "rows"):
            fix = "rename or remove it, or start it with '#' to ignore it"
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, known)}: {fix}")


def _kind(fields: Fields) -> str:
    kinds = [kind for kind in (*_FILES, "features", "text") if kind in fields]
    if kinds == ["features", "text"] or kinds == ["text"]:
        return "features"
    if len(kinds) != 1:
        found = "has " + (" and ".join(kinds) or "none")
        one = "'text', 'features', 'image', 'array', 'set' or 'sequence'"
        raise ValueError(f"each line must have one input, {one} (or 'text' and 'features'), but this one {found}")
    return "either" if kinds == ["features"] and _is_nested(fields["features"]) else kinds[0]


def _path(fields: Fields) -> str:
    key = next((key for key in _FILES if key in fields), "")
    if not key or (key in ("set", "sequence") and not isinstance(fields[key], str)):
        return ""
    return PurePath(_text(fields[key], f"{key!r}")).as_posix()


def _features(fields: Fields) -> Float32[np.ndarray, " d"]:
    values = fields.get("features")
    if values is None or isinstance(values, dict) or _is_nested(values) or "text" in fields:
        return np.empty(0, dtype=np.float32)
    if not isinstance(values, list) or not values:
        raise ValueError(f"'features' must be a list of numbers, but is {show(values)}")
    return np.array([_real(value, "feature", i) for i, value in enumerate(values, start=1)], dtype=np.float32)


def _cells(fields: Fields) -> dict[str, Cell]:
    values, text = fields.get("features"), fields.get("text")
    if "text" in fields:
        if not isinstance(text, str):
            raise ValueError(f"'text' must be a string, but is {show(text)}")
        if isinstance(values, list):
            values = {f"feature {i}": value for i, value in enumerate(values, start=1)}
        values = {**(values or {}), "text": text}
    if not isinstance(values, dict):
        return {}
    if not values:
        raise ValueError("'features' must have at least one entry, but is {}")
    return {name: _cell(value, name) for name, value in values.items()}


def _is_nested(value: object) -> bool:
    """Return whether a value is a list of lists."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _rows(fields: Fields) -> Float32[np.ndarray, "n d"] | None:
    key = next((key for key in ("set", "sequence", "features") if key in fields), "")
    value = fields.get(key)
    if not key or isinstance(value, str) or (key == "features" and not _is_nested(value)):
        return None
    if not isinstance(value, list) or not all(isinstance(row, list) and row for row in value):
        raise ValueError(
            f"{key!r} must look like [[0.5, 2], [1, 3]] or be the path of an .npy file, but is {show(value)}"
        )
    widths = {len(row) for row in value}
    if len(widths) > 1:
        raise ValueError(f"{key!r} must have vectors of one length, but has some of {_listed(sorted(widths))} numbers")
    rows = [[_real(number, f"vector {i} of {key!r}") for number in row] for i, row in enumerate(value, start=1)]
    return np.array(rows, dtype=np.float32).reshape(len(rows), max(widths, default=0))


def _listed(numbers: list[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _cell(value: object, name: str) -> Cell:
    if isinstance(value, str):
        return value.strip() or None
    return None if value is None else _real(value, f"{name!r}")


def _labels(fields: Fields) -> tuple[str, ...]:
    if ("labels" in fields) == ("counts" in fields):
        found = "both 'labels' and 'counts' are present: keep one"
        raise ValueError(found if "labels" in fields else "'labels' is missing: for an empty multiset write []")
    key = "labels" if "labels" in fields else "counts"
    value = fields[key]
    if isinstance(value, dict):
        names = [label for name, count in value.items() for label in [name] * read_count(count, name)]
    elif isinstance(value, list) and key == "labels":
        names = value
    else:
        either = '["cat", "cat"] or {"cat": 2}' if key == "labels" else '{"cat": 2}'
        raise ValueError(f"{key!r} must look like {either}, but is {show(value)}")
    return tuple(_text(name, "a label") for name in names)


def _id(fields: Fields) -> str | None:
    return _text(fields["id"], "'id'") if "id" in fields else None


def _split(fields: Fields) -> str | None:
    if "split" not in fields:
        return None
    split = _text(fields["split"], "'split'").casefold()
    split = "validation" if split == "val" else split
    if split not in SPLITS:
        raise ValueError(f"'split' must be one of {', '.join(SPLITS)}, but is {show(fields['split'])}")
    return split


def _boxes(fields: Fields) -> tuple[tuple[float, ...], ...] | None:
    if "boxes" in fields and not {"image", "array"} & fields.keys():
        raise ValueError("'boxes' requires an image or an array as input, not features: remove it")
    boxes = _per_label(fields, "boxes")
    return None if boxes is None else tuple(_box(box) for box in boxes)


def _box(box: object) -> tuple[float, ...]:
    if not isinstance(box, list) or len(box) != 4:
        raise ValueError(f"a box must be [x, y, width, height], but is {show(box)}")
    x, y, width, height = (_real(value, "a box coordinate") for value in box)
    if width < 0 or height < 0:
        raise ValueError(f"the width and height of a box must not be negative, but the box is {show(box)}")
    return x, y, width, height


def _areas(fields: Fields) -> tuple[float, ...] | None:
    areas = _per_label(fields, "areas")
    if areas is None:
        return None
    numbers = tuple(_real(area, "an area") for area in areas)
    if any(number < 0 for number in numbers):
        raise ValueError(f"'areas' must not be negative, but are {show(areas)}")
    return numbers


def _per_label(fields: Fields, key: str) -> list[Any] | None:
    values, labels = fields.get(key), fields.get("labels")
    if values is None:
        return None
    if not isinstance(labels, list):
        raise ValueError(f"{key!r} requires one entry per label: write 'labels' as a list")
    if not isinstance(values, list) or len(values) != len(labels):
        raise ValueError(f"{key!r} must be a list of length {len(labels)}, one per label, but is {show(values)}")
    return values


def _text(value: object, what: str) -> str:
    """Return a name without surrounding spaces; an integer is converted to a string."""
    if isinstance(value, float) and value % 1 == 0:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} must be a non-empty string, but is {show(value)}")
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ValueError(f"{what} must be valid text, but {show(value)} contains an unpaired surrogate")
    return value.strip()


def _real(value: object, what: str, number: int | None = None) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    which = what if number is None else f"{what} {number}"
    raise ValueError(f"{which} must be a finite number that fits in float32, but is {show(value)}")


_FILES = ("image", "array", "set", "sequence")
"""Keys of inputs that are paths; sets and sequences may also be written out."""
_READ: dict[str, Callable[[Fields], Any]] = {
    "kind": _kind,
    "path": _path,
    "features": _features,
    "cells": _cells,
    "rows": _rows,
    "labels": _labels,
    "id": _id,
    "split": _split,
    "boxes": _boxes,
    "areas": _areas,
}
