"""Parsing of a manifest (JSONL or CSV) into the fields of each line, collecting all problems.

A CSV row is converted to the fields of the equivalent JSONL line, so later stages need only one set of rules.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torchmultiset._checks import listed

__all__ = [
    "FILES",
    "Fields",
    "ManifestError",
    "Problems",
    "did_you_mean",
    "problem_list",
    "read_count",
    "read_fields",
    "show",
]

FILES = ("image", "array", "set", "sequence")
"""Keys of inputs that are paths, each the only input of its file; sets and sequences may also be inline arrays."""
_COLUMNS = (*FILES, "labels", "split", "id")
_COUNT = "count:"
# A larger count is most likely a typing error, and each label takes memory.
_MOST = 10_000
_SHOWN = 10
_LONGEST_CELL = 2**31 - 1
"""Maximum number of characters of a CSV cell; the default of the csv module is 131,072."""

T = TypeVar("T")
Fields = dict[str, Any]
"""Mapping from key to value for one line."""


class ManifestError(ValueError):
    """Error that lists all problems of a manifest by line.

    Attributes:
        path: The manifest.
        problems: All pairs of a line number (0 for the file as a whole) and a description; the message shows the
            first 10.
    """

    def __init__(self, path: Path, problems: Sequence[tuple[int, str]]) -> None:
        super().__init__(path, problems)
        self.path = path
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return problem_list(str(self.path), [f"line {line}: {what}" if line else what for line, what in self.problems])


@dataclass
class Problems:
    """Collector for the problems of one manifest."""

    path: Path
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, what: object) -> None:
        """Record a problem."""
        self.found.append((line, str(what)))

    def attempt(self, line: int, read: Callable[..., T], *args: Any) -> T | None:
        """Return ``read(*args)``; if it raises a ValueError, record the problem and return None."""
        try:
            return read(*args)
        except ValueError as error:
            self.add(line, error)
            return None

    def stop(self) -> None:
        """Raise a ManifestError if there are any problems."""
        if self.found:
            raise ManifestError(self.path, sorted(self.found, key=lambda problem: problem[0]))


def problem_list(where: str, problems: Sequence[str]) -> str:
    """Format the number of problems in a file, the first ones, and the number of the others."""
    return f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in {where}:{listed(problems)}"


def show(value: object) -> str:
    """Return the repr of a value, shortened for messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint with the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read_count(value: Any, name: str) -> int:
    """Return a count as an int. 2.0 is accepted, because many programs write 2 this way."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0 or not 0 <= value <= _MOST:
        expected = f"a whole number from 0 to {_MOST}"
        raise ValueError(f"the count of {name!r} must be {expected}, but is {show(value)}")
    return int(value)


def read_fields(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[tuple[int, Fields]]:
    """Return line number and fields of each non-blank line; with `labelled`, a CSV header must declare labels."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        problems.add(0, "the file is UTF-16: save it as UTF-8 ('CSV UTF-8' in a spreadsheet)")
        problems.stop()
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            byte = line[error.start : error.start + 1]
            problems.add(number, f"the byte {byte!r} is not valid UTF-8: save the file as UTF-8")
    problems.stop()
    text = data.decode("utf-8-sig")
    return _csv_lines(text, problems, labelled) if path.suffix.lower() == ".csv" else _json_lines(text, problems)


def _json_lines(text: str, problems: Problems) -> Iterator[tuple[int, Fields]]:
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        fields = problems.attempt(number, _json_object, line) if line.strip() else None
        if fields is not None:
            yield number, fields


def _json_object(line: str) -> Fields:
    try:
        fields = json.loads(line, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}: correct or remove the line") from None
    except RecursionError:
        raise ValueError("not readable JSON: brackets are nested too deeply: correct or remove the line") from None
    if not isinstance(fields, dict):
        example = '{"image": "a.jpg", "labels": ["cat", "cat"]}'
        raise ValueError(f"each line must be a JSON object such as {example}, but is {show(fields)}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> Fields:
    fields: Fields = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"duplicate key {key!r}: keep one")
        fields[key] = value
    return fields


def _csv_lines(text: str, problems: Problems, labelled: bool) -> Iterator[tuple[int, Fields]]:
    # Spreadsheets use ';' in locales with a decimal comma: detect the delimiter from the header.
    first = next((line for line in io.StringIO(text, newline=None) if line.strip()), "")
    delimiter = next((mark for mark in ",;\t" if mark in first), ",")
    rows = _csv_rows(text, delimiter, problems)
    number, header = next(rows, (0, []))
    before = len(problems.found)
    columns, inputs = _read_header(number, header, problems, labelled)
    if len(problems.found) > before:
        return
    for number, row in rows:
        if len(row) != len(columns):
            fix = f"put quotes around cells that contain {delimiter!r}"
            problems.add(number, f"has {len(row)} cells, but the header has {len(columns)}: {fix}")
            continue
        before = len(problems.found)
        cells = {column: cell.strip() for column, cell in zip(columns, row, strict=True)}
        fields = _csv_fields(number, cells, inputs, problems)
        if len(problems.found) == before:
            yield number, fields


