"""Calibration figure: reliability diagram, and risk against coverage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchmultiset.viz.calibration import Calibration
from torchmultiset.viz.panels import BLUE, PALE, PLAIN
from torchmultiset.viz.preview import save_figure

__all__ = ["draw_calibration", "save_calibration"]


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Save the figure of `draw_calibration` as a PNG file."""
    save_figure(draw_calibration(calibration), path)


def draw_calibration(calibration: Calibration) -> Figure:
    """Draw the reliability diagram and the risk-coverage curve side by side.

    Reliability: exact match of each confidence bin, with 95% intervals; the dashed line is perfect calibration, the
    bars are the fraction of the examples in each bin. Risk against coverage: error rate when only the most confident
    predictions are answered; the dashed line is the error rate of all.
    """
    figure = Figure(figsize=(8, 3.8), dpi=150, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    _draw_reliability(left, calibration)
    _draw_risk(right, calibration)
    for axes in (left, right):
        axes.legend(loc="upper left", frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=PALE, linewidth=0.5, alpha=0.6)
    return figure


def _draw_reliability(axes: Axes, calibration: Calibration) -> None:
    for part in calibration.bins:
        label = "fraction of examples" if part is calibration.bins[0] else None
        width = part.high - part.low
        axes.bar(
            part.low + width / 2, part.examples / calibration.examples, 0.9 * width, color=PALE, alpha=0.6, label=label
        )
    axes.plot([0, 1], [0, 1], color=PLAIN, linewidth=1, linestyle="--", label="calibrated")
    found = [part.exact_match for part in calibration.bins]
    reach = np.abs(np.array([part.interval for part in calibration.bins]).T - found)
    means = [part.confidence for part in calibration.bins]
    axes.errorbar(means, found, yerr=reach, color=BLUE, marker="o", markersize=4, capsize=2, label="exact match")
    axes.set_title(f"Reliability (expected calibration error {calibration.error:.3f})", fontsize=10)
    axes.set(xlabel="confidence", ylabel="exact match", xlim=(0, 1.02), ylim=(0, 1.02))


def _draw_risk(axes: Axes, calibration: Calibration) -> None:
    coverage, risk = zip(*calibration.curve, strict=True)
    axes.plot(coverage, risk, color=BLUE, label="most confident answers")
    axes.axhline(1 - calibration.exact_match, color=PLAIN, linewidth=1, linestyle="--", label="all answers")
    top = max(*risk, 1 - calibration.exact_match, 0.01)
    axes.set_title(f"Risk against coverage (area {calibration.area:.3f})", fontsize=10)
    axes.set(xlabel="coverage", ylabel="risk (error rate of the answers)", xlim=(0, 1.02), ylim=(0, 1.3 * top))
