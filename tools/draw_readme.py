"""Draw the picture of the README: ``python tools/draw_readme.py [OUT.png]``, about two minutes of processor time.

Generates the images and the table of benchmarks/own_data.py, trains one model on each with ``multiset train``, and
draws the prediction for one test example of each.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "readme.png"
INK, PALE, LINE = "#1f2937", "#f3f4f6", "#9ca3af"
COLOURS = {"red": "#dc2828", "green": "#28aa3c", "blue": "#3250dc"}


def main() -> None:
    """Train both models and draw the picture."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.own_data import draw_shapes, write_trips

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        shapes, trips = draw_shapes(folder / "shapes", rng, most=5), write_trips(folder / "trips.csv", rng)
        for source in (shapes, trips):
            call("train", str(source), "--minutes", "0", "--out", str(folder / source.stem))
        image = test_example(folder / "shapes", shapes, lambda answer: 4 <= sum(answer["labels"].values()) <= 5)
        row = test_example(folder / "trips", trips, lambda answer: len(answer["labels"]) == 4)
        line = int(row["input"].split()[-1])
        with trips.open() as file:
            features = [*csv.DictReader(file)][line - 2]
        columns = {name: value for name, value in features.items() if not name.startswith("count:")}
        draw(Image.open(shapes.parent / image["input"]), image, columns, row, out)


def call(*command: str) -> str:
    """Run a `multiset` command and return its output."""
    whole = [sys.executable, "-m", "torchmultiset", *command]
    return subprocess.run(whole, check=True, capture_output=True, text=True).stdout


def test_example(run: Path, data: Path, suitable: Any) -> Mapping[str, Any]:
    """Return the first suitable prediction for the test data, right or wrong."""
    answers = [
        json.loads(line) for line in call("predict", str(run), str(data), "--split", "test", "--json").splitlines()
    ]
    return next(answer for answer in answers if suitable(answer))


def draw(
    image: Image.Image,
    answer: Mapping[str, Any],
    columns: Mapping[str, str],
    row: Mapping[str, Any],
    out: Path,
) -> None:
    """Draw two inputs beside the counts that were predicted for them.

    Args:
        image: First input.
        answer: Prediction for it: a line of ``multiset predict --json``.
        columns: Second input, a row of a table.
        row: Prediction for it.
        out: Path of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(8, 5.6), width_ratios=[1, 1.5], height_ratios=[1.25, 1], dpi=120)
    axes[0, 0].imshow(image)
    axes[0, 0].set_title("input: an image", loc="left", fontsize=11, color=INK)
    axes[1, 0].set_title("input: a row of a table", loc="left", fontsize=11, color=INK)
    for at, (name, value) in enumerate(columns.items()):
        height = 0.84 - at * 0.22
        axes[1, 0].text(0.06, height, name, va="center", fontsize=12, color=INK)
        axes[1, 0].text(0.94, height, value, va="center", ha="right", fontsize=12, color=INK)
    axes[1, 0].set(xlim=(0, 1), ylim=(0, 1), facecolor=PALE)
    for axis in axes[:, 0]:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_color(LINE)
    for axis, prediction in zip(axes[:, 1], (answer, row), strict=True):
        _bars(axis, prediction)
    figure.suptitle("Predict how many of what, trained on labels alone", fontsize=13, color=INK, x=0.02, ha="left")
    figure.tight_layout(w_pad=3)
    figure.savefig(out)
    plt.close(figure)


def _bars(axis: Any, answer: Mapping[str, Any]) -> None:
    """Draw the predicted counts of one example as bars, with their numbers."""
    names, counts = [*answer["labels"]], [*answer["labels"].values()]
    axis.barh(names, counts, color=[COLOURS.get(name.split()[0], "#6b7280") for name in names], height=0.6)
    for at, count in enumerate(counts):
        axis.text(count + 0.08, at, f"{count} x", va="center", fontsize=12, color=INK)
    axis.invert_yaxis()
    axis.set(xlim=(0, max(counts) * 1.15 + 0.3), xticks=[])
    axis.tick_params(axis="y", length=0, labelsize=12, labelcolor=INK)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.spines["left"].set_color(LINE)
    right = "correct" if answer["right"] else "wrong"
    title = f"predicted counts: probability {answer['confidence']:.2f}, {right}"
    axis.set_title(title, loc="left", fontsize=11, color=INK)


if __name__ == "__main__":
    main()