def _csv_rows(text: str, delimiter: str, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank rows, each with its first line number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    row: list[str] | None = []
    while row is not None:
        number, limit = reader.line_num + 1, csv.field_size_limit(_LONGEST_CELL)
        try:
            row = next(reader, None)
        except csv.Error as error:
            upto = f", read up to line {reader.line_num}" if reader.line_num > number else ""
            problems.add(number, f'not CSV ({error}{upto}): is a quote (") not closed, or not doubled?')
            row = []
        finally:
            csv.field_size_limit(limit)
        if row and any(cell.strip() for cell in row):
            yield number, row


def _read_header(number: int, header: list[str], problems: Problems, labelled: bool) -> tuple[list[str], list[str]]:
    """Return the names of all columns, and of those that are features."""
    if not header:
        problems.add(0, "the file is empty: write a header such as image,labels and one line per example")
        return [], []
    columns = []
    for name in map(str.strip, header):
        known = name.casefold()
        if known.startswith(_COUNT):
            known = _COUNT + name[len(_COUNT) :].strip()
        elif known not in (*_COLUMNS, "text"):
            known = name
        columns.append(known)
    features = [name for name in columns if name not in _COLUMNS and not name.startswith((_COUNT, "#"))]
    for name, times in Counter(columns).items():
        if not name or times > 1:
            problems.add(number, f"duplicate column {name!r}: rename one" if name else "a column has no name: add one")
    counted = any(name.startswith(_COUNT) for name in columns)
    if counted == ("labels" in columns) and (counted or labelled):
        names = ", ".join(columns[:_SHOWN]) + (", ..." if len(columns) > _SHOWN else "")
        fix = "rename the column with the labels, or add one"
        if len(features) > 1:
            fix += f"; if there is a column of counts for each class, rename them, such as {features[-1]!r} to"
            fix += f" {_COUNT + features[-1]!r}"
        which = "not both" if counted else f"but has only {names}: {fix}"
        expected = "a column 'labels' or columns of counts such as 'count:cat'"
        problems.add(number, f"the header must have {expected}, {which}")
        if not counted:
            return columns, features  # one of the other columns has the labels
    if {*FILES} & set(columns):
        for name in features:
            hint = " (supported only in JSONL)" if name in ("boxes", "areas") else did_you_mean(name, _COLUMNS)
            fix = "rename or remove it, or start its name with '#' to ignore it"
            problems.add(number, f"unknown column {name!r}{hint}: {fix}")
    elif not features:
        expected = "a column 'text', a column 'image', 'array', 'set' or 'sequence' (paths), or feature columns"
        problems.add(number, f"the header must have an input, {expected}, but has none")
    return columns, [] if {*FILES} & set(columns) else features


def _csv_fields(number: int, cells: dict[str, str], inputs: list[str], problems: Problems) -> Fields:
    fields: Fields = {key: cells[key] for key in (*FILES, "split", "id") if cells.get(key)}
    if "labels" in cells:
        fields["labels"] = problems.attempt(number, _split_labels, cells["labels"])
    elif any(column.startswith(_COUNT) for column in cells):
        fields["counts"] = {
            column.removeprefix(_COUNT): problems.attempt(number, _count, cell or "0", column.removeprefix(_COUNT))
            for column, cell in cells.items()
            if column.startswith(_COUNT)
        }
    if inputs:
        fields["features"] = {column: cells[column] if column == "text" else _cell(cells[column]) for column in inputs}
    return fields


def _split_labels(cell: str) -> list[str]:
    """Parse ``cat;cat;dog`` or ``cat:2;dog``. A name with a count may contain any character but ';'."""
    labels: list[str] = []
    for part in map(str.strip, cell.split(";") if cell else []):
        name, colon, count = part.rpartition(":")
        if not part:
            raise ValueError("a label is empty: remove the extra ';'")
        if colon:
            try:
                labels += [name] * _count(count, name)
            except ValueError as error:
                raise ValueError(f"{error}; if ':' is part of the name, write '{part}:1'") from None
        elif "," in part or "|" in part:
            fix = "put ';' between labels, or add ':1' if it is one name"
            raise ValueError(f"{show(part)} looks like several labels: {fix}")
        else:
            labels.append(part)
    return labels


def _count(cell: str, name: str) -> int:
    try:
        number: object = float(cell)
    except ValueError:
        number = cell
    return read_count(number, name)


def _cell(cell: str) -> float | str | None:
    """Return a number or text; None for an empty cell and for nan, which some programs write for empty cells."""
    try:
        number = float(cell)
    except ValueError:
        return cell or None
    return None if math.isnan(number) else number
