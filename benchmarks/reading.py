"""Reading large photographs: JPEG files are decoded at a lower resolution, if that is enough."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.timing import interleaved
from torchmultiset.data.images import read_image, square_pixels

SIDES = (4000, 3000)
"""Width and height of a photograph of 12 megapixels."""
SIZES = (256, 320, 448)
"""Sides of the squares that networks read."""


def measure_all() -> list[dict[str, float]]:
    """Time the decoding of one photograph at several sizes, with and without the lower resolution."""
    coarse = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "photograph.jpg")
        Image.fromarray(coarse).resize(SIDES, Image.Resampling.BICUBIC).save(path, quality=92)

        def whole(size: int) -> object:
            with Image.open(path) as image:
                image.load()
                return square_pixels(image, size)

        return [
            {
                "size": size,
                **interleaved({"whole": partial(whole, size), "ours": partial(read_image, path, size)}, repeats=9),
            }
            for size in SIZES
        ]
