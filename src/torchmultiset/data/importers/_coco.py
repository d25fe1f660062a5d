"""Importer for COCO JSON: one file, or a folder with a file per split."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchmultiset._files import is_file
from torchmultiset.data._coco_file import without_outline
from torchmultiset.data._parse import show
from torchmultiset.data.importers._annotations import (
    AnnotatedImage,
    AnnotatedObject,
    AnnotationProblems,
    Box,
    split_of,
    split_of_folder,
)

__all__ = ["find_coco", "read_coco"]


def find_coco(source: Path) -> list[Path]:
    """Return the annotation files of a file or folder: in it, in `annotations` or in folders named after splits.

    COCO's captions and key points next to ``instances_*.json`` are ignored.
    """
    if source.is_file():
        return [source] if source.suffix.lower() == ".json" else []
    folders = [source, source / "annotations"]
    folders += sorted(folder for folder in source.iterdir() if folder.is_dir() and split_of(folder.name))
    found = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob("*.json"))]
    instances = [file for file in found if file.name.startswith("instances")]
    return instances or [file for file in found if _looks_like_coco(file)]


def read_coco(source: Path, images: Path | None, problems: AnnotationProblems) -> list[AnnotatedImage]:
    """Read the images of all annotation files of `source`."""
    files = find_coco(source)
    if not files:
        problems.add(source, "", "there is no COCO file (.json with images, annotations and categories)")
    of_split: dict[str | None, Path] = {}
    read: list[AnnotatedImage] = []
    for file in files:
        folder = source if source.is_dir() else source.parent
        split = split_of_folder(file, folder) or split_of(file.stem)
        if split in of_split:
            which = f"the split {split}" if split else "no particular split"
            fix = "import one of them, or use names such as instances_train.json and instances_val.json"
            problems.add(file, "", f"{of_split[split].name} is already the file of {which}: {fix}")
        of_split.setdefault(split, file)
        read += _read_file(file, split, images, problems)
    return read


def _looks_like_coco(path: Path) -> bool:
    """Return whether the file is JSON with COCO's keys, or a damaged ``*coco.json``, which is reported later."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return path.name.endswith("coco.json")
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def _read_file(
    file: Path, split: str | None, images: Path | None, problems: AnnotationProblems
) -> list[AnnotatedImage]:
    content = _content(file, problems)
    if content is None:
        return []
    names = {
        key: entry["name"].strip() for key, _, entry in _entries(file, content, "categories", "name", str, problems)
    }
    objects: dict[int, list[AnnotatedObject]] = {}
    found: dict[int, AnnotatedImage] = {}
    folders = [images] if images else _image_folders(file)
    for key, where, entry in _entries(file, content, "images", "file_name", str, problems):
        image = next(filter(is_file, (folder / entry["file_name"] for folder in folders)), None)
        if image is None:
            fix = f"looked in {', '.join(map(str, folders))}; pass the folder of the images (--images)"
            problems.add(file, where, f"there is no image {show(entry['file_name'])}: {fix}")
            continue
        size = entry.get("width"), entry.get("height")
        whole = all(isinstance(side, int) and 0 < side < 2**31 for side in size)
        objects[key] = []
        found[key] = AnnotatedImage(image, (), split, f"{file}: {where}", size if whole else None)  # type: ignore[arg-type]
    missing = len(content["images"]) - len(found)
    for _, where, entry in _entries(file, content, "annotations", "image_id", int, problems):
        category, image_id = entry.get("category_id"), entry["image_id"]
        if not isinstance(category, int) or category not in names:
            problems.add(file, where, f"category_id {show(category)} is not the id of a category: correct or remove it")
        elif image_id not in objects:
            if not missing:
                problems.add(file, where, f"image_id {show(image_id)} is not the id of an image: correct or remove it")
        else:
            try:
                box, area = _box(entry), _area(entry)
            except ValueError as error:
                problems.add(file, where, error)
                continue
            objects[image_id].append(AnnotatedObject(names[category], box, area, bool(entry.get("iscrowd", 0))))
    return [replace(image, objects=tuple(objects[key])) for key, image in found.items()]


def _content(file: Path, problems: AnnotationProblems) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_bytes().decode("utf-8-sig"), object_hook=without_outline)
    except json.JSONDecodeError as error:
        problems.add(file, error.lineno, f"not JSON: {error.msg} at column {error.colno}; export the file again")
        return None
    except (ValueError, RecursionError) as error:
        problems.add(file, "", f"not JSON: {error}; export the file again")
        return None
    lists = content if isinstance(content, dict) else {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(lists.get(key), list):
            problems.add(file, "", f"must be a JSON object with a list {key!r}, as COCO's instances_*.json have")
            return None
    return lists


def _entries(
    file: Path, content: dict[str, Any], name: str, key: str, kind: type, problems: AnnotationProblems
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield id, place and entry of the valid entries of a list: with a unique id and a value of type `kind`."""
    seen: set[int] = set()
    for position, entry in enumerate(content[name]):
        where = f"{name}[{position}]"
        if not isinstance(entry, dict):
            problems.add(file, where, f"must be an object, but is {show(entry)}")
            continue
        number = entry.get("id", position if name == "annotations" else None)
        value = entry.get(key)
        if not isinstance(number, int) or isinstance(number, bool):
            problems.add(file, where, f"'id' must be an integer, but is {show(number)}")
        elif number in seen:
            problems.add(file, where, f"the id {number} is already used: give each of the {name} a unique id")
        elif not isinstance(value, kind) or (isinstance(value, str) and not value.strip()):
            expected = "a non-empty string" if kind is str else "an integer"
            problems.add(file, where, f"{key!r} must be {expected}, but is {show(value)}")
        else:
            yield number, where, entry
        if isinstance(number, int):
            seen.add(number)


def _image_folders(file: Path) -> list[Path]:
    """Return the existing folders among those in which the images of an annotation file usually are."""
    name = file.stem.rpartition("_")[2]  # instances_train2017.json: train2017
    near = [file.parent, file.parent.parent] if file.parent.name == "annotations" else [file.parent]
    folders = [folder / part for folder in near for part in ("", "images", name, f"images/{name}")]
    return [folder for folder in folders if folder.is_dir()]


def _box(entry: dict[str, Any]) -> Box | None:
    box = entry.get("bbox")
    if not box:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(_finite(number) for number in box) or min(box[2:]) < 0:
        raise ValueError(f"'bbox' must be x, y, width and height in pixels, but is {show(box)}")
    x, y, width, height = map(float, box)
    return x, y, width, height


def _area(entry: dict[str, Any]) -> float | None:
    area = entry.get("area")
    if area is None:
        return None
    if not _finite(area) or area < 0:
        raise ValueError(f"'area' must be a number of pixels, at least 0, but is {show(area)}")
    return float(area)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
