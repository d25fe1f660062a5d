"""A tiny data set in COCO's format, drawn on the fly: coloured boxes on noise, to test the COCO experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torchmultiset._files import write_whole

__all__ = ["draw_coco"]

_SIDE = 96
_CELL = 48
_COLOURS = {"ball": (220, 40, 40), "boat": (40, 200, 60), "bear": (50, 80, 230)}
# Listed but never drawn: a class is rare if its share is below 1/6, so none of the three drawn classes is rare.
_UNUSED = ("bell", "bird", "bowl")
# Numbers of large objects of successive images: often two, as COCO Easy requires.
_LARGE = (2, 1, 2, 3, 2, 4)


def draw_coco(folder: Path) -> None:
    """Write ``instances_train.json``, ``instances_val.json`` and ``images/``, laid out as the COCO subset.

    Args:
        folder: Folder to write to; existing files are replaced.
    """
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, ids in (("val", range(81, 121)), ("train", range(1, 81))):
        content = _annotate(folder / "images", ids, rng)
        write_whole(folder / f"instances_{name}.json", json.dumps(content))


def _annotate(images: Path, ids: range, rng: np.random.Generator) -> Mapping[str, Any]:
    objects: list[dict[str, Any]] = []
    for image_id in ids:
        pixels = rng.integers(0, 60, (_SIDE, _SIDE, 3), dtype=np.uint8)
        corners = rng.permutation([(x, y) for x in range(0, _SIDE, _CELL) for y in range(0, _SIDE, _CELL)])
        # As many small objects as large ones, so that the 40th percentile of the areas is that of a small one.
        for x, y in corners[: _LARGE[image_id % len(_LARGE)]].tolist():
            for left, size in ((0, int(rng.integers(20, 34))), (36, 6)):
                category = int(rng.integers(len(_COLOURS)))
                pixels[y : y + size, x + left : x + left + size] = [*_COLOURS.values()][category]
                box = {"bbox": [x + left, y, size, size], "area": size * size, "iscrowd": 0}
                objects.append({"id": len(objects) + 1, "image_id": image_id, "category_id": category + 1, **box})
        Image.fromarray(pixels).save(images / f"{image_id}.png")
    return {
        "images": [{"id": i, "file_name": f"{i}.png", "width": _SIDE, "height": _SIDE} for i in ids],
        "annotations": objects,
        "categories": [{"id": i, "name": name} for i, name in enumerate([*_COLOURS, *_UNUSED], start=1)],
    }
