"""Digits that can be recognised in an image by a single pixel."""

from __future__ import annotations

import numpy as np

from torchmultiset.data.digits import DigitPools, Digits
from torchmultiset.data.examples import Examples


def flat_digits(values: range, labels: list[int] | None = None) -> Digits:
    """Digits of one grey level each: resized or cut, they keep it, so a pixel tells which digit it is from."""
    images = np.array(values, dtype=np.uint8)[:, None, None] * np.ones((28, 28), dtype=np.uint8)
    return Digits(images, np.array(labels or [i % 10 for i in range(len(values))]))


def flat_pools() -> DigitPools:
    """Grey levels 1 to 50 are for training, 101 to 150 for validation, 201 to 250 for test."""
    pools = (flat_digits(range(first, first + 50)) for first in (1, 101, 201))
    return DigitPools(*pools, name="flat")


def pixels(examples: Examples) -> np.ndarray:
    images = np.asarray(examples.inputs)
    assert images.dtype == np.uint8
    return images[:, 0]
