"""Check that the image and array files of a data set exist and can be read."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from torchmultiset._files import is_file
from torchmultiset.data._arrays import read_array
from torchmultiset.data._parse import ManifestError, Problems
from torchmultiset.data._records import Record
from torchmultiset.data._vectors import VECTORS, wrong_vectors

__all__ = ["readable_records"]

_FOLDERS = 20
"""Maximum number of folders that are searched for a missing file."""


def readable_records(
    records: list[Record], problems: Problems, skip: bool, check_inputs: bool, progress: bool
) -> list[Record]:
    """Return the records whose file can be read; the others are problems, or skipped with a warning."""
    folder = problems.path.parent
    existing = [record for record in records if not record.path or is_file(folder / record.path)]
    if len(existing) < len(records):
        found, folders = {record.line for record in existing}, _folders(folder)
        for record in records:
            if record.line not in found:
                problems.add(record.line, f"there is no file {folder / record.path}: {_hint(record.path, folders)}")
    broken: dict[int, str] = {}
    if vectors := [record for record in existing if record.kind in VECTORS]:
        broken |= wrong_vectors(vectors, folder, problems)
    if check_inputs and (images := [record for record in existing if record.kind == "image"]):
        broken |= _broken_images(images, folder, progress)
    if check_inputs and (arrays := [record for record in existing if record.kind == "array"]):
        broken |= _broken_arrays(arrays, folder, problems)
    if not skip:
        problems.found += broken.items()
    elif broken:
        listed = ManifestError(problems.path, sorted(broken.items()))
        warnings.warn(f"skipped {len(broken)} of {len(records)} examples: {listed}", stacklevel=3)
        if len(broken) == len(records):
            problems.add(0, "no examples are left: none of the files can be read")
    return [record for record in existing if record.line not in broken]


def _folders(folder: Path) -> list[Path]:
    """Return a folder and some of the folders in it."""
    try:
        return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())[:_FOLDERS]]
    except OSError:  # listing a folder may be forbidden
        return [folder]


def _hint(path: str, folders: list[Path]) -> str:
    """Return what to write instead of the path of a file that does not exist.

    Args:
        path: The path.
        folders: Folder of the table, and folders in it, which may hold the file.
    """
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


def _broken_arrays(records: list[Record], folder: Path, problems: Problems) -> dict[int, str]:
    broken: dict[int, str] = {}
    first: tuple[int, np.dtype, tuple[int, ...]] | None = None
    for record in records:
        try:
            array = read_array(folder / record.path)
        except (OSError, ValueError) as error:
            broken[record.line] = str(error)
            continue
        line, dtype, shape = first = first or (record.line, array.dtype, array.shape)
        if (array.dtype, array.shape) != (dtype, shape):
            found = f"the array is {array.dtype} of shape {array.shape}"
            problems.add(
                record.line, f"{found}, but the one on line {line} is {dtype} of shape {shape}: save all alike"
            )
    return broken
