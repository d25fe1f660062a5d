"""Check that the files of a data set exist and can be read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchmultiset._files import is_file
from torchmultiset.data._arrays import read_array, read_rows
from torchmultiset.data._npy import open_array
from torchmultiset.data._parse import ManifestError, Problems
from torchmultiset.data._records import VECTORS, Record

__all__ = ["readable_records", "recognise_vectors"]

_FOLDERS = 20
"""Maximum number of folders that are searched for a missing file."""


def readable_records(
    records: list[Record], problems: Problems, skip: bool, check_inputs: bool, progress: bool
) -> list[Record]:
    """Return the records whose file can be read; the others are problems, or skipped with a warning.

    Sets and sequences are read into the records. Images and arrays are only read if `check_inputs`.
    """
    folder = problems.path.parent
    missing = {record.line: record.path for record in records if record.path and not is_file(folder / record.path)}
    folders = _folders(folder) if missing else []
    for line, path in missing.items():
        problems.add(line, f"there is no file {folder / path}: {_hint(path, folders)}")
    existing = [record for record in records if record.line not in missing]
    vectors: dict[int, np.ndarray] = {}

    def width(record: Record) -> int | None:
        vectors[record.line] = read_rows(folder / record.path) if record.rows is None else record.rows
        return vectors[record.line].shape[1] or None  # an empty list of vectors is like any other

    def kind(record: Record) -> str:
        array = read_array(folder / record.path)
        return f"{array.dtype} of shape {array.shape}"

    unequal = "the vectors have {} numbers, but those on line {} have {}: use one length"
    broken = _broken([record for record in existing if record.kind in VECTORS], width, unequal, problems)
    if vectors and not any(rows.shape[1] for rows in vectors.values()) and not broken:
        problems.add(0, "all sets and sequences are empty: add vectors")
    if check_inputs and (images := [record for record in existing if record.kind == "image"]):
        broken |= _broken_images(images, folder, progress)
    if check_inputs:
        unequal = "the array is {}, but the one on line {} is {}: save all alike"
        broken |= _broken([record for record in existing if record.kind == "array"], kind, unequal, problems)
    if not skip:
        problems.found += broken.items()
    elif broken:
        listed = ManifestError(problems.path, sorted(broken.items()))
        warnings.warn(f"skipped {len(broken)} of {len(records)} examples: {listed}", stacklevel=3)
        if len(broken) == len(records):
            problems.add(0, "no examples are left: none of the files can be read")
    kept = [record for record in existing if record.line not in broken]
    return [replace(record, rows=vectors.get(record.line)) for record in kept] if vectors else kept


def recognise_vectors(records: list[Record], folder: Path, *, always: bool = False) -> list[Record]:
    """Mark records of arrays (N, D) as sets or sequences if N differs between them but D does not.

    Arrays of one shape are images, unless `always`.
    """
    shapes = set()
    for record in () if always else records:
        with suppress(OSError, ValueError):  # reported when it is read
            shapes.add(open_array(folder / record.path, "").shape)
    differ = len(shapes) > 1 and all(len(shape) == 2 for shape in shapes) and len({shape[1] for shape in shapes}) == 1
    return [replace(record, kind="either") for record in records] if always or differ else records


def _folders(folder: Path) -> list[Path]:
    """Return a folder and some of the folders in it."""
    try:
        return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())[:_FOLDERS]]
    except OSError:  # listing a folder may be forbidden
        return [folder]


def _hint(path: str, folders: list[Path]) -> str:
    """Return what to write instead of the path of a file that does not exist, but may be in one of the folders."""
    if "\\" in path:
        return "use / as the path separator"
    name = Path(path).name
    for folder in folders:
        if is_file(folder / name):
            path = (folder / name).relative_to(folders[0]).as_posix()
            return f"write {path}, since paths start at the folder of the table"
    return "correct the path, or remove the line"


def _broken_images(records: list[Record], folder: Path, progress: bool) -> dict[int, str]:
    from torchmultiset.data.images import unreadable  # so that arrays and features need no Pillow

    found = unreadable([folder / record.path for record in records], progress=progress)
    return {records[i].line: what for i, what in found.items()}


def _broken(
    records: list[Record], describe: Callable[[Record], object], unequal: str, problems: Problems
) -> dict[int, str]:
    """Return the unreadable files by line; record those that are unlike the first as problems."""
    broken: dict[int, str] = {}
    first: tuple[int, object] | None = None
    for record in records:
        try:
            found = describe(record)
        except (OSError, ValueError) as error:
            broken[record.line] = str(error)
            continue
        if found is not None:
            first = first or (record.line, found)
            if found != first[1]:
                problems.add(record.line, unequal.format(found, *first))
    return broken
