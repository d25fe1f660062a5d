"""Figure of some examples, captioned with their multisets."""

from __future__ import annotations

import warnings
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

__all__ = ["PANEL_PX", "axes_at", "captions", "draw_preview", "pixels_of", "save_figure", "save_preview", "write_line"]

PANEL_PX = 240
"""Width and height of an example in the figure, in pixels."""

# Lengths in inches.
_DPI = 150
_PANEL = PANEL_PX / _DPI
_GAP = 0.14
_LINE = 0.14
_LINES = 4  # maximum lines of a caption; one more counts the remaining labels

_FONT = FontProperties(family="DejaVu Sans", size=8)  # ships with matplotlib
_SMALL_FONT = FontProperties(family="DejaVu Sans", size=6)
_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#b35900", "#c2185b")


def save_preview(examples: Examples, path: str | Path, *, number: int = 24, seed: int = 0, boxes: bool = False) -> int:
    """Save a figure of random examples as a PNG file.

    Args:
        examples: One split of a data set of images.
        path: Output file; an existing file is replaced.
        number: Maximum number of examples.
        seed: Random seed for selecting the examples.
        boxes: Whether to draw the bounding box of each object.

    Returns:
        The number of examples in the figure.

    Raises:
        ValueError: If there are no examples, the inputs are not images, or boxes are requested but unknown.
    """
    check(number >= 1, "number", "at least 1", number)
    if not len(examples):
        raise ValueError("there are no examples to draw, because the split is empty: choose another one")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(examples))[:number])
    save_figure(draw_preview(examples.subset(chosen), boxes=boxes), path)
    return len(chosen)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure as PNG without the software's version, so that equal figures have equal bytes.

    A character that the font lacks is drawn as a box, without a warning for each.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        write_whole(Path(path), partial(figure.savefig, format="png", metadata={"Software": None}))


def draw_preview(examples: Examples, *, boxes: bool = False) -> Figure:
    """Draw all of these examples in a grid, with captions below.

    Args:
        examples: Examples to draw; their inputs are images (H, W), (1, H, W) or (3, H, W).
        boxes: Whether to draw the bounding box of each object.

    Raises:
        ValueError: If the inputs are not images, or boxes are requested but unknown.
    """
    if examples.columns or examples.tokens is not None:
        kind = "rows of a table" if examples.columns else "texts, sets or sequences"
        raise ValueError(f"only images can be drawn, but these are {kind}: `multiset data describe` summarises them")
    if boxes and examples.boxes is None:
        raise ValueError("this data set has no bounding boxes: draw it without boxes")
    images = [pixels_of(image) for image in examples.inputs[np.arange(len(examples))]]
    texts = captions(examples.counts, examples.classes)
    columns = _columns(len(images))
    # In inches, from the upper left corner.
    wide, high = _PANEL + _GAP, _PANEL + max(map(len, texts)) * _LINE + _GAP
    width, height = columns * wide + _GAP, ceil(len(images) / columns) * high + _GAP
    figure = Figure(figsize=(width, height), dpi=_DPI)
    for i, (image, lines) in enumerate(zip(images, texts, strict=True)):
        x, y = _GAP + i % columns * wide, _GAP + i // columns * high
        axes = axes_at(figure, x, y, _PANEL, _PANEL)
        axes.set_axis_off()
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        if boxes and examples.boxes is not None:
            _draw_boxes(axes, examples.labels[i], examples.boxes[i], examples.classes)
        for n, line in enumerate(lines, start=1):
            write_line(figure, x, y + _PANEL + n * _LINE, line, _FONT)
    return figure


def axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Add axes without ticks at a position in inches from the upper left corner."""
    full_width, full_height = figure.get_size_inches()
    axes = figure.add_axes((x / full_width, 1 - (y + height) / full_height, width / full_width, height / full_height))
    axes.set(xticks=[], yticks=[])
    return axes


def write_line(figure: Figure, x: float, y: float, text: str, font: FontProperties, colour: str = "black") -> None:
    """Write one line of text at a position in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    # A class may be called $x$: never interpret names as mathematics.
    figure.text(x / width, 1 - y / height, text, fontproperties=font, color=colour, parse_math=False)


