"""Figures of predictions and of learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.viz.bars import draw_bars, input_names
from torchmultiset.viz.example import draw_example
from torchmultiset.viz.panels import BLUE, ORANGE, PALE, PLAIN, RIGHT, WRONG, Panel, shorten, shown_classes
from torchmultiset.viz.preview import axes_at, captions, pixels_of, save_figure, write_line

__all__ = ["choose", "draw_curve", "draw_predictions", "save_curve", "save_predictions"]

_DPI = 150
# In inches.
_IMAGE = 1.5
_BARS = 1.5
_GAP = 0.2
_LINE = 0.15
_TICKS = 0.14
_STEP = 0.2  # minimum height of a row of bars
_AT_LEAST = 0.12  # width of the count label of a row
_TITLE = 0.4  # room for the legend above the panels
_MARK = 0.3  # room in a caption for its tick or cross, and for bold type

_FONT = FontProperties(family="DejaVu Sans", size=8)  # ships with matplotlib
_BOLD = FontProperties(family="DejaVu Sans", size=8, weight="bold")
_SMALL = FontProperties(family="DejaVu Sans", size=5.5)
_STEPS = 10


def choose(right: Bool[Tensor, " n"], *, number: int = 16) -> list[int]:
    """Choose the first examples to show: correct ones, then wrong ones, a quarter of all if there are enough.

    Example:
        >>> import torch
        >>> choose(torch.tensor([True, False, True, True, True, False]), number=4)
        [0, 2, 3, 1]
    """
    good, bad = right.nonzero()[:, 0].tolist(), (~right).nonzero()[:, 0].tolist()
    wrong = min(len(bad), max(number // 4, number - len(good)))
    return good[: number - wrong] + bad[:wrong]


def save_predictions(
    panels: Sequence[Panel], classes: Sequence[str], path: str | Path, *, ids: Sequence[str] = ()
) -> None:
    """Save a figure as a PNG file: `draw_example` for one image, `draw_predictions` for several, else `draw_bars`.

    Args:
        panels: Inputs with their predictions, at least one.
        classes: Names of the classes.
        path: Output file.
        ids: Captions of inputs that are neither images nor text, at least as many.
    """
    check(len(panels) >= 1, "panels", "at least one", len(panels))
    shape = panels[0].image.shape
    if len(shape) == 3 and shape[0] in (1, 3):
        save_figure(draw_example(panels[0], classes) if len(panels) == 1 else draw_predictions(panels, classes), path)
        return
    names = [input_names(panel.image[None], [name])[0] for panel, name in zip(panels, ids, strict=False)]
    truths = [panel.truth for panel in panels if panel.truth is not None]
    truth = torch.from_numpy(np.stack(truths)) if len(truths) == len(panels) else None
    counts = torch.from_numpy(np.stack([panel.counts for panel in panels]))
    save_figure(draw_bars(names, counts, classes, truth=truth), path)


def draw_predictions(panels: Sequence[Panel], classes: Sequence[str]) -> Figure:
    """Draw each input with its prediction below, and the distribution over the labels at each step beside it.

    Correct predictions are green with a tick, wrong ones red with a cross and the truth below. The bar of the emitted
    label is blue. For a one-shot head, the rows are the probabilities of at least 1, 2, ... of each class, and the bars
    up to the predicted count are blue. If the head counts places of a map, and has counted any, they are drawn over the
    image in orange.
    """
    check(len(panels) >= 1, "panels", "at least one", len(panels))
    truths = [panel.counts if panel.truth is None else panel.truth for panel in panels]
    texts = captions(np.stack([*(panel.counts for panel in panels), *truths]), classes, width=_IMAGE - _MARK)
    predicted = texts[: len(panels)]
    true = [text if panel.right is False else [] for panel, text in zip(panels, texts[len(panels) :], strict=True)]
    names = [*classes, "END"]
    columns = min(len(panels), 4)
    under = 0.6 if _upright(names) else _TICKS  # height of the names under the last row of bars
    heights = [
        max(_IMAGE + (len(p) + len(t)) * _LINE, len(panel.probabilities[:_STEPS]) * _high(panel) + under)
        for panel, p, t in zip(panels, predicted, true, strict=True)
    ]
    rows = [max(heights[i : i + columns]) + _GAP for i in range(0, len(panels), columns)]
    wide = _IMAGE + 0.12 + _BARS + _GAP
    width, height = columns * wide + _GAP, sum(rows) + _GAP + _TITLE
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    _explain(figure, panels[0], columns)
    for i, panel in enumerate(panels):
        x, y = _GAP + i % columns * wide, _GAP + _TITLE + sum(rows[: i // columns])
        axes = axes_at(figure, x, y, _IMAGE, _IMAGE)
        pixels = pixels_of(panel.image)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
        if panel.places is not None and panel.counts.any():
            _counted(axes, panel.places, pixels.shape)
        colour = {True: RIGHT, False: WRONG, None: PLAIN}[panel.right]
        for side in axes.spines.values():
            side.set(color=colour, linewidth=2)
        _bars(figure, panel, names, x + _IMAGE + 0.12, y)
        mark = {True: "✓ ", False: "✗ ", None: ""}[panel.right]
        lines = [(line, colour, _BOLD) for line in (mark + predicted[i][0], *predicted[i][1:])]
        if true[i]:
            lines += [(line, PLAIN, _FONT) for line in ("true: " + true[i][0], *true[i][1:])]
        for n, (line, text_colour, font) in enumerate(lines, start=1):
            write_line(figure, x, y + _IMAGE + n * _LINE, line, font, text_colour)
    return figure


def save_curve(history: Sequence[Mapping[str, int | float]], path: str | Path, *, split: str = "validation") -> None:
    """Save the figure of `draw_curve` as a PNG file."""
    save_figure(draw_curve(history, split=split), path)


def draw_curve(history: Sequence[Mapping[str, int | float]], *, split: str = "validation") -> Figure:
    """Draw the training loss, and exact match and F1 on the validation data, after each epoch.

    Args:
        history: The lines of ``epochs.jsonl``.
        split: Name of the scored data in the title: "training" if the model was also trained on the validation data.
    """
    check(len(history) >= 1, "history", "at least one epoch", len(history))
    epochs = [line["epoch"] for line in history]
    figure = Figure(figsize=(8, 3.2), dpi=_DPI, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [line["loss"] for line in history], color=BLUE, marker="o", markersize=3)
    left.set(title="Training loss", xlabel="epoch", ylabel="loss")
    best = max(line["validation_em"] for line in history)
    scores = (("validation_em", RIGHT, f"exact match, best {best:.3f}"), ("validation_f1", PLAIN, "F1"))
    for name, colour, label in scores:
        values = [line[name] for line in history]
        right.plot(epochs, values, color=colour, marker="o", markersize=3, label=label)
    right.set(title=f"Scores on {split} data", xlabel="epoch", ylabel="score (0 to 1)", ylim=(0, 1.02))
    right.legend(loc="best", facecolor="white", edgecolor="none", framealpha=0.8)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)
    return figure


def _bars(figure: Figure, panel: Panel, names: Sequence[str], x: float, y: float) -> None:
    """Draw one row of bars per step, from top to bottom."""
    steps = panel.probabilities[:_STEPS]
    shown = shown_classes(steps, len(panel.counts))
    high = _high(panel)
    for t, probabilities in enumerate(steps):
        room = _AT_LEAST if panel.at_once else 0
        axes = axes_at(figure, x + room, y + t * high, _BARS - room, high * 0.82)
        colours = [BLUE if label in panel.chosen(t) else PALE for label in shown]
        axes.bar(range(len(shown)), probabilities[shown], color=colours, width=0.8)
        axes.set(ylim=(0, 1), xlim=(-0.6, len(shown) - 0.4))
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.spines["bottom"].set(color=PALE, linewidth=0.6)
        if panel.at_once and not panel.shares:
            axes.set_ylabel(f"≥{t + 1}", fontproperties=_SMALL, color=PLAIN, labelpad=1)
            axes.yaxis.label.set(rotation=0, ha="right", va="center")
        if t == len(steps) - 1:
            axes.set_xticks(range(len(shown)), [shorten(names[label], 12) for label in shown], fontproperties=_SMALL)
            axes.tick_params(axis="x", length=0, pad=1.5, rotation=90 if _upright(names) else 0, labelcolor=PLAIN)
            for label in axes.get_xticklabels():
                label.set_parse_math(False)


def _counted(axes: Axes, places: Float[np.ndarray, "h w"], shape: tuple[int, ...]) -> None:
    """Overlay an image with the places that were counted, in a transparent colour."""
    layer = np.broadcast_to(to_rgba(ORANGE), (*places.shape, 4)).copy()
    layer[..., 3] = 0.55 * places / max(float(places.max()), 1e-6)
    height, width = shape[:2]
    axes.imshow(layer, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")


def _explain(figure: Figure, panel: Panel, columns: int) -> None:
    """Draw a legend above the panels."""
    at_once = panel.at_once
    rows = "probability of at least 1, 2, ... of each label" if at_once else "probability of each label, step by step"
    rows = "share of each label" if panel.shares else rows
    chosen = "predicted" if at_once else "emitted"
    meanings = {BLUE: chosen, PALE: f"not {chosen}", RIGHT: "correct", WRONG: "wrong"}
    if panel.places is not None:
        meanings[ORANGE] = "places counted"
    handles = [Patch(color=colour, label=meaning) for colour, meaning in meanings.items()]
    legend = figure.legend(
        handles=handles,
        title=f"Bars: {rows}",
        loc="upper left",
        ncols=len(handles),
        frameon=False,
        fontsize=7,
        alignment="left",
    )
    legend.get_title().set_fontsize(7 if columns == 1 else 8)


def _upright(names: Sequence[str]) -> bool:
    """Return whether class names, except END, are too long to be written horizontally."""
    return max(map(len, names[:-1])) > 2


def _high(panel: Panel) -> float:
    """Return the height in inches of a row of bars, so that all fit beside the image if possible."""
    return max(_IMAGE / max(len(panel.probabilities[:_STEPS]), 4), _STEP)
