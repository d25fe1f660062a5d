"""Boxes and areas of the labels of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from torchmultiset.data._records import Record

__all__ = ["boxes_and_areas"]


def boxes_and_areas(
    records: Sequence[Record], labels: Int64[np.ndarray, "n m"], paths: list[Path], image_size: int, exif: bool
) -> tuple[Float32[np.ndarray, "n m 4"] | None, Float32[np.ndarray, "n m"] | None]:
    """Return the boxes (N, M, 4) in pixels of the inputs, and the areas (N, M): as given, or else those of the boxes.

    Both are None if no record has boxes or areas.
    """
    known = labels >= 0
    boxes = areas = None
    if any(record.boxes is not None for record in records):
        placed = np.array([box for record in records for box in record.boxes or ()]).reshape(-1, 4)
        if records[0].kind == "image":
            from torchmultiset.data.images import image_sizes, place_boxes

            sizes = image_sizes(paths, exif=exif)[known.nonzero()[0]]
            placed = place_boxes(placed, sizes, sizes, image_size)
        boxes = np.zeros((*labels.shape, 4), dtype=np.float32)
        boxes[known] = placed
        areas = boxes[..., 2:].prod(-1)
    if any(record.areas is not None for record in records):
        areas = np.zeros(labels.shape, dtype=np.float32)
        areas[known] = [area for record in records for area in record.areas or ()]
    return boxes, areas
