"""Common representation of loaded data sets: inputs, each with a multiset of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped
from torch import Tensor

from torchmultiset.data._columns import Column
from torchmultiset.data.tokens import TokenKind
from torchmultiset.multiset import from_labels

__all__ = ["Batch", "Examples", "Inputs"]


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
