"""A picture of some examples, each with its multiset as a caption."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64, Shaped, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextToPath

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.data.examples import Examples

__all__ = ["PANEL_PX", "captions", "draw", "pixels_of", "save_figure", "save_preview"]

PANEL_PX = 240
"""Width and height of an example in the picture."""

# In inches, at so many pixels per inch.
_DPI = 150
_PANEL = PANEL_PX / _DPI
_GAP = 0.14
_LINE = 0.14
_LINES = 4  # of a caption, and one to say how many more labels there are

_FONT = FontProperties(family="DejaVu Sans", size=8)  # matplotlib brings it along
_SMALL_FONT = FontProperties(family="DejaVu Sans", size=6)
_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#b35900", "#c2185b")


def save_preview(examples: Examples, path: str | Path, *, number: int = 24, seed: int = 0, boxes: bool = False) -> int:
    """Draw some examples into a PNG file.

    Args:
        examples: One split of a data set of images.
        path: The file; it is replaced if it is there.
        number: How many examples at most; they are drawn by chance.
        seed: Another number draws other examples.
        boxes: Whether the box of each label's object is drawn.

    Returns:
        How many examples the picture shows.

    Raises:
        ValueError: If there are no examples, their inputs are no images, or boxes are asked for and not known.
    """
    check(number >= 1, "number", "at least 1", number)
    if not len(examples):
        raise ValueError("there are no examples to draw: the split is empty, choose another one")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(examples))[:number])
    save_figure(draw(examples.subset(chosen), boxes=boxes), path)
    return len(chosen)


def save_figure(figure: Figure, path: str | Path) -> None:
    """As a PNG file without the name of the software, so that the same picture has the same bytes."""
    write_whole(Path(path), partial(figure.savefig, format="png", metadata={"Software": None}))


def draw(examples: Examples, *, boxes: bool = False) -> Figure:
    """All of these examples in a grid, with captions below.

    Args:
        examples: Few enough for a picture; their inputs are images (H, W), (1, H, W) or (3, H, W).
        boxes: Whether the box of each label's object is drawn.
    """
    if boxes and examples.boxes is None:
        raise ValueError("the boxes of the objects are not known in this data set, so they cannot be drawn")
    images = [pixels_of(image) for image in examples.inputs[np.arange(len(examples))]]
    texts = captions(examples.counts, examples.classes)
    columns = _columns(len(images))
    # In inches, from the upper left corner.
    wide, high = _PANEL + _GAP, _PANEL + max(map(len, texts)) * _LINE + _GAP
    width, height = columns * wide + _GAP, ceil(len(images) / columns) * high + _GAP
    figure = Figure(figsize=(width, height), dpi=_DPI)
    for i, (image, lines) in enumerate(zip(images, texts, strict=True)):
        x, y = _GAP + i % columns * wide, _GAP + i // columns * high + _PANEL
        axes = figure.add_axes((x / width, 1 - y / height, _PANEL / width, _PANEL / height))
        axes.set_axis_off()
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        if boxes and examples.boxes is not None:
            _draw_boxes(axes, examples.labels[i], examples.boxes[i], examples.classes)
        for n, line in enumerate(lines, start=1):
            # A class may be called $x$: nothing in a name is mathematics.
            figure.text(x / width, 1 - (y + n * _LINE) / height, line, fontproperties=_FONT, parse_math=False)
    return figure


def captions(counts: Int64[np.ndarray, "n c"], classes: Sequence[str], *, width: float = _PANEL) -> list[list[str]]:
    """Multisets in words, in lines that fit under a panel: all labels one by one, if that takes only a line.

    Args:
        counts: How many of each class (N, C).
        classes: Their names.
        width: Of a line, in inches.

    Returns:
        The lines of each caption.

    Example:
        >>> captions(np.array([[2, 1], [0, 0]]), ["cat", "dog"])
        [['cat, cat, dog'], ['(nothing)']]
        >>> captions(np.array([[20, 1], [0, 2]]), ["cat", "dog"])
        [['cat ×20, dog'], ['dog ×2']]
    """  # noqa: RUF002  (the sign is meant)
    items = [[(classes[i], int(row[i])) for i in np.flatnonzero(row).tolist()] for row in counts]
    listed = [", ".join(_clean(name) for name, count in row for _ in range(count)) for row in items]
    if all(_width(line) <= width for line in listed):
        return [[line or "(nothing)"] for line in listed]
    return [_lines(row, width) or ["(nothing)"] for row in items]


def _lines(items: Sequence[tuple[str, int]], width: float) -> list[str]:
    """Each class once, with its count; what takes too many lines is only counted."""
    lines: list[str] = []
    told = 0
    for i, (name, count) in enumerate(items):
        comma = "," * (i < len(items) - 1)
        word = _fit(name, f" ×{count}" * (count > 1) + comma, width)  # noqa: RUF001  (the sign is meant)
        if lines and _width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        elif len(lines) < _LINES:
            lines.append(word)
        else:
            return [*lines, f"and {sum(count for _, count in items) - told} more"]
        told += count
    return lines


def _clean(name: str) -> str:
    """On one line, whatever white space it holds."""
    return " ".join(name.split())


def _fit(name: str, after: str, width: float) -> str:
    """A name and what follows it on one line, the name cut if it must be."""
    shown = _clean(name)
    while len(shown) > 1 and _width(shown + after) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown + after


def _width(text: str) -> float:
    """In inches."""
    points, _, _ = TextToPath().get_text_width_height_descent(text, _FONT, ismath=False)
    return points / 72


def pixels_of(image: Shaped[np.ndarray, "*input"]) -> UInt8[np.ndarray, "*pixels"]:
    """An input as grey (H, W) or colour (H, W, 3) from 0 to 255."""
    channels = image.shape[0] if image.ndim == 3 else 1
    if image.ndim not in (2, 3) or channels not in (1, 3):
        raise ValueError(
            f"only images can be drawn, of shape (height, width) or (1 or 3, height, width), but the inputs of this "
            f"data set have shape {image.shape}"
        )
    plane = image[0] if image.ndim == 3 and channels == 1 else image
    pixels = plane if plane.ndim == 2 else plane.transpose(1, 2, 0)
    if pixels.dtype == np.uint8:
        return pixels
    least, most = min(float(pixels.min()), 0.0), max(float(pixels.max()), 1.0)
    # Numbers beyond [0, 1] have a range that is not known: their own is shown.
    return np.rint((pixels - least) / (most - least) * 255).astype(np.uint8)


def _columns(number: int) -> int:
    """Of a grid somewhat wider than high, with as few empty places as there can be."""
    return min(range(ceil(sqrt(number)), ceil(sqrt(2 * number)) + 1), key=lambda columns: -number % columns)


def _draw_boxes(
    axes: Axes, labels: Int64[np.ndarray, " m"], boxes: Float[np.ndarray, "m 4"], classes: Sequence[str]
) -> None:
    # A colour for each class of this image: a data set has more classes than there are colours to tell apart.
    present = dict(zip(np.unique(labels[labels >= 0]).tolist(), cycle(_COLOURS), strict=False))
    for label, (x, y, width, height) in zip(labels.tolist(), boxes.tolist(), strict=True):
        if label in present:
            corner = x - 0.5, y - 0.5  # pixels have their centres at whole numbers
            axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=present[label], linewidth=1.2))
            axes.annotate(
                classes[label],
                corner,
                (1, -1),  # points to the right and down, so that an edge of the image cuts nothing off
                textcoords="offset points",
                va="top",
                color="white",
                fontproperties=_SMALL_FONT,
                bbox={"facecolor": present[label], "edgecolor": "none", "pad": 0.8},
                annotation_clip=False,
                clip_on=True,
                parse_math=False,
            )
