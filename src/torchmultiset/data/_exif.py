"""EXIF orientation of boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64
from PIL import ExifTags, Image

__all__ = ["upright_boxes"]

# EXIF orientation -> flip horizontally, flip vertically, then transpose.
_TURNS = {
    2: (True, False, False),
    3: (True, True, False),
    4: (False, True, False),
    5: (False, False, True),
    6: (False, True, True),
    7: (True, True, True),
    8: (True, False, True),
}


def upright_boxes(
    boxes: Float64[np.ndarray, "m 4"], size: Int64[np.ndarray, " 2"], image: Path
) -> Float64[np.ndarray, "m 4"]:
    """Transform boxes (M, 4) from the pixels as stored, of this width and height, to the image after EXIF rotation."""
    with Image.open(image) as opened:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
    *mirrored, transposed = _TURNS.get(orientation, (False, False, False))
    corner, extent = boxes[:, :2], boxes[:, 2:]
    corner = np.where(mirrored, size - corner - extent, corner)
    order = [1, 0] if transposed else [0, 1]
    return np.concatenate([corner[:, order], extent[:, order]], axis=1)
