"""NumPy's files: those of a stored data set, made at full length and filled piece by piece; any, opened with care."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

__all__ = ["allocate", "open_array", "open_rows", "readable", "write_rows"]

_LONGEST_REASON = 120
"""Characters of NumPy's own message that are shown: it may repeat a whole header."""


def write_rows(path: Path, rows: Shaped[np.ndarray, "n ..."], *, before_end: int) -> None:
    """Write rows where that many rows are left until the end of the file, and wait until they are on disk."""
    # Not through a memory map: there a full disk is a crash, here an error, and pages written would stay in memory.
    with path.open("r+b") as file:
        file.seek(-before_end * prod(rows.shape[1:]) * rows.dtype.itemsize, os.SEEK_END)
        file.write(np.ascontiguousarray(rows).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def allocate(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """A .npy file with its header in place and room for the rows."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f"{path.name}.partial")
    with unfinished.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + prod(shape) * dtype.itemsize)
    unfinished.replace(path)


@contextmanager
def readable(path: Path, fix: str) -> Iterator[None]:
    """Report a file that NumPy cannot read as a ValueError that names the file and what to do.

    NumPy parses a header as Python source and multiplies the numbers in it, so that a damaged one raises nearly
    anything: SyntaxError, tokenize.TokenError, TypeError, OverflowError, MemoryError and more.

    Args:
        path: The file that is read in the block.
        fix: What to do about it, such as "delete the folder and build it again".

    Raises:
        ValueError: The block raised something else than an OSError that names a file.
    """
    try:
        with np.errstate(all="ignore"):  # the product of a damaged shape overflows before it is refused
            yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = (str(error).splitlines() or [""])[0][:_LONGEST_REASON] or type(error).__name__
        raise ValueError(f"{path} is damaged, or not a NumPy file ({reason}): {fix}") from None


def open_array(path: Path, fix: str) -> Shaped[np.ndarray, "*shape"]:
    """Open an .npy file as a memory map; a pickle is never opened.

    Args:
        path: The file.
        fix: What to do if it cannot be read.

    Raises:
        OSError: There is no such file, or it may not be read.
        ValueError: It is damaged, or not an .npy file.
    """
    with readable(path, fix):
        # Mapping compares the header with the length of the file before anything is allocated.
        array: Shaped[np.ndarray, "*shape"] = np.lib.format.open_memmap(path, mode="r")
    return array


def open_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, mapped: bool) -> Shaped[np.ndarray, "n ..."]:
    """Open a file as a memory map, or read it; raise unless it has this type and shape."""
    try:
        array = open_array(path, "delete the folder and build the data set again")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: delete the folder and build the data set again") from None
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{path} has type {array.dtype.str} and shape {array.shape}, but the manifest says {dtype.str} and "
            f"{shape}: delete the folder and build the data set again"
        )
    return array if mapped else np.array(array)
