"""Conversion of the fields of each manifest line to a validated `Record`, collecting all problems.

A function that reads a field raises a ValueError that describes the fix; the caller adds the line number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

from torchmultiset.data._parse import FILES, Fields, Problems, did_you_mean, read_count, read_fields, show
from torchmultiset.data._splits import SPLITS

__all__ = ["VECTORS", "Cell", "Record", "read_cell", "read_records"]

Cell: TypeAlias = float | str | None
"""Number, text, or None for an empty cell."""
_LARGEST = float(np.finfo(np.float32).max)
VECTORS = ("set", "sequence", "either")
"""Kinds of records that are sets or sequences of vectors."""
_KEYS = (*FILES, "features", "text", "labels", "counts", "id", "split", "boxes", "areas")


@dataclass(frozen=True, eq=False)
class Record:
    """One line of a manifest, validated independently of the others."""

    line: int
    kind: str
    """``"image"``, ``"array"``, ``"features"`` (also text), ``"set"``, ``"sequence"`` or ``"either"``."""
    labels: tuple[str, ...]
    id: str
    path: str = ""
    """Path of the image, array, set or sequence as written; empty for inputs that the line itself contains."""
    features: Float32[np.ndarray, " d"] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """Unnamed features (D,); empty for named features and other inputs."""
    cells: dict[str, Cell] = field(default_factory=dict)
    """Named features as written, by column; empty for other inputs."""
    rows: Float32[np.ndarray, "n w"] | None = None
    """Vectors (N, D) of a set or sequence, once they are read; None for other inputs."""
    split: str | None = None
    boxes: tuple[tuple[float, ...], ...] | None = None
    areas: tuple[float, ...] | None = None


def read_records(path: Path, problems: Problems, *, labelled: bool = True) -> list[Record]:
    """Read the valid lines of a .jsonl or .csv file and collect the problems of the others.

    Unless `labelled`, missing labels mean an empty multiset.
    """
    instead: Fields = {} if labelled else {"labels": []}
    records = []
    for line, given in read_fields(path, problems, labelled=labelled):
        written = given if "counts" in given else {**instead, **given}
        fields = {key: value for key, value in written.items() if value is not None and not key.startswith("#")}
        before = len(problems.found)
        unknown = next((key for key in fields if key not in _KEYS), None)
        if unknown is not None:
            fix = "rename or remove it, or start it with '#' to ignore it"
            problems.add(line, f"unknown key {unknown!r}{did_you_mean(unknown, _KEYS)}: {fix}")
        values: Fields = problems.attempt(line, _input, fields) or {}
        values["labels"] = problems.attempt(line, _labels, fields)
        for key, read in _OPTIONAL.items():
            if key in fields:
                values[key] = problems.attempt(line, read, fields)
        if len(problems.found) == before:
            values.setdefault("id", values.get("path") or f"line {line}")
            records.append(Record(line, **values))
    return records


def _input(fields: Fields) -> Fields:
    """Return the kind of the input and its value, by field of `Record`."""
    kinds = [kind for kind in (*FILES, "features", "text") if kind in fields]
    if kinds in (["text"], ["features", "text"]):
        return {"kind": "features", "cells": _cells({**_beside_text(fields), "text": fields["text"]})}
    if len(kinds) != 1:
        found = "has " + (" and ".join(kinds) or "none")
        one = "'text', 'features', 'image', 'array', 'set' or 'sequence'"
        raise ValueError(f"each line must have one input, {one} (or 'text' and 'features'), but this one {found}")
    (kind,) = kinds
    value = fields[kind]
    if kind in ("image", "array") or (kind in FILES and isinstance(value, str)):
        return {"kind": kind, "path": PurePath(_text(value, f"{kind!r}")).as_posix()}
    if kind in FILES:
        return {"kind": kind, "rows": _rows(value, kind)}
    if isinstance(value, dict):
        return {"kind": kind, "cells": _cells(value)}
    if not isinstance(value, list) or not value:
        raise ValueError(f"'features' must be a list of numbers, but is {show(value)}")
    if isinstance(value[0], list):
        return {"kind": "either", "rows": _rows(value, kind)}
    numbers = [_real(number, "feature", i) for i, number in enumerate(value, start=1)]
    return {"kind": kind, "features": np.array(numbers, dtype=np.float32)}


def _beside_text(fields: Fields) -> dict[str, Any]:
    """Return the features of a line with text by name; those of a list are numbered."""
    text, values = fields["text"], fields.get("features", {})
    if not isinstance(text, str):
        raise ValueError(f"'text' must be a string, but is {show(text)}")
    if isinstance(values, list):
        return {f"feature {i}": value for i, value in enumerate(values, start=1)}
    if not isinstance(values, dict):
        raise ValueError(f"'features' must be a list of numbers, but is {show(values)}")
    return values


def _cells(values: dict[str, Any]) -> dict[str, Cell]:
    if not values:
        raise ValueError("'features' must have at least one entry, but is {}")
    return {name: read_cell(value, name) for name, value in values.items()}


def _rows(value: object, key: str) -> Float32[np.ndarray, "n d"]:
    if not isinstance(value, list) or not all(isinstance(row, list) and row for row in value):
        raise ValueError(
            f"{key!r} must look like [[0.5, 2], [1, 3]] or be the path of an .npy file, but is {show(value)}"
        )
    widths = {len(row) for row in value}
    if len(widths) > 1:
        *others, longest = map(str, sorted(widths))
        some = f"{', '.join(others)} and {longest}"
        raise ValueError(f"{key!r} must have vectors of one length, but has some of {some} numbers")
    rows = [[_real(number, f"vector {i} of {key!r}") for number in row] for i, row in enumerate(value, start=1)]
    return np.array(rows, dtype=np.float32).reshape(len(rows), max(widths, default=0))


def read_cell(value: object, name: str) -> Cell:
    """Return a number, or text without surrounding spaces; None for an empty cell."""
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


def _id(fields: Fields) -> str:
    return _text(fields["id"], "'id'")


def _split(fields: Fields) -> str:
    split = _text(fields["split"], "'split'").casefold()
    split = "validation" if split == "val" else split
    if split not in SPLITS:
        raise ValueError(f"'split' must be one of {', '.join(SPLITS)}, but is {show(fields['split'])}")
    return split


def _boxes(fields: Fields) -> tuple[tuple[float, ...], ...]:
    if not {"image", "array"} & fields.keys():
        raise ValueError("'boxes' requires an image or an array as input, not features: remove it")
    return tuple(_box(box) for box in _per_label(fields, "boxes"))


def _box(box: object) -> tuple[float, ...]:
    if not isinstance(box, list) or len(box) != 4:
        raise ValueError(f"a box must be [x, y, width, height], but is {show(box)}")
    x, y, width, height = (_real(value, "a box coordinate") for value in box)
    if width < 0 or height < 0:
        raise ValueError(f"the width and height of a box must not be negative, but the box is {show(box)}")
    return x, y, width, height


def _areas(fields: Fields) -> tuple[float, ...]:
    areas = _per_label(fields, "areas")
    numbers = tuple(_real(area, "an area") for area in areas)
    if any(number < 0 for number in numbers):
        raise ValueError(f"'areas' must not be negative, but are {show(areas)}")
    return numbers


def _per_label(fields: Fields, key: str) -> list[Any]:
    values, labels = fields[key], fields.get("labels")
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


_OPTIONAL: dict[str, Callable[[Fields], object]] = {"id": _id, "split": _split, "boxes": _boxes, "areas": _areas}
"""Optional keys of a line, with the functions that read them."""
