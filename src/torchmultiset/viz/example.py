"""Annotated figure of one prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from torchmultiset.model.outputs import by_name
from torchmultiset.viz.panels import BLUE, PALE, PLAIN, RIGHT, WRONG, Panel, shown_classes
from torchmultiset.viz.preview import pixels_of
from torchmultiset.viz.scores import in_words

__all__ = ["draw_example"]

_STEPS = 10


def draw_example(panel: Panel, classes: Sequence[str]) -> Figure:
    """Draw one input, the distribution behind each part of its prediction, and the answer, with a legend."""
    steps = panel.probabilities[:_STEPS]
    names = [*classes, "END"]
    shown = shown_classes(steps, len(classes))
    height = max(3.4, 1.3 + 0.55 * len(steps))
    figure = Figure(figsize=(8, height), dpi=150, facecolor="white", layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5), squeeze=False)[0]
    picture = left.subplots()
    picture.imshow(pixels_of(panel.image), cmap="gray", vmin=0, vmax=255)
    picture.set(xticks=[], yticks=[])
    picture.set_title("Input", fontsize=10)
    colour = {True: RIGHT, False: WRONG, None: PLAIN}[panel.right]
    lines = [f"Prediction: {in_words(by_name(panel.counts.tolist(), classes))}"]
    if panel.truth is not None:
        truth = in_words(by_name(panel.truth.tolist(), classes))
        lines.append("✓ correct" if panel.right else f"✗ the truth is: {truth}")
    label = picture.set_xlabel("\n".join(lines), fontsize=10, color=colour, fontweight="bold")
    label.set_parse_math(False)
    rows = right.subplots(len(steps), 1, squeeze=False, sharex=True)[:, 0]
    head = "Probability of at least 1, 2, ... of each label" if panel.at_once else "Probability of the next label"
    head = "Share of each label" if panel.shares else head
    rows[0].set_title(head, fontsize=10)
    for t, (axes, row) in enumerate(zip(rows, steps, strict=True)):
        _draw_row(axes, panel, t, row[shown], shown, names)
    rows[-1].set_xticks(range(len(shown)), [names[label] for label in shown], fontsize=8, parse_math=False)
    if max(len(names[label]) for label in shown) > 3:
        rows[-1].tick_params(axis="x", rotation=45)
    chosen, other = ("predicted", "not predicted") if panel.at_once else ("emitted label", "other labels")
    handles = [Patch(color=BLUE, label=chosen), Patch(color=PALE, label=other)]
    right.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_row(axes: Axes, panel: Panel, t: int, row: np.ndarray, shown: Sequence[int], names: Sequence[str]) -> None:
    emitted = panel.chosen(t)
    axes.bar(range(len(shown)), row, color=[BLUE if label in emitted else PALE for label in shown], width=0.75)
    axes.set(ylim=(0, 1.3), yticks=[0, 1])
    axes.tick_params(labelsize=7, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    for x, (label, p) in enumerate(zip(shown, row, strict=True)):
        if label in emitted:
            axes.annotate(f"{p:.0%}", (x, min(float(p), 1.0)), ha="center", va="bottom", fontsize=7, color=BLUE)
    text = "" if panel.shares else f"{t + 1} or more" if panel.at_once else f"step {t + 1}"
    if not panel.at_once and len(emitted) == 1:
        text += f":\n{names[next(iter(emitted))]}"
    title = axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8, color=PLAIN)
    title.set_parse_math(False)
