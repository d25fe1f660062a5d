"""Arrays in .npy files as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from torchmultiset.data._npy import open_array

__all__ = ["ArrayFiles", "read_array"]


class ArrayFiles:
    """The `Inputs` of .npy files of one shape, read by the batch.

    Args:
        paths: The files, one for each input. The first tells the shape.
    """

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
                    f"{self.paths[i]} must be {self.dtype} of shape {self.shape} as {self.paths[0]} is, "
                    f"but is {array.dtype} of shape {array.shape}"
                )
            batch[row] = array
        return batch


def read_array(path: Path) -> Shaped[np.ndarray, "*shape"]:
    """Read an array of numbers: uint8 images as they are, anything else as float32.

    A single array of height and width is an image of one channel: (H, W) becomes (1, H, W).

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is damaged or not an .npy file, holds something else than numbers (a pickle is never
            opened), no dimension or more than three, or a number that is not finite.
    """
    array = open_array(path, "save it again with numpy.save")
    if array.dtype.kind not in "buif" or array.ndim == 0:
        raise ValueError(f"{path}: must hold an array of numbers, but holds {array.dtype} of shape {array.shape}")
    if array.ndim > 3:
        kinds = "(features), (height, width) or (channels, height, width)"
        raise ValueError(f"{path}: must have the shape {kinds}, but has {array.shape}: one file for each example")
    shape = (1, *array.shape) if array.ndim == 2 else array.shape
    if array.dtype == np.uint8 and len(shape) == 3:
        return np.array(array).reshape(shape)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32).reshape(shape)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}: holds numbers that are not finite, or too large for float32")
    return numbers
