r"""Rank functions: how a multiset becomes the one sequence that the sequence loss wants (Appendix F).

A rank function r orders the labels of a multiset so that :math:`r(s_i) \ge r(s_j)` for all :math:`j > i`: the
label of the highest rank comes first. Every function here takes labels (B, M) and gives the same labels in
their new order, padded with -1 at the end. It keeps the multiset; it only ever picks an order.

The order of the annotations decides where a rank does not: labels of equal rank stay as they were.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import can_look, check, check_float, check_labels

__all__ = ["area_rank", "class_permutation", "random_rank", "spatial_rank"]


def class_permutation(num_classes: int, generator: torch.Generator) -> Int64[Tensor, " c"]:
    """Draw the random rank function: a unique rank from 0 to C - 1 for each class.

    The paper draws one before training and keeps it. Drawing a new one for each batch is the variant of which
    the footnote of section 5.3 says that it is worse.

    Args:
        num_classes: C.
        generator: Where the randomness comes from.

    Returns:
        The rank of each class (C,).

    Example:
        >>> permutation = class_permutation(4, torch.Generator().manual_seed(0))
        >>> sorted(permutation.tolist())
        [0, 1, 2, 3]
    """
    check(num_classes >= 1, "num_classes", "at least 1", num_classes)
    return torch.randperm(num_classes, generator=generator, device=generator.device)


def random_rank(labels: Int64[Tensor, "b m"], permutation: Int64[Tensor, " c"]) -> Int64[Tensor, "b m"]:
    """Labels by decreasing rank of their class, with one rank function for all examples.

    Args:
        labels: Labels (B, M), negative where padded.
        permutation: The rank of each class (C,), as `class_permutation` draws it.

    Returns:
        The sequences (B, M), padded with -1 at the end.

    Example:
        >>> labels = torch.tensor([[0, 2, 1, 2], [1, 0, -1, -1]])
        >>> random_rank(labels, torch.tensor([1, 0, 2]))  # 2 before 0 before 1
        tensor([[ 2,  2,  0,  1],
                [ 0,  1, -1, -1]])
    """
    ok = permutation.ndim == 1 and permutation.dtype == torch.int64
    check(ok, "permutation", "an int64 tensor of shape (C,)", permutation)
    if can_look(permutation):
        ranks = permutation.tolist()
        check(len(set(ranks)) == len(ranks), "permutation", "a rank of its own for each class", ranks)
    check_labels("labels", labels, len(permutation), padding=True)
    return _sequence(labels, -permutation[labels.clamp(min=0)])


def area_rank(labels: Int64[Tensor, "b m"], areas: Float[Tensor, "b m"]) -> Int64[Tensor, "b m"]:
    """Labels by decreasing area of their object: the largest comes first.

    Args:
        labels: Labels (B, M), negative where padded.
        areas: Area of each label's object (B, M), of its pixels or of its box: ``boxes[..., 2:].prod(-1)``.

    Returns:
        The sequences (B, M), padded with -1 at the end.

    Example:
        >>> labels = torch.tensor([[5, 7, 7], [3, -1, -1]])
        >>> area_rank(labels, torch.tensor([[20.0, 10.0, 30.0], [1.0, 0.0, 0.0]]))
        tensor([[ 7,  5,  7],
                [ 3, -1, -1]])
    """
    _check_labels(labels)
    check_float("areas", areas, "(B, M)", like=tuple(labels.shape))
    return _sequence(labels, -areas)


def spatial_rank(
    labels: Int64[Tensor, "b m"], boxes: Float[Tensor, "b m 4"], *, bands: int, height: int | float
) -> Int64[Tensor, "b m"]:
    r"""Labels in reading order: band by band from the top, from left to right in each band.

    An object is in the band that holds its centre, :math:`\lfloor \mathrm{bands} \cdot y / \mathrm{height}
    \rfloor`. Bands are the lines of the page: without them, of two objects side by side the one that lies a
    pixel higher would come first. The formula of Appendix F.2 leaves pairs such as top right and bottom left
    open; bands, then x, then the order of the annotations decide all of them.

    Args:
        labels: Labels (B, M), negative where padded.
        boxes: x, y, width and height of each label's object (B, M, 4), x and y of its top left corner.
        bands: Number of bands of equal height that divide the input. With 1 only x counts.
        height: Height of the input, in the unit of the boxes.

    Returns:
        The sequences (B, M), padded with -1 at the end.

    Example:
        >>> labels = torch.tensor([[4, 8, 6]])
        >>> boxes = torch.tensor([[[60.0, 10, 20, 20], [0.0, 70, 30, 30], [10.0, 14, 20, 20]]])
        >>> spatial_rank(labels, boxes, bands=2, height=100)  # 6 and 4 share the upper band
        tensor([[6, 4, 8]])
    """
    check(bands >= 1, "bands", "at least 1", bands)
    check(height > 0, "height", "greater than 0", height)
    _check_labels(labels)
    check_float("boxes", boxes, "(B, M, 4)", like=(*labels.shape, 4))
    x, y = (boxes[..., :2] + boxes[..., 2:] / 2).unbind(-1)
    # A centre on the lower edge, or outside the input, belongs to the nearest band.
    band = (bands * y / height).floor().clamp(0, bands - 1)
    return _sequence(labels, band, x)


def _sequence(labels: Tensor, *keys: Tensor) -> Tensor:
    """Labels by ascending keys (B, M), the first key most important; padding last; ties as they were."""
    padding = labels < 0
    order = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
    # Stable sorts compose: sorting by the least important key first makes the order lexicographic.
    for key in reversed((padding.long(), *keys)):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return labels.masked_fill(padding, -1).gather(1, order)


def _check_labels(labels: Tensor) -> None:
    ok = labels.ndim == 2 and labels.dtype == torch.int64
    check(ok, "labels", "an int64 tensor of labels of shape (B, M)", labels)
