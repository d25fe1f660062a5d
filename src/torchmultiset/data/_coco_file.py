"""Reader for COCO annotation files (``instances_*.json``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from torchmultiset._checks import some

__all__ = ["CocoFile", "read_coco_file", "without_outline"]


@dataclass(frozen=True, eq=False)
class CocoFile:
    """Images, categories and objects of one annotation file.

    Shapes: I images, C categories, N objects. Images and objects are in file order, categories are sorted by id.
    """

    path: Path
    image_ids: Int64[np.ndarray, " i"]
    image_names: tuple[str, ...]
    """File name of each image."""
    image_sizes: Int64[np.ndarray, "i 2"]
    """Width and height of each image, as annotated; the image file may be smaller."""
    categories: dict[int, str]
    """Mapping from category id to name."""
    object_ids: Int64[np.ndarray, " n"]
    image: Int64[np.ndarray, " n"]
    """Index of each object's image, from 0 to I - 1."""
    category: Int64[np.ndarray, " n"]
    """Index of each object's category, from 0 to C - 1."""
    boxes: Float64[np.ndarray, "n 4"]
    """x, y, width and height in pixels of the annotated image."""
    areas: Float64[np.ndarray, " n"] | None
    """`area` field of each object (in COCO, the segment's area); None if any object lacks it."""
    crowd: Bool[np.ndarray, " n"]
    """Whether each object is a crowd: many objects of one class under one mask."""


def read_coco_file(path: str | Path) -> CocoFile:
    """Read and validate an annotation file.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is invalid; the message gives the file, the entries and what is expected.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no annotation file {path}; in COCO it is named instances_*.json")
    content = _load(path)
    images, categories, objects = (_Entries.of(path, content, key) for key in ("images", "categories", "annotations"))
    image_ids, names = images.ids(), images.column("file_name", "U", "a string")
    images.refuse(_repeats(names), "a duplicate file_name")
    sizes = np.stack([images.integers("width"), images.integers("height")], axis=1)
    images.refuse(sizes.min(1) < 1, "a width or height below 1")

    category_ids, category_names = categories.ids(), categories.column("name", "U", "a string")
    categories.refuse(_repeats(category_names), "a duplicate name")
    return CocoFile(
        path=path,
        image_ids=image_ids,
        image_names=tuple(names.tolist()),
        image_sizes=sizes,
        categories=dict(sorted(zip(category_ids.tolist(), category_names.tolist(), strict=True))),
        object_ids=objects.ids(),
        image=_positions(objects, "image_id", image_ids),
        category=_positions(objects, "category_id", np.sort(category_ids)),
        boxes=_boxes(objects),
        areas=_areas(objects),
        crowd=np.array([bool(entry.get("iscrowd", 0)) for entry in objects.entries], dtype=bool),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=without_outline)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}. Replace it with a fresh copy") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object with images, annotations and categories")
    return content


def without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop the segmentation of an object during parsing: it is not needed, and makes up most of the file."""
    entry.pop("segmentation", None)
    return entry


@dataclass(frozen=True)
class _Entries:
    """One list of the annotation file, read column by column."""

    path: Path
    name: str
    entries: list[dict[str, Any]]

    @classmethod
    def of(cls, path: Path, content: dict[str, Any], name: str) -> _Entries:
        entries = content.get(name)
        if not (isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries)):
            raise ValueError(
                f"{path} must have a non-empty list of objects {name!r}, like COCO's instances_*.json; "
                f"its keys are {', '.join(map(repr, content)) or 'none'}"
            )
        return cls(path, name, entries)

    def column(self, key: str, kinds: str, expected: str, shape: tuple[int, ...] = ()) -> Shaped[np.ndarray, "n ..."]:
        lacking = np.array([key not in entry for entry in self.entries])
        if lacking.any():
            places = [f"{self.name}[{position}]" for position in np.flatnonzero(lacking)]
            raise ValueError(
                f"{self.path}: {len(places)} of {len(self.entries)} {self.name} have no {key!r}: {some(places, 5)}."
                " Add it, or remove these entries"
            )
        try:
            values = np.array([entry[key] for entry in self.entries])
        except ValueError:  # lists of different lengths
            values = np.empty(0)
        if values.shape != (len(self.entries), *shape) or values.dtype.kind not in kinds:
            raise ValueError(f"{self.path}: {key!r} must be {expected} in all {self.name}")
        return values

    def integers(self, key: str) -> Int64[np.ndarray, " n"]:
        return self.column(key, "i", "an integer").astype(np.int64)

    def ids(self) -> Int64[np.ndarray, " n"]:
        ids = self.integers("id")
        self.refuse(_repeats(ids), "a duplicate id")
        return ids

    def refuse(self, wrong: Bool[np.ndarray, " n"], problem: str) -> None:
        if wrong.any():
            ids = [self.entries[position]["id"] for position in np.flatnonzero(wrong)]
            raise ValueError(
                f"{self.path}: {len(ids)} of {len(self.entries)} {self.name} have {problem}: ids {some(ids, 5)}."
                " Correct or remove these entries"
            )


def _positions(objects: _Entries, key: str, known: Int64[np.ndarray, " k"]) -> Int64[np.ndarray, " n"]:
    """Return the index in `known` of the id that each object refers to."""
    ids = objects.integers(key)
    order = np.argsort(known)
    positions = order[np.searchsorted(known, ids, sorter=order).clip(max=len(known) - 1)]
    objects.refuse(known[positions] != ids, f"an unknown {key}")
    return np.asarray(positions)


def _boxes(objects: _Entries) -> Float64[np.ndarray, "n 4"]:
    boxes = objects.column("bbox", "iuf", "four numbers x, y, width, height", (4,)).astype(np.float64)
    # Boxes of zero width or height are rejected later, and only for large objects: COCO has two, of area 0.
    wrong = ~(np.isfinite(boxes.sum(1)) & (boxes[:, 2:].min(1) >= 0))
    objects.refuse(wrong, "a bbox that is not finite or has a negative width or height")
    return boxes


def _areas(objects: _Entries) -> Float64[np.ndarray, " n"] | None:
    if not all("area" in entry for entry in objects.entries):
        return None
    areas = objects.column("area", "iuf", "a number").astype(np.float64)
    objects.refuse(~(np.isfinite(areas) & (areas >= 0)), "an area that is negative or not finite")
    return areas


def _repeats(values: Shaped[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse] > 1
