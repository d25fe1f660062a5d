"""Reading of .npy files with clear errors, and row-by-row writing of preallocated ones."""

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
"""Maximum number of characters quoted from NumPy's error message, which may repeat a whole header."""


def write_rows(path: Path, rows: Shaped[np.ndarray, "n ..."], *, before_end: int) -> None:
    """Overwrite rows, starting `before_end` rows before the end of the file, and flush them to disk."""
    # Not through a memory map: a full disk would crash the process, and written pages would stay in memory.
    with path.open("r+b") as file:
        file.seek(-before_end * prod(rows.shape[1:]) * rows.dtype.itemsize, os.SEEK_END)
        file.write(np.ascontiguousarray(rows).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def allocate(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Create an .npy file of full length, with a header and empty rows."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f"{path.name}.partial")
    with unfinished.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + prod(shape) * dtype.itemsize)
    unfinished.replace(path)


@contextmanager
def readable(path: Path, fix: str) -> Iterator[None]:
    """Convert errors from reading a damaged file to a ValueError with the file name and the fix.

    NumPy parses the header as Python source and multiplies the numbers in it, so a damaged one can raise almost
    anything: SyntaxError, tokenize.TokenError, TypeError, OverflowError, MemoryError and more.
    Only an OSError with a file name is left as it is.
    """
    try:
        with np.errstate(all="ignore"):  # the product of a damaged shape may overflow before it is rejected
            yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = (str(error).splitlines() or [""])[0][:_LONGEST_REASON] or type(error).__name__
        raise ValueError(f"{path} is damaged or not a NumPy file ({reason}): {fix}") from None


def open_array(path: Path, fix: str) -> Shaped[np.ndarray, "*shape"]:
    """Open an .npy file as a memory map; pickles are never loaded."""
    with readable(path, fix):
        # Mapping compares the header with the file length before anything is allocated.
        array: Shaped[np.ndarray, "*shape"] = np.lib.format.open_memmap(path, mode="r")
    return array


def open_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, mapped: bool) -> Shaped[np.ndarray, "n ..."]:
    """Open an array as a memory map or read it into memory; raise unless it has this dtype and shape."""
    try:
        array = open_array(path, "delete the folder and build the data set again")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: delete the folder and build the data set again") from None
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{path} has dtype {array.dtype.str} and shape {array.shape}, but the manifest has {dtype.str} and "
            f"{shape}: delete the folder and build the data set again"
        )
    return array if mapped else np.array(array)
