"""Batched resizing, cropping and pasting of small images, such as digits."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["Scene", "cut", "paste", "paste_digits", "resize"]

_BLOCK_PIXELS = 1 << 18  # pixels processed at a time, which fit into the CPU cache


class Scene(NamedTuple):
    """Index into the pool, size and position of each digit of each image."""

    present: Bool[np.ndarray, "n m"]
    """Mask of the digits that are present; the other fields are meaningless where it is False."""
    digit: Int64[np.ndarray, "n m"]
    px: Int64[np.ndarray, "n m"]
    x: Int64[np.ndarray, "n m"]
    y: Int64[np.ndarray, "n m"]


def resize(images: UInt8[np.ndarray, "n h h"], px: int) -> UInt8[np.ndarray, "n px px"]:
    """Resize square images bilinearly, with pixel centres at half-integers, like OpenCV's INTER_LINEAR.

    The result is identical on every machine: the weights are multiples of 1/256, so every product and sum has at
    most 24 bits and is exact in float32, regardless of the summation order of the BLAS.

    Example:
        >>> resize(np.array([[[0, 200], [0, 200]]], dtype=np.uint8), 4)[0, 0]
        array([  0,  50, 150, 200], dtype=uint8)
    """
    weights = _bilinear(images.shape[-1], px)
    # One product per image is as fast as a single large one, and too small for BLAS to use several threads, which
    # would compete with the workers of a build for cores.
    resized = weights @ (images.astype(np.float32) @ weights.T)
    resized += np.float32(0.5)
    rounded: UInt8[np.ndarray, "n px px"] = resized.astype(np.uint8)
    return rounded


def cut(
    images: UInt8[np.ndarray, "n h w"],
    which: Int64[np.ndarray, "*k"],
    y: Int64[np.ndarray, "*k"],
    x: Int64[np.ndarray, "*k"],
    px: int,
) -> UInt8[np.ndarray, "*k px px"]:
    """Crop patches of `px` x `px` pixels from images `which`, with their upper left corners at (y, x)."""
    patches: UInt8[np.ndarray, "*k px px"] = sliding_window_view(images, (px, px), axis=(1, 2))[which, y, x]
    return patches


def paste(
    canvas: UInt8[np.ndarray, "n h w"],
    which: Int64[np.ndarray, " k"],
    y: Int64[np.ndarray, " k"],
    x: Int64[np.ndarray, " k"],
    patches: UInt8[np.ndarray, "k px px"],
) -> None:
    """Paste patches onto images `which` in place, with their upper left corners at (y, x); no two may overlap.

    Zeros in a patch are transparent.
    """
    windows = sliding_window_view(canvas, patches.shape[1:], axis=(1, 2), writeable=True)
    covered = windows[which, y, x]
    # Arithmetic, because masked copying takes five times as long.
    covered *= patches == 0
    covered += patches
    windows[which, y, x] = covered


def paste_digits(canvas: UInt8[np.ndarray, "n h h"], digits: UInt8[np.ndarray, "k d d"], scene: Scene) -> None:
    """Paste digits of a pool (K, d, d), resized, onto images (N, H, H) in place; no two digits may overlap."""
    image, slot = np.nonzero(scene.present)
    # Group digits of all images by size: one matrix resizes a whole group.
    order = np.argsort(scene.px[image, slot], kind="stable")
    image, slot = image[order], slot[order]
    px, starts = np.unique(scene.px[image, slot], return_index=True)
    for size, start, stop in zip(px.tolist(), starts, np.append(starts, len(order))[1:], strict=True):
        block = max(1, _BLOCK_PIXELS // size**2)
        for first in range(start, stop, block):
            which = image[first : min(first + block, stop)], slot[first : min(first + block, stop)]
            resized = resize(digits[scene.digit[which]], size)
            paste(canvas, which[0], scene.y[which], scene.x[which], resized)


@cache
def _bilinear(old: int, new: int) -> Float32[np.ndarray, "{new} {old}"]:
    """Return the weight of each old pixel in each new pixel, as multiples of 1/256."""
    # The centre of new pixel i lies at ((2i + 1) old - new) / (2 new), counted from the centre of old pixel 0.
    centre = np.clip((2 * np.arange(new) + 1) * old - new, 0, (old - 1) * 2 * new)
    before, rest = np.divmod(centre, 2 * new)
    share = (rest * 256 + new) // (2 * new)
    weights = np.zeros((new, old + 1), dtype=np.float32)
    weights[np.arange(new), before] = 256 - share
    weights[np.arange(new), before + 1] = share
    # The column after the last pixel only ever has weight 0.
    return np.ascontiguousarray(weights[:, :old]) / np.float32(256)
