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
    """``"image"``, ``"array"`` or ``"features"``."""
    path: str
    """Path of the image or array as written; empty for features."""
    features: Float32[np.ndarray, " d"]
    """Unnamed features (D,); empty for images, arrays and named features."""
    cells: dict[str, Cell]
    """Named features as written, by column; empty for other inputs."""
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
    return Record(line, "features", "", np.empty(0, dtype=np.float32), read, (), f"line {line}", None, None, None)


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
    known = (*_READ, "image", "array", "counts")
    for key in fields:
        if key not in known or key in ("kind", "path", "cells"):
            fix = "rename or remove it, or start it with '#' to ignore it"
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, known)}: {fix}")


def _kind(fields: Fields) -> str:
    kinds = [kind for kind in ("image", "array", "features") if kind in fields]
    if len(kinds) != 1:
        found = "has " + (" and ".join(kinds) or "none")
        raise ValueError(f"each line must have one input, 'image', 'array' or 'features', but this one {found}")
    return kinds[0]


def _path(fields: Fields) -> str:
    key = "image" if "image" in fields else "array"
    return PurePath(_text(fields[key], f"{key!r}")).as_posix() if key in fields else ""


def _features(fields: Fields) -> Float32[np.ndarray, " d"]:
    values = fields.get("features")
    if values is None or isinstance(values, dict):
        return np.empty(0, dtype=np.float32)
    if not isinstance(values, list) or not values:
        raise ValueError(f"'features' must be a list of numbers, but is {show(values)}")
    return np.array([_real(value, "feature", i) for i, value in enumerate(values, start=1)], dtype=np.float32)


def _cells(fields: Fields) -> dict[str, Cell]:
    values = fields.get("features")
    if not isinstance(values, dict):
        return {}
    if not values:
        raise ValueError("'features' must have at least one entry, but is {}")
    return {name: _cell(value, name) for name, value in values.items()}


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
    if "features" in fields and "boxes" in fields:
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


_READ: dict[str, Callable[[Fields], Any]] = {
    "kind": _kind,
    "path": _path,
    "features": _features,
    "cells": _cells,
    "labels": _labels,
    "id": _id,
    "split": _split,
    "boxes": _boxes,
    "areas": _areas,
}
