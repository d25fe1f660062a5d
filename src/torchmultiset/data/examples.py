"""Common representation of loaded data sets: inputs, each with a multiset of labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.data._columns import Column
from torchmultiset.data.tokens import TokenKind
from torchmultiset.multiset import from_labels

__all__ = ["Batch", "Examples", "Inputs", "concatenate"]


@runtime_checkable
class Inputs(Protocol):
    """Sequence of inputs that is indexed batch by batch: an array, a memory map, image files."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b ..."]: ...


class Batch(NamedTuple):
    """Batch of examples as tensors.

    Shapes: B examples, C classes, M the size of the largest multiset of the data set.
    """

    x: Shaped[Tensor, "b ..."]
    """Inputs: images (B, channels, H, W), uint8 or float in [0, 1]; vectors (B, D), float; tokens
    (B, N, 1 + D), float, as `data.tokens` describes them."""
    target: Int64[Tensor, "b c"]
    """Multisets as counts (B, C)."""
    labels: Int64[Tensor, "b m"]
    """The same multisets as labels (B, M), padded with -1, in the order of the annotations."""
    boxes: Float[Tensor, "b m 4"] | None = None
    """x, y, width and height of each label's object in pixels of the input, if known."""
    areas: Float[Tensor, "b m"] | None = None
    """Area of each label's object, if known; 0 where padded."""


@dataclass(frozen=True, eq=False)
class Examples:
    """One split of a data set, as NumPy arrays that may be memory-mapped.

    Example:
        >>> pixels = np.zeros((2, 1, 8, 8), dtype=np.uint8)
        >>> labels = np.array([[1, 1], [0, -1]])  # {dog, dog} and {cat}
        >>> examples = Examples(pixels, labels, classes=("cat", "dog"))
        >>> examples.batch([0, 1]).target
        tensor([[0, 2],
                [1, 0]])
    """

    inputs: Inputs
    labels: Int[np.ndarray, "n m"]
    """Class indices, padded with -1, in the order of the annotations."""
    classes: tuple[str, ...]
    boxes: Float[np.ndarray, "n m 4"] | None = None
    areas: Float[np.ndarray, "n m"] | None = None
    ids: Sequence[str] | None = None
    """Identifier of each example (file name, COCO image id), if available."""
    columns: tuple[Column, ...] = ()
    """Columns that were encoded as inputs, for tables."""
    tokens: TokenKind | None = None
    """Kind of inputs of varying length, `data.tokens`; None for other inputs."""
    cut: int = 0
    """Number of inputs of the data set that are longer than `data.tokens.LONGEST` and therefore truncated."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Int64[np.ndarray, " n"] | None:
        """Number of positions (N,) of each input of varying length; None for other inputs."""
        return getattr(self.inputs, "lengths", None)

    @property
    def counts(self) -> Int64[np.ndarray, "n c"]:
        """Multisets of all examples as counts (N, C)."""
        return from_labels(torch.from_numpy(self.labels.astype(np.int64)), len(self.classes)).numpy()

    def batch(self, indices: Sequence[int] | Int[np.ndarray, " b"] | Int[Tensor, " b"]) -> Batch:
        """Read the examples with these indices."""
        chosen = np.asarray(indices, dtype=np.int64)
        labels = torch.from_numpy(self.labels[chosen].astype(np.int64))
        return Batch(
            x=torch.from_numpy(np.ascontiguousarray(self.inputs[chosen])),
            target=from_labels(labels, len(self.classes)),
            labels=labels,
            boxes=None if self.boxes is None else torch.from_numpy(self.boxes[chosen]),
            areas=None if self.areas is None else torch.from_numpy(self.areas[chosen]),
        )

    def batches(self, size: int = 256) -> Iterator[Batch]:
        """Read all examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(np.arange(start, min(start + size, len(self))))

    def subset(self, indices: Sequence[int] | Int[np.ndarray, " k"]) -> Examples:
        """Return the examples with these indices, in this order, without reading their inputs."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            inputs=_Chosen(self.inputs, chosen),
            labels=self.labels[chosen],
            boxes=None if self.boxes is None else self.boxes[chosen],
            areas=None if self.areas is None else self.areas[chosen],
            ids=None if self.ids is None else [self.ids[i] for i in chosen],
        )


def concatenate(first: Examples, second: Examples) -> Examples:
    """Concatenate the examples of two splits with the same classes.

    Example:
        >>> cats = Examples(np.zeros((1, 2)), np.array([[0, 0]]), ("cat", "dog"))
        >>> dog = Examples(np.ones((1, 2)), np.array([[1]]), ("cat", "dog"))
        >>> concatenate(cats, dog).counts
        array([[2, 0],
               [0, 1]])
    """
    check(first.classes == second.classes, "second", f"examples of the classes {first.classes}", second.classes)
    width = max(first.labels.shape[1], second.labels.shape[1])

    def joined(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
        return None if one is None or other is None else np.concatenate([widened(one, width), widened(other, width)])

    return replace(
        first,
        inputs=_Concatenated(first.inputs, second.inputs),
        labels=np.concatenate([widened(each.labels, width) for each in (first, second)]),
        boxes=joined(first.boxes, second.boxes),
        areas=joined(first.areas, second.areas),
        ids=None if first.ids is None or second.ids is None else [*first.ids, *second.ids],
    )


def widened(array: Shaped[np.ndarray, "n m ..."], width: int) -> Shaped[np.ndarray, "n k ..."]:
    """Pad the second axis of labels with -1, or of boxes or areas with 0."""
    missing = width - array.shape[1]
    fill = -1 if array.dtype.kind == "i" else 0
    return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)], constant_values=fill)


@dataclass(frozen=True, eq=False)
class _Chosen:
    inputs: Inputs
    indices: Int[np.ndarray, " k"]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def lengths(self) -> Int64[np.ndarray, " k"] | None:
        lengths = getattr(self.inputs, "lengths", None)
        return None if lengths is None else lengths[self.indices]

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b ..."]:
        return self.inputs[self.indices[indices]]


@dataclass(frozen=True, eq=False)
class _Concatenated:
    first: Inputs
    second: Inputs

    @property
    def lengths(self) -> Int64[np.ndarray, " n"] | None:
        first, second = (getattr(each, "lengths", None) for each in (self.first, self.second))
        return None if first is None or second is None else np.concatenate([first, second])

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b ..."]:
        in_first = indices < len(self.first)
        parts = [self.first[indices[in_first]], self.second[indices[~in_first] - len(self.first)]]
        if parts[0].ndim == 3:  # inputs of varying length
            longest = max(part.shape[1] for part in parts)
            parts = [np.pad(part, ((0, 0), (0, longest - part.shape[1]), (0, 0))) for part in parts]
        joined = np.empty((len(indices), *parts[0].shape[1:]), dtype=parts[0].dtype)
        joined[in_first], joined[~in_first] = parts
        return joined
