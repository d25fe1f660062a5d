"""Figures of predictions for inputs that are not images: bars of counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, Shaped
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.data.tokens import START
from torchmultiset.viz.panels import BLUE, PALE, RIGHT, WRONG, shorten

__all__ = ["draw_bars", "input_names"]

_COLUMNS = 4
_CLASSES = 12  # maximum number of bars of a panel
_NAME = 30  # characters of a caption
_NAMES = 36  # characters of all class names of a panel
_SLOTS = 3  # minimum width of a panel, in classes


def input_names(inputs: Shaped[np.ndarray, "b ..."], ids: Sequence[str]) -> list[str]:
    """Return a caption for each input: the beginning of a text, else its id.

    Args:
        inputs: A batch of inputs; text is encoded as in `data.tokens`.
        ids: Their identifiers.
    """
    if inputs.ndim != 3 or not (inputs[:, 0, 0] == START).all():
        return [*ids]
    return [bytes((row[row > 0] - 1).astype(np.uint8)).decode(errors="replace") for row in inputs[:, 1:, 0]]


def draw_bars(
    names: Sequence[str],
    counts: Int64[Tensor, "b c"],
    classes: Sequence[str],
    *,
    truth: Int64[Tensor, "b c"] | None = None,
) -> Figure:
    """Draw the predicted count of each class as a bar, beside the true one if it is known.

    Correct predictions are green with a tick, wrong ones red with a cross; true counts are grey. A panel shows the
    classes that occur in it, the most frequent ones if there are more than 12. A legend is above the panels.

    Args:
        names: Captions of the inputs, at least one.
        counts: Predicted counts (B, C).
        classes: Names of the classes.
        truth: True counts (B, C), if known.
    """
    check(len(names) == len(counts) >= 1, "names", f"{len(counts)} of them, at least one", len(names))
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows + 0.3), dpi=150, layout="constrained")
    meanings = {BLUE: "predicted"}
    if truth is not None:
        meanings = {RIGHT: "predicted, correct", WRONG: "predicted, wrong", PALE: "true"}
    handles = [Patch(color=colour, label=meaning) for colour, meaning in meanings.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=1 if columns == 1 else 3, frameon=False, fontsize=7)
    for i, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, i + 1)
        true = None if truth is None else truth[i]
        either = counts[i] if true is None else counts[i] + true
        shown = [c for c in either.argsort(descending=True, stable=True).tolist() if either[c] > 0][:_CLASSES]
        shown = sorted(shown) or [0]
        right = true is None or bool((counts[i] == true).all())
        colour = BLUE if true is None else RIGHT if right else WRONG
        place, width = np.arange(len(shown)), 0.8 if true is None else 0.4
        axes.bar(place, counts[i][shown].numpy(), width, color=colour)
        if true is not None:
            axes.bar(place + width, true[shown].numpy(), width, color=PALE)
        most = max(_NAMES // max(len(shown), _SLOTS), 8)
        middle = 0 if true is None else width / 2
        axes.set_xticks(place + middle, [shorten(classes[c], most) for c in shown], fontsize=6)
        axes.set_xlim(middle - 0.6, middle + max(len(shown), _SLOTS) - 0.4)
        axes.spines[["top", "right"]].set_visible(False)
        if i % columns == 0:
            axes.set_ylabel("count", fontsize=6)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(axis="y", labelsize=6)
        mark = "" if true is None else "✓ " if right else "✗ "
        # A dollar sign would begin a formula.
        axes.set_title(mark + shorten(name, _NAME).replace("$", r"\$"), fontsize=7, color=colour)
    return figure
