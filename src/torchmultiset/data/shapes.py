"""A small data set of generated images, for trying out the library."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from torchmultiset._checks import check
from torchmultiset._files import write_whole

__all__ = ["SHAPES", "draw_shapes", "write_shapes"]

SHAPES = {"circle": "#d1495b", "square": "#00798c", "triangle": "#edae49"}
"""Classes, with their colours."""
_SIDE, _CELLS = 96, 4  # pixels and cells along each side; a cell has at most one shape
_SPLITS = (*["train"] * 3, "test", *["train"] * 3, "validation", "train", "test")
_FINER = 4  # pictures are drawn at this multiple of their size and then reduced, for smooth edges


def write_shapes(folder: str | Path, *, number: int = 60, seed: int = 0) -> Path:
    """Write pictures of one to four coloured shapes to an empty folder, and return the labels.csv that lists them.

    Of ten pictures, seven are for training, one for validation and two for testing. The same arguments write the same
    files.

    Raises:
        FileExistsError: The folder is not empty.
    """
    check(number >= 1, "number", "at least 1", number)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} already exists: choose another folder")
    generator = np.random.default_rng(seed)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["image", "labels", "split"])
    for i in range(number):
        names = generator.choice([*SHAPES], int(generator.integers(1, 5))).tolist()
        name = f"{i + 1:03d}.png"
        file = io.BytesIO()
        draw_shapes(names, generator).save(file, "PNG")
        write_whole(folder / name, file.getvalue())
        labels = ";".join(f"{shape}:{count}" for shape, count in sorted(Counter(names).items()))
        rows.writerow([name, labels, _SPLITS[i % len(_SPLITS)]])
    write_whole(folder / "labels.csv", table.getvalue())
    return folder / "labels.csv"


def draw_shapes(names: list[str], generator: np.random.Generator) -> Image.Image:
    """Draw shapes at random positions, without overlap.

    Example:
        >>> draw_shapes(["circle", "square"], np.random.default_rng(0)).size
        (96, 96)
    """
    side, cell = _SIDE * _FINER, _SIDE * _FINER // _CELLS
    picture = Image.new("RGB", (side, side), "#f7f5f0")
    pen = ImageDraw.Draw(picture)
    cells = generator.permutation(_CELLS**2)[: len(names)].tolist()
    for name, place in zip(names, cells, strict=True):
        radius = cell * float(generator.uniform(0.39, 0.41))
        x, y = (cell * (k + 0.5) + float(generator.uniform(-0.06, 0.06)) * cell for k in divmod(place, _CELLS))
        if name == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=SHAPES[name])
        else:
            corners = {"square": 4, "triangle": 3}[name]
            turn = float(generator.uniform(-20, 20))
            pen.regular_polygon((x, y, radius), corners, rotation=turn, fill=SHAPES[name])
    return picture.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
