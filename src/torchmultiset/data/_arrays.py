"""Inputs stored as .npy files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int, Shaped

from torchmultiset.data._npy import open_array

__all__ = ["ArrayFiles", "read_array", "read_rows"]


class ArrayFiles:
    """`Inputs` from .npy files, one per input, read batch by batch; all have the shape and dtype of the first."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        first = read_array(self.paths[0])
        self.shape, self.dtype = first.shape, first.dtype

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b ..."]:
        batch = np.empty((len(indices), *self.shape), self.dtype)
        for row, i in enumerate(indices):
            array = read_array(self.paths[i])
            if (array.shape, array.dtype) != (self.shape, self.dtype):
                raise ValueError(
                    f"{self.paths[i]} must be {self.dtype} of shape {self.shape}, like {self.paths[0]}, "
                    f"but is {array.dtype} of shape {array.shape}"
                )
            batch[row] = array
        return batch


def read_array(path: Path) -> Shaped[np.ndarray, "*shape"]:
    """Read a numeric array: uint8 images unchanged, anything else as float32.

    A two-dimensional array is a single-channel image: (H, W) becomes (1, H, W). Arrays of zero or more than three
    dimensions and those with non-finite numbers are refused; pickles are never loaded.
    """
    array = open_array(path, "save it again with numpy.save")
    if array.dtype.kind not in "buif" or array.ndim == 0:
        raise ValueError(f"{path}: must contain a numeric array, but contains {array.dtype} of shape {array.shape}")
    if array.ndim > 3:
        kinds = "(features), (height, width) or (channels, height, width)"
        raise ValueError(f"{path}: must have shape {kinds}, but has {array.shape}: save one file per example")
    shape = (1, *array.shape) if array.ndim == 2 else array.shape
    if array.dtype == np.uint8 and len(shape) == 3:
        return np.array(array).reshape(shape)
    return _as_float32(array, path).reshape(shape)


def read_rows(path: Path) -> Float32[np.ndarray, "n d"]:
    """Read the vectors (N, D) of a set or sequence, finite numbers; N may be 0."""
    array = open_array(path, "save it again with numpy.save")
    if array.dtype.kind not in "buif" or array.ndim != 2 or array.shape[1] == 0:
        what = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{path}: must contain numbers of shape (vectors, features), but contains {what}")
    return _as_float32(array, path)


def _as_float32(array: Shaped[np.ndarray, "*shape"], path: Path) -> Float32[np.ndarray, "*shape"]:
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}: contains NaN, infinite values or values too large for float32: remove them")
    return numbers
