"""Resizing and pasting, compared with loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest

from torchmultiset.data._paste import cut, paste, resize


def plain_resize(image: np.ndarray, px: int) -> np.ndarray:
    """Bilinear interpolation between pixel centres, pixel by pixel in double precision."""
    old = len(image)

    def neighbours(i: int) -> list[tuple[int, float]]:
        centre = min(max((i + 0.5) * old / px - 0.5, 0), old - 1)
        low = int(centre)
        return [(low, 1 - (centre - low)), (min(low + 1, old - 1), centre - low)]

    return np.array(
        [
            [sum(wy * wx * float(image[y, x]) for y, wy in neighbours(i) for x, wx in neighbours(j)) for j in range(px)]
            for i in range(px)
        ]
    )


@pytest.mark.parametrize("px", [1, 5, 20, 27, 28, 29, 35, 50, 90])
def test_resizing_is_bilinear_up_to_rounding(px: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28), dtype=np.uint8)
    resized = resize(images, px)
    for image, ours in zip(images, resized, strict=True):
        # Rounding adds at most half a level, and weights in 256ths at most 2 * 255 / 512.
        assert np.abs(plain_resize(image, px) - ours).max() <= 1.5


def test_resizing_to_the_same_size_changes_nothing() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.testing.assert_array_equal(resize(images, 28), images)


@pytest.mark.parametrize("px", [3, 20, 33, 50])
def test_resizing_keeps_a_flat_image_flat(px: int) -> None:
    """The weights of each pixel sum to exactly 1, and the brightest value does not overflow."""
    images = np.array([1, 100, 254, 255], dtype=np.uint8)[:, None, None] * np.ones((28, 28), dtype=np.uint8)
    np.testing.assert_array_equal(resize(images, px), np.broadcast_to(images[:, :1, :1], (4, px, px)))


def test_resizing_is_exact_integer_arithmetic() -> None:
    """Integer arithmetic gives the same bytes, so results do not depend on the rounding of a machine."""
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    for px in (20, 37, 50):
        weights = np.zeros((px, 28), dtype=np.int64)
        for i in range(px):
            centre = min(max((2 * i + 1) * 28 - px, 0), 27 * 2 * px)
            low, rest = divmod(centre, 2 * px)
            share = (rest * 256 + px) // (2 * px)
            weights[i, low] += 256 - share
            weights[i, min(low + 1, 27)] += share
        exact = weights @ images.astype(np.int64) @ weights.T
        np.testing.assert_array_equal(resize(images, px), (exact + (1 << 15)) >> 16)


def test_cutting_and_pasting_equals_a_loop_over_pixels() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(0, 3, (6, 28, 28), dtype=np.uint8)
    canvas = rng.integers(10, 20, (4, 30, 30), dtype=np.uint8)
    digit, from_y, from_x = np.array([5, 0, 3]), np.array([0, 23, 7]), np.array([23, 0, 9])
    image, y, x = np.array([3, 0, 3]), np.array([25, 0, 3]), np.array([25, 4, 0])

    expected = canvas.copy()
    for k in range(3):
        for i in range(5):
            for j in range(5):
                pixel = source[digit[k], from_y[k] + i, from_x[k] + j]
                if pixel:
                    expected[image[k], y[k] + i, x[k] + j] = pixel

    paste(canvas, image, y, x, cut(source, digit, from_y, from_x, 5))
    np.testing.assert_array_equal(canvas, expected)
