"""Figure of the entropy of a policy and of the oracle at each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from torchmultiset.viz.panels import PALE, PLAIN
from torchmultiset.viz.preview import save_figure

__all__ = ["draw_oracle", "draw_path", "draw_policy", "save_entropy"]

_BLUE = "#0072b2"


def save_entropy(curves: Mapping[str, Any], path: str | Path) -> None:
    """Save the curves of `entropy_curves` as a PNG file: lines are means, bands cover 90% of the examples."""
    figure = Figure(figsize=(5, 3.8), dpi=150, layout="constrained", facecolor="white")
    axes = figure.subplots()
    draw_oracle(axes, curves, spread=True)
    draw_path(axes, curves)
    draw_policy(axes, curves, spread=True, label="policy", color=_BLUE)
    axes.set(xlabel="step", ylabel=f"entropy ({curves['unit']})")
    axes.set_ylim(bottom=-0.05)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_policy(axes: Axes, curves: Mapping[str, Any], *, spread: bool, **style: Any) -> None:
    """Draw the policy's curve, over classes."""
    _draw(axes, curves["policy"], curves["levels"] if spread else None, **style)


def draw_path(axes: Axes, curves: Mapping[str, Any]) -> None:
    """Draw the oracle's curve over classes along the policy's labels, the target of the multiset loss."""
    curve = curves["oracle_on_policy_path"]["classes"]
    _draw(axes, curve, None, label="oracle, classes, after the policy's labels", color=PLAIN, linestyle=":")


def draw_oracle(axes: Axes, curves: Mapping[str, Any], *, spread: bool) -> None:
    """Draw the oracle's curves over instances and over classes."""
    levels = curves["levels"] if spread else None
    _draw(axes, curves["oracle"]["instances"], levels, label="oracle, instances", color="black", linestyle="-")
    _draw(axes, curves["oracle"]["classes"], levels, label="oracle, classes", color=PLAIN, linestyle="--")


def _draw(axes: Axes, curve: Mapping[str, Any], levels: Sequence[float] | None, **style: Any) -> None:
    steps = range(1, len(curve["mean"]) + 1)
    axes.plot(steps, curve["mean"], linewidth=1.4, **style)
    if levels is not None:
        quantiles = np.array(curve["quantiles"])
        axes.fill_between(steps, quantiles[:, 0], quantiles[:, -1], color=style["color"], alpha=0.18, linewidth=0)
