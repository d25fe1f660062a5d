"""Importer for YOLO text: a .txt file per image, with a line per object."""

from __future__ import annotations

import os
from pathlib import Path

from torchmultiset._files import is_file
from torchmultiset.data._parse import show
from torchmultiset.data.importers._annotations import (
    AnnotatedImage,
    AnnotatedObject,
    AnnotationProblems,
    Box,
    find_images,
    read_lines,
    split_of_folder,
)
from torchmultiset.data.importers._yaml import DataYaml, read_data_yaml

__all__ = ["find_yolo", "read_yolo"]

_NAMES = ("classes.txt", "obj.names", "labels/classes.txt", "_darknet.labels")
_YAML = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
# Text files beside images that are not labels.
_OTHERS = ("classes.txt", "train.txt", "val.txt", "valid.txt", "test.txt", "readme.dataset.txt", "readme.roboflow.txt")
_SLACK = 0.01  # tolerance for boxes at the border, which rounding may move outside the image


def find_yolo(source: Path) -> list[Path]:
    """Return the data.yaml and the label files of a folder."""
    if source.is_file():
        return [source] if source.suffix.lower() in (".yaml", ".yml") else []
    config = _first(source, _YAML)
    return ([config] if config else []) + _label_files(source)


def read_yolo(source: Path, images: Path | None, problems: AnnotationProblems) -> list[AnnotatedImage]:
    """Read the images of a folder, each with its label file; an image without one has no objects.

    The label file of ``images/train/7.jpg`` is ``labels/train/7.txt`` or ``images/train/7.txt``. Splits are those of
    data.yaml, or else of folders named train, valid or test. Class names are those of data.yaml or classes.txt, or
    else the numbers.
    """
    config = source if source.is_file() else _first(source, _YAML)
    folder = source.parent if source.is_file() else source
    content = read_data_yaml(config, problems) if config else DataYaml()
    names = content.names or _names(folder, problems)
    splits = _images_of_splits(config, content, problems) if config else {}
    if not splits:
        splits = {image: split_of_folder(image, images or folder) for image in _images(images or folder)}
    label_files = _label_files(folder)
    elsewhere = {file.stem: file for file in label_files} if images else {}

    read, used = [], set()
    for image, split in splits.items():
        file = _label_file(image, folder) or elsewhere.get(image.stem)
        objects = _objects(file, names, problems) if file else []
        used.add(file)
        read.append(AnnotatedImage(image, tuple(objects), split, str(file or image), relative=True))
    if not read and not problems.found:
        problems.add(folder, "", "there are no images: pass the folder of the images (--images)")
    elif used <= {None} and not problems.found:
        problems.add(folder, "", "none of the images has a label file (labels/NAME.txt or NAME.txt beside the image)")
    elif not content.splits:
        for file in sorted(set(label_files) - used):
            problems.add(file, "", "there is no image with this name: add the image, or remove the file")
    return read


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _images(folder: Path) -> list[Path]:
    """Return the images in folders named images, or else all images: other folders may have plots of training runs."""
    found = find_images(folder)
    return [image for image in found if "images" in image.relative_to(folder).parts[:-1]] or found


def _label_files(folder: Path) -> list[Path]:
    """Return the .txt files in folders named labels, or beside images."""
    files = sorted(path for path in folder.rglob("*.txt") if path.name.lower() not in _OTHERS)
    with_images = {image.parent for image in find_images(folder)}
    return [f for f in files if "labels" in f.relative_to(folder).parts[:-1] or f.parent in with_images]


def _names(folder: Path, problems: AnnotationProblems) -> tuple[str, ...]:
    file = _first(folder, _NAMES)
    if file is None:
        return ()
    return tuple(line.strip() for line in read_lines(file, problems) if line.strip())


def _images_of_splits(config: Path, content: DataYaml, problems: AnnotationProblems) -> dict[Path, str | None]:
    """Return the images in the folders and lists that data.yaml gives for each split."""
    found: dict[Path, str | None] = {}
    bases = [config.parent / content.root, config.parent]
    for split, line, written in content.splits:
        # Exports often write ../train/images for train/images.
        places = [base / name for base in bases for name in (written, written.removeprefix("../"))]
        place = next(filter(os.path.exists, places), None)  # unlike Path.exists, False for a name that is too long
        if place is None:
            if split != "test":  # exports without test images have this line, too
                problems.add(
                    config, line, f"there is no folder {show(written)} for {split}: correct or remove the line"
                )
            continue
        images = find_images(place) if place.is_dir() else _listed(place, problems)
        for image in images:
            if found.setdefault(image, split) != split:
                problems.add(config, line, f"{image} is in {found[image]}, too: put each image into one split")
    return found


def _listed(file: Path, problems: AnnotationProblems) -> list[Path]:
    """Return the images of a list, one path per line, relative to the folder of the list."""
    images = []
    for number, line in enumerate(read_lines(file, problems), start=1):
        if line.strip():
            image = file.parent / line.strip()
            if not is_file(image):
                problems.add(file, number, f"there is no image {show(line.strip())}: correct or remove the line")
            images.append(image)
    return images


def _label_file(image: Path, folder: Path) -> Path | None:
    """Return the label file of an image, in a folder `labels` in place of `images` or beside the image."""
    parts = list(image.parts)
    places = [image.with_suffix(".txt"), folder / "labels" / f"{image.stem}.txt"]
    if "images" in parts[:-1]:
        last = len(parts) - 1 - parts[::-1].index("images")
        places.insert(0, Path(*parts[:last], "labels", *parts[last + 1 :]).with_suffix(".txt"))
    return next((place for place in places if place.is_file()), None)


def _objects(file: Path, names: tuple[str, ...], problems: AnnotationProblems) -> list[AnnotatedObject]:
    objects = []
    for number, line in enumerate(read_lines(file, problems), start=1):
        if line.strip():
            try:
                objects.append(_object(line.split(), names))
            except ValueError as error:
                problems.add(file, number, error)
    return objects


def _object(cells: list[str], names: tuple[str, ...]) -> AnnotatedObject:
    expected = "class x y width height, or class and the corners of a polygon, as numbers"
    if len(cells) != 5 and (len(cells) < 7 or len(cells) % 2 == 0):
        raise ValueError(f"must be {expected}, but has {len(cells)} entries: {show(' '.join(cells))}")
    try:
        index, numbers = float(cells[0]), [float(cell) for cell in cells[1:]]
    except ValueError:
        raise ValueError(f"must be {expected}, but is {show(' '.join(cells))}") from None
    if index % 1 or index < 0 or (names and index >= len(names)):
        known = (
            f"a whole number from 0 to {len(names) - 1}, as there are {len(names)} names" if names else "0, 1, 2, ..."
        )
        raise ValueError(f"the class must be {known}, but is {cells[0]}")
    if not all(-_SLACK <= number <= 1 + _SLACK for number in numbers):
        raise ValueError(f"coordinates must be fractions of the image, from 0 to 1, but are {show(cells[1:])}")
    return AnnotatedObject(names[int(index)] if names else str(int(index)), _box(numbers))


def _box(numbers: list[float]) -> Box:
    """Return x, y, width and height of a box given by its centre, or of a polygon, as fractions of the image."""
    if len(numbers) == 4:
        x, y, width, height = numbers
        left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    else:
        left, top, right, bottom = min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in (left, top, right, bottom))
    return left, top, right - left, bottom - top
