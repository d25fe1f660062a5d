"""Digits that a single pixel of an image identifies."""

from __future__ import annotations

import numpy as np

from torchmultiset.data.digits import DigitPools, Digits
from torchmultiset.data.examples import Examples


def flat_digits(values: range, labels: list[int] | None = None) -> Digits:
    """Digits of one grey level each, which resizing and cropping preserve, so that a pixel identifies its digit."""
    images = np.array(values, dtype=np.uint8)[:, None, None] * np.ones((28, 28), dtype=np.uint8)
    return Digits(images, np.array(labels or [i % 10 for i in range(len(values))]))


def flat_pools() -> DigitPools:
    """Digits of grey levels 1 to 50 for training, 101 to 150 for validation, 201 to 250 for test."""
    pools = (flat_digits(range(first, first + 50)) for first in (1, 101, 201))
    return DigitPools(*pools, name="flat")


def pixels(examples: Examples) -> np.ndarray:
    images = np.asarray(examples.inputs)
    assert images.dtype == np.uint8
    return images[:, 0]
