"""Hints on how an image differs from the data that a model was trained on."""

from __future__ import annotations

import io

import numpy as np
from jaxtyping import Shaped
from PIL import Image

__all__ = ["hints"]

_ASPECT = 1.5  # minimum aspect ratio for a hint about padding
_SMALL = 0.5  # size relative to the model's input below which enlargement blurs an image
_CLEARLY = 60  # minimum difference in mean brightness for a hint


def hints(image: bytes, pixels: Shaped[np.ndarray, "c h w"], brightness: float | None) -> list[str]:
    """Return hints about an image as sentences.

    Args:
        image: Content of the image file.
        pixels: The image as the model sees it, from 0 to 255.
        brightness: Mean brightness of the training images, if known.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (300, 100), 255).save(file, "PNG")
        >>> hints(file.getvalue(), np.full((1, 100, 100), 85, dtype=np.uint8), brightness=None)
        ['The image is not square (300 x 100 pixels), so it was padded to 100 x 100.']
    """
    with Image.open(io.BytesIO(image)) as opened:
        width, height = opened.size
        mean = float(np.asarray(opened.convert("L")).mean())
    side, found = pixels.shape[-1], []
    if brightness is not None and abs(255 - mean - brightness) + _CLEARLY < abs(mean - brightness):
        known, this = ("dark", "light") if brightness < mean else ("light", "dark")
        found.append(f"The model was trained on images with a {known} background, but this one is {this}: invert it.")
    if max(width, height) >= _ASPECT * min(width, height):
        found.append(f"The image is not square ({width} x {height} pixels), so it was padded to {side} x {side}.")
    if max(width, height) < _SMALL * side:
        found.append(f"The image has only {width} x {height} pixels, and was enlarged to {side} x {side}.")
    return found
