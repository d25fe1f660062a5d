"""Enumeration of multisets: their number and their indices. Public as part of `torchmultiset.multiset`."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from torchmultiset._checks import can_look, check, check_counts, check_integers

__all__ = ["check_sizes", "from_index", "how_many", "index_of"]


def how_many(num_classes: int, max_size: int, *, min_size: int = 1) -> int:
    r"""Return the number of multisets of `min_size` to `max_size` labels (footnote of section 3.2).

    .. math:: \sum_{k=1}^{K} \frac{(|C| + k - 1)!}{k!\,(|C| - 1)!}

    As in the paper, the empty multiset is not counted unless ``min_size=0``.

    Example:
        >>> how_many(10, 4, min_size=4)  # four of ten digits
        715
        >>> how_many(80, 10)  # up to ten objects of COCO's classes
        5720645481902
    """
    check(num_classes >= 1, "num_classes", "at least 1", num_classes)
    check(min_size >= 0, "min_size", "at least 0", min_size)
    check(max_size >= min_size, "max_size", f"at least min_size = {min_size}", max_size)
    return sum(math.comb(num_classes + size - 1, size) for size in range(min_size, max_size + 1))


def index_of(counts: Int64[Tensor, "*b c"], *, max_size: int, min_size: int = 0) -> Int64[Tensor, "*b"]:
    r"""Return the index of each multiset among all multisets of `min_size` to `max_size` labels.

    Smaller multisets come first; those of k labels :math:`y_1 \le \dots \le y_k` are ordered by the combinatorial
    number system:

    .. math:: \sum_{i=1}^{k} \binom{y_i + i - 1}{i}

    Returns:
        Indices (...), from 0 to ``how_many(C, max_size, min_size=min_size) - 1``.

    Example:
        >>> index_of(torch.tensor([[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]), max_size=2)
        tensor([0, 1, 2, 3, 4, 5])
    """
    check_integers("counts", counts, "(..., C)")
    check_counts("counts", counts, like=tuple(counts.shape))
    num_classes = counts.shape[-1]
    ways, first = _tables(num_classes, max_size, min_size, counts.device)
    check_sizes("counts", counts, max_size=max_size, min_size=min_size)
    # Labels of one class are consecutive, so the sum of their binomials is the difference of two binomials.
    until = counts.cumsum(-1)
    up_to_class = torch.arange(1, num_classes + 1, device=counts.device)
    rank = (ways[until, up_to_class] - ways[until - counts, up_to_class]).sum(-1)
    return first[counts.sum(-1) - min_size] + rank


def from_index(
    index: Int64[Tensor, "*b"], num_classes: int, *, max_size: int, min_size: int = 0
) -> Int64[Tensor, "*b c"]:
    """Return the multiset at each index: the inverse of `index_of`.

    Example:
        >>> from_index(torch.tensor([0, 1, 714]), 10, max_size=4, min_size=4)
        tensor([[4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                [3, 1, 0, 0, 0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 4]])
    """
    check(isinstance(index, Tensor) and index.dtype == torch.int64, "index", "an int64 tensor", index)
    ways, first = _tables(num_classes, max_size, min_size, index.device)
    last = how_many(num_classes, max_size, min_size=min_size) - 1
    wrong = _outside(index, 0, last)
    if wrong is not None:
        raise ValueError(f"index must hold indices from 0 to {last}, but holds {wrong}")
    flat = index.reshape(-1)
    group = (first <= flat[:, None]).sum(-1) - 1  # ONNX has no searchsorted
    size, rest = group + min_size, flat - first[group]
    counts = flat.new_zeros(flat.shape[0], num_classes)
    # From the highest label to the lowest: each is the highest whose binomial does not exceed the rest.
    for position in range(max_size, 0, -1):
        label = (ways[position, :num_classes] <= rest[:, None]).sum(-1) - 1
        there = position <= size
        rest = rest - ways[position, label].where(there, 0)
        counts.scatter_add_(1, label[:, None], there[:, None].long())
    return counts.reshape(*index.shape, num_classes)


def check_sizes(name: str, counts: Tensor, *, max_size: int, min_size: int) -> None:
    """Raise a ValueError unless each multiset has `min_size` to `max_size` labels."""
    wrong = _outside(counts.sum(-1), min_size, max_size)
    if wrong is not None:
        raise ValueError(f"{name} must hold multisets of {min_size} to {max_size} labels, but one has {wrong}")


def _outside(values: Tensor, low: int, high: int) -> int | None:
    # An out-of-range value, or None; values that are expensive to read are not checked.
    if not can_look(values):
        return None
    return next((bound for bound in map(int, values.aminmax()) if not low <= bound <= high), None)


def _tables(num_classes: int, max_size: int, min_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number of multisets of n labels of c classes, at [n, c], and the first index of each size."""
    total = how_many(num_classes, max_size, min_size=min_size)
    if total > torch.iinfo(torch.int64).max:
        raise ValueError(
            f"max_size must be smaller: {num_classes} classes have {total} multisets of {min_size} to {max_size}"
            " labels, more than int64 can index"
        )
    ways = torch.tensor(
        [
            [math.comb(max(classes + size - 1, 0), size) for classes in range(num_classes + 1)]
            for size in range(max_size + 1)
        ],
        device=device,
    )
    of_size = ways[min_size:, num_classes]
    return ways, of_size.cumsum(0) - of_size
