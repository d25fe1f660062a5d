"""The .npy files of a stored data set: made at full length, filled piece by piece, opened as memory maps."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

__all__ = ["allocate", "open_rows", "write_rows"]


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


def open_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, mapped: bool) -> Shaped[np.ndarray, "n ..."]:
    """Open a file as a memory map, or read it; raise unless it has this type and shape."""
    try:
        array: Shaped[np.ndarray, "n ..."] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: delete the folder and build the data set again") from None
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete the folder and build it again") from None
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{path} has type {array.dtype.str} and shape {array.shape}, but the manifest says {dtype.str} and "
            f"{shape}: delete the folder and build the data set again"
        )
    return array
