"""Test images with the predictions of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from paper.figures import Plot
from paper.records import CellRun
from torchmultiset.data.examples import Examples
from torchmultiset.viz.figures import choose
from torchmultiset.viz.panels import PLAIN, RIGHT, WRONG
from torchmultiset.viz.preview import axes_at, captions, pixels_of, write_line

__all__ = ["draw_gallery", "galleries"]

# In inches.
_IMAGE = 1.8
_GAP = 0.2
_LINE = 0.15
_COLUMNS = 4
_NUMBER = 8

_FONT = FontProperties(family="DejaVu Sans", size=7.5)
_MAIN = {"table-3", "beyond"}  # main tables: one row for each objective


def galleries(runs: Sequence[CellRun], data: Mapping[str, Examples]) -> list[Plot]:
    """Draw a figure for each data set whose test images are available.

    Args:
        runs: From `read_runs`; the first seed of each method is shown. Where a data set is in a main table, methods of
            other tables are left out.
        data: Data set -> its test examples. A data set with other examples than the runs were tested on is left out.
    """
    drawn = []
    for data_set, examples in data.items():
        shown: dict[str, CellRun] = {}
        done = [run for run in runs if run.data_set == data_set and run.has_predictions("test")]
        main = [run for run in done if not _MAIN.isdisjoint(run.tables)]
        for run in sorted(main or done, key=lambda run: run.seed):
            shown.setdefault(run.method, run)
        if not shown:
            continue
        ordered = [shown[method] for method in dict.fromkeys(run.method for run in runs) if method in shown]
        if not np.array_equal(ordered[0].predictions("test")[1], examples.counts):
            continue
        predicted = {run.method: run.predictions("test")[0] for run in ordered}
        first = ordered[0].method
        caption = (
            f"{data_set}: the first test images that {first} gets right, and the first that it gets wrong, and what"
            " each method predicts."
        )
        drawn.append(Plot(f"examples-{data_set}", data_set, caption, draw_gallery(examples, predicted)))
    return drawn


def draw_gallery(examples: Examples, predicted: Mapping[str, UInt8[np.ndarray, "n c"]]) -> Figure:
    """Draw some images with their true multisets, and below them a tick or the wrong prediction of each method.

    Args:
        examples: Examples with images (H, W), (1, H, W) or (3, H, W).
        predicted: Method -> counts (N, C). Examples are chosen by the first method.
    """
    truth = examples.counts
    right = {method: (counts == truth).all(1) for method, counts in predicted.items()}
    chosen = choose(torch.from_numpy(next(iter(right.values()))), number=_NUMBER)
    images = examples.inputs[np.array(chosen)]
    texts = [_lines(examples, predicted, right, i) for i in chosen]
    columns = min(len(chosen), _COLUMNS)
    wide, high = _IMAGE + _GAP, _IMAGE + (max(map(len, texts)) + 1) * _LINE + _GAP
    width, height = columns * wide + _GAP, -(-len(chosen) // columns) * high + _GAP
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    for i, (image, lines) in enumerate(zip(images, texts, strict=True)):
        x, y = _GAP + i % columns * wide, _GAP + i // columns * high
        axes_at(figure, x, y, _IMAGE, _IMAGE).imshow(pixels_of(image), cmap="gray", vmin=0, vmax=255)
        for n, (line, colour) in enumerate(lines, start=1):
            write_line(figure, x, y + _IMAGE + n * _LINE, line, _FONT, colour)
    return figure


def _lines(
    examples: Examples,
    predicted: Mapping[str, UInt8[np.ndarray, "n c"]],
    right: Mapping[str, np.ndarray],
    i: int,
) -> list[tuple[str, str]]:
    lines = [(line, "black") for line in captions(examples.counts[i : i + 1], examples.classes)[0]]
    for method, counts in predicted.items():
        if right[method][i]:
            lines.append((f"✓ {method}", RIGHT))
        else:
            wrong = captions(counts[i : i + 1].astype(np.int64), examples.classes)[0]
            lines += [(f"✗ {method}:", WRONG), *((f"    {line}", PLAIN) for line in wrong)]
    return lines
