"""Resizing, cutting and pasting small pictures, many at once."""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Float32, Int64, UInt8
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["cut", "paste", "resize"]


def resize(images: UInt8[np.ndarray, "n h h"], px: int) -> UInt8[np.ndarray, "n px px"]:
    """Resize square images bilinearly, pixel centres at half-integers, as OpenCV's INTER_LINEAR does.

    The result is the same on every machine: the weights are multiples of 1/256, so that every product and sum
    has at most 24 bits and is exact in float32, in whatever order a BLAS adds up.

    Args:
        images: Images (N, h, h).
        px: New width and height.

    Example:
        >>> resize(np.array([[[0, 200], [0, 200]]], dtype=np.uint8), 4)[0, 0]
        array([  0,  50, 150, 200], dtype=uint8)
    """
    weights = _bilinear(images.shape[-1], px)
    # A product for each image rather than a large one for all: it is as fast, and too small for BLAS to spread it
    # over threads, which would wait for each other when the workers of a build each have a core.
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
    """Square patches of `px` pixels from images `which`, their upper left corners at (y, x)."""
    patches: UInt8[np.ndarray, "*k px px"] = sliding_window_view(images, (px, px), axis=(1, 2))[which, y, x]
    return patches


def paste(
    canvas: UInt8[np.ndarray, "n h w"],
    which: Int64[np.ndarray, " k"],
    y: Int64[np.ndarray, " k"],
    x: Int64[np.ndarray, " k"],
    patches: UInt8[np.ndarray, "k px px"],
) -> None:
    """Put patches over what is on the canvas, in place; where a patch is 0 it is transparent.

    Args:
        canvas: Images (N, H, W).
        which: Image of each patch.
        y: Row of its upper left corner.
        x: Column of its upper left corner.
        patches: Patches (K, px, px), no two of which may overlap.
    """
    windows = sliding_window_view(canvas, patches.shape[1:], axis=(1, 2), writeable=True)
    covered = windows[which, y, x]
    # Arithmetic, because copying under a mask takes five times as long.
    covered *= patches == 0
    covered += patches
    windows[which, y, x] = covered


@cache
def _bilinear(old: int, new: int) -> Float32[np.ndarray, "{new} {old}"]:
    """How much of each old pixel is in each new one, in whole numbers of 256ths."""
    # The centre of new pixel i lies at ((2i + 1) old - new) / (2 new), counted from the centre of old pixel 0.
    centre = np.clip((2 * np.arange(new) + 1) * old - new, 0, (old - 1) * 2 * new)
    before, rest = np.divmod(centre, 2 * new)
    share = (rest * 256 + new) // (2 * new)
    weights = np.zeros((new, old + 1), dtype=np.float32)
    weights[np.arange(new), before] = 256 - share
    weights[np.arange(new), before + 1] = share
    # Only a share of 0 can fall behind the last pixel.
    return np.ascontiguousarray(weights[:, :old]) / np.float32(256)
