"""Boxes and areas of the labels of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from torchmultiset.data._records import Record

__all__ = ["areas_of", "boxes_of"]


def boxes_of(
    records: Sequence[Record], labels: Int64[np.ndarray, "n m"], paths: list[Path], image_size: int, exif: bool
) -> Float32[np.ndarray, "n m 4"] | None:
    """Return the boxes (N, M, 4) in pixels of the inputs, or None."""
    if all(record.boxes is None for record in records):
        return None
    known = labels >= 0
    placed = np.array([box for record in records for box in record.boxes or ()]).reshape(-1, 4)
    if records[0].kind == "image":
        from torchmultiset.data.images import image_sizes, place_boxes

        sizes = image_sizes(paths, exif=exif)[known.nonzero()[0]]
        placed = place_boxes(placed, sizes, sizes, image_size)
    boxes = np.zeros((*labels.shape, 4), dtype=np.float32)
    boxes[known] = placed
    return boxes


def areas_of(
    records: Sequence[Record], labels: Int64[np.ndarray, "n m"], boxes: Float32[np.ndarray, "n m 4"] | None
) -> Float32[np.ndarray, "n m"] | None:
    """Return the given areas (N, M), else those of the boxes, or None."""
    if all(record.areas is None for record in records):
        return None if boxes is None else boxes[..., 2:].prod(-1)
    areas = np.zeros(labels.shape, dtype=np.float32)
    areas[labels >= 0] = [area for record in records for area in record.areas or ()]
    return areas
