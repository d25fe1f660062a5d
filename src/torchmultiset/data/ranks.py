r"""Rank functions, which turn a multiset into the target sequence of the sequence loss (Appendix F).

A rank function r orders the labels of a multiset so that :math:`r(s_i) \ge r(s_j)` for all :math:`j > i`: the
label of the highest rank comes first. Every function here takes labels (B, M) and returns the same labels in
their new order, padded with -1 at the end.

Sorting is stable: labels of equal rank keep the order of the annotations.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import can_look, check, check_float, check_labels

__all__ = ["area_rank", "class_permutation", "random_rank", "spatial_rank"]


def class_permutation(num_classes: int, generator: torch.Generator) -> Int64[Tensor, " c"]:
    """Draw a random rank function: a unique rank from 0 to C - 1 for each class.

    The paper draws it once, before training. The footnote of section 5.3 reports that drawing a new one for each
    batch is worse.

    Example:
        >>> permutation = class_permutation(4, torch.Generator().manual_seed(0))
        >>> sorted(permutation.tolist())
        [0, 1, 2, 3]
    """
    check(num_classes >= 1, "num_classes", "at least 1", num_classes)
    return torch.randperm(num_classes, generator=generator, device=generator.device)


def random_rank(labels: Int64[Tensor, "b m"], permutation: Int64[Tensor, " c"]) -> Int64[Tensor, "b m"]:
    """Sort labels by decreasing rank of their class, with one rank function for all examples.

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
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"permutation must have a unique rank for each class, but is {ranks}")
    check_labels("labels", labels, len(permutation), padding=True)
    return _sequence(labels, -permutation[labels.clamp(min=0)])


def area_rank(labels: Int64[Tensor, "b m"], areas: Float[Tensor, "b m"]) -> Int64[Tensor, "b m"]:
    """Sort labels by decreasing area of their object.

    Args:
        labels: Labels (B, M), negative where padded.
        areas: Area of each label's object (B, M), from its mask or its box: ``boxes[..., 2:].prod(-1)``.

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
    r"""Sort labels in reading order: bands from top to bottom, objects from left to right within each band.

    An object is in the band that contains its centre, :math:`\lfloor \mathrm{bands} \cdot y / \mathrm{height}
    \rfloor`. Bands correspond to lines of text: without them, a difference of one pixel in height would decide the
    order of two objects side by side. The formula of Appendix F.2 does not order pairs such as top right and bottom
    left; here the band, then x, then the order of the annotations determine the order.

    Args:
        labels: Labels (B, M), negative where padded.
        boxes: x, y, width and height of each label's object (B, M, 4), where (x, y) is the upper left corner.
        bands: Number of bands of equal height that divide the input. With 1, only x matters.
        height: Height of the input, in the unit of the boxes.

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
    # A centre on the lower edge or outside the input is assigned to the nearest band.
    band = (bands * y / height).floor().clamp(0, bands - 1)
    return _sequence(labels, band, x)


def _sequence(labels: Tensor, *keys: Tensor) -> Tensor:
    """Sort labels stably by ascending keys (B, M), the first key most significant, with padding last."""
    padding = labels < 0
    order = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
    # Stable sorts compose: sorting by the least significant key first gives a lexicographic order.
    for key in reversed((padding.long(), *keys)):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return labels.masked_fill(padding, -1).gather(1, order)


def _check_labels(labels: Tensor) -> None:
    ok = labels.ndim == 2 and labels.dtype == torch.int64
    check(ok, "labels", "an int64 tensor of labels of shape (B, M)", labels)