def captions(counts: Int64[np.ndarray, "n c"], classes: Sequence[str], *, width: float = _PANEL) -> list[list[str]]:
    """Format multisets as lines that fit under a panel: every label if one line each suffices, else with counts.

    Args:
        counts: Counts of each class (N, C).
        classes: Class names.
        width: Width of a line, in inches.

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
    """List each class once, with its count; labels beyond the last line are only counted."""
    lines: list[str] = []
    listed = 0
    for i, (name, count) in enumerate(items):
        comma = "," * (i < len(items) - 1)
        word = _fit(name, f" ×{count}" * (count > 1) + comma, width)  # noqa: RUF001  (the sign is meant)
        if lines and _width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        elif len(lines) < _LINES:
            lines.append(word)
        else:
            return [*lines, f"and {sum(count for _, count in items) - listed} more"]
        listed += count
    return lines


def _clean(name: str) -> str:
    """Collapse white space, so that the name fits on one line."""
    return " ".join(name.split())


def _fit(name: str, after: str, width: float) -> str:
    """Join a name and a suffix on one line, shortening the name if necessary."""
    shown = _clean(name)
    while len(shown) > 1 and _width(shown + after) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown + after


def _width(text: str) -> float:
    """Return the width of a text in inches."""
    points, _, _ = TextToPath().get_text_width_height_descent(text, _FONT, ismath=False)
    return points / 72


def pixels_of(image: Shaped[np.ndarray, "*input"]) -> UInt8[np.ndarray, "*pixels"]:
    """Convert an input to a grey (H, W) or colour (H, W, 3) image from 0 to 255."""
    channels = image.shape[0] if image.ndim == 3 else 1
    if image.ndim not in (2, 3) or channels not in (1, 3):
        raise ValueError(
            "only images can be drawn: inputs must have shape (height, width) or (1 or 3, height, width), but have "
            f"{image.shape}"
        )
    plane = image[0] if image.ndim == 3 and channels == 1 else image
    pixels = plane if plane.ndim == 2 else plane.transpose(1, 2, 0)
    if pixels.dtype == np.uint8:
        return pixels
    least, most = min(float(pixels.min()), 0.0), max(float(pixels.max()), 1.0)
    # The range of values beyond [0, 1] is unknown: scale them by their own range.
    return np.rint((pixels - least) / (most - least) * 255).astype(np.uint8)


def _columns(number: int) -> int:
    """Return the number of columns of a grid that is wider than high and has the fewest empty cells."""
    return min(range(ceil(sqrt(number)), ceil(sqrt(2 * number)) + 1), key=lambda columns: -number % columns)


def _draw_boxes(
    axes: Axes, labels: Int64[np.ndarray, " m"], boxes: Float[np.ndarray, "m 4"], classes: Sequence[str]
) -> None:
    # Assign colours per image: a data set may have more classes than there are distinguishable colours.
    present = dict(zip(np.unique(labels[labels >= 0]).tolist(), cycle(_COLOURS), strict=False))
    for label, (x, y, width, height) in zip(labels.tolist(), boxes.tolist(), strict=True):
        if label in present:
            corner = x - 0.5, y - 0.5  # pixel centres have integer coordinates
            axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=present[label], linewidth=1.2))
            axes.annotate(
                classes[label],
                corner,
                (1, -1),  # in points, right and down, so that the image's edge does not clip it
                textcoords="offset points",
                va="top",
                color="white",
                fontproperties=_SMALL_FONT,
                bbox={"facecolor": present[label], "edgecolor": "none", "pad": 0.8},
                annotation_clip=False,
                clip_on=True,
                parse_math=False,
            )
