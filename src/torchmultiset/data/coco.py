"""COCO Easy and COCO Medium (section 5.1 of the paper), built from COCO's ``instances_*.json`` files.

`CocoRules` and docs/coco.md describe the stages of the filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from torchmultiset.data._coco_file import CocoFile, read_coco_file
from torchmultiset.data._coco_rules import CocoRules, Stage, count, object_areas, select
from torchmultiset.data.examples import Examples
from torchmultiset.data.images import ImageFiles, check_files, image_sizes, letterbox, place_boxes

__all__ = ["PAPER", "VARIANTS", "Coco", "CocoRules", "PaperCounts", "Stage", "build"]

VARIANTS = {"coco-easy": CocoRules(sizes=(2, 2)), "coco-medium": CocoRules(sizes=(1, 4))}
"""Rules of the paper's two variants, by name."""


class PaperCounts(NamedTuple):
    """Sizes that the paper reports for train2014 and val2014."""

    training: int
    """Number of training images, including the 15% held out for validation."""
    test: int
    classes: int


PAPER = {"coco-easy": PaperCounts(10_230, 5_107, 24), "coco-medium": PaperCounts(44_121, 21_944, 23)}


@dataclass(frozen=True, eq=False)
class Coco:
    """Data set built from COCO. The `ids` of each split are image ids; `classes` are sorted by category id.

    Boxes and areas are in pixels of the inputs.
    """

    train: Examples
    validation: Examples
    test: Examples
    rules: CocoRules
    min_area: float
    """Area threshold that was used; objects above it are large."""
    stages: tuple[Stage, ...]


def build(
    rules: CocoRules,
    train_json: str | Path,
    test_json: str | Path,
    train_images: str | Path,
    test_images: str | Path | None = None,
    *,
    size: int = 600,
    progress: bool = False,
) -> Coco:
    """Build the train, validation and test sets from two annotation files.

    Args:
        rules: Selection rules: one of `VARIANTS`, or a custom `CocoRules`.
        train_json: Annotations of the training images, such as instances_train2014.json.
        test_json: Annotations of the test images, such as instances_val2014.json.
        train_images: Folder of the training images.
        test_images: Folder of the test images; if None, `train_images`.
        size: Side length of the square inputs, in pixels.
        progress: Show a progress bar.

    Raises:
        FileNotFoundError: An annotation file or some images are missing; all missing images are listed.
        ValueError: A file is invalid, or no image satisfies the rules.

    Example:
        >>> import json
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> def annotate(file, picture):  # one image with three cats
        ...     Image.new("RGB", (64, 48)).save(file.parent / picture)
        ...     cat = {"image_id": 1, "category_id": 5, "bbox": [16, 12, 32, 24]}
        ...     images = [{"id": 1, "file_name": picture, "width": 64, "height": 48}]
        ...     objects = [{"id": area, "area": area, **cat} for area in (100, 200, 300)]
        ...     categories = [{"id": 5, "name": "cat"}]
        ...     file.write_text(json.dumps(dict(images=images, annotations=objects, categories=categories)))
        ...     return file
        >>> with TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     files = annotate(folder / "train.json", "1.png"), annotate(folder / "test.json", "2.png")
        ...     built = build(CocoRules(sizes=(2, 2), validation_share=0.0), *files, folder, size=32)
        >>> built.min_area  # two of the three are larger
        180.0
        >>> built.train.labels, built.train.classes
        (array([[0, 0]]), ('cat',))
        >>> built.train.boxes[0, 0]  # halved, and 4 rows of padding above
        array([ 8., 10., 16., 12.], dtype=float32)
    """
    training, testing = read_coco_file(train_json), read_coco_file(test_json)
    if training.categories != testing.categories:
        differ = sorted(training.categories.items() ^ testing.categories.items())
        raise ValueError(f"{train_json} and {test_json} must have the same categories, but differ in {differ}")
    selected = select("training", training, rules)
    selected_test = select("test", testing, rules, like=selected)

    train_folder = Path(train_images)
    kept_train, kept_validation = _hold_out(training, selected.kept, rules)
    splits = {
        "train": _Split(training, kept_train, train_folder),
        "validation": _Split(training, kept_validation, train_folder),
        "test": _Split(testing, selected_test.kept, train_folder if test_images is None else Path(test_images)),
    }
    _check_images(**splits)
    return Coco(
        **{name: _examples(split, selected.classes, rules, size, progress) for name, split in splits.items()},
        rules=rules,
        min_area=selected.min_area,
        stages=(
            *selected.stages,
            count("train", "held out", training, kept_train),
            count("validation", "held out", training, kept_validation),
            *selected_test.stages,
        ),
    )


def _hold_out(
    file: CocoFile, kept: Bool[np.ndarray, " n"], rules: CocoRules
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Split the mask of kept objects (N,) into one for training images and one for held-out validation images."""
    images = np.unique(file.image[kept])
    held_out = round(rules.validation_share * len(images))
    if rules.validation_share > 0 and not 0 < held_out < len(images):
        raise ValueError(
            f"validation_share = {rules.validation_share} of the {len(images)} training images that the rules keep "
            f"is {held_out} images: choose a share that leaves images in both sets, or 0 for no validation set"
        )
    chosen = np.random.default_rng(rules.seed).permutation(images)[:held_out]
    is_held_out = np.isin(file.image, chosen)
    return kept & ~is_held_out, kept & is_held_out


@dataclass(frozen=True, eq=False)
class _Split:
    file: CocoFile
    kept: Bool[np.ndarray, " n"]
    folder: Path

    @property
    def images(self) -> Int64[np.ndarray, " k"]:
        """Indices in the file of the images that are kept."""
        return np.unique(self.file.image[self.kept])

    @property
    def paths(self) -> list[Path]:
        return [self.folder / self.file.image_names[image] for image in self.images]


def _check_images(train: _Split, validation: _Split, test: _Split) -> None:
    training = [*train.paths, *validation.paths]
    check_files([*training, *test.paths])
    shared = sorted(set(training) & set(test.paths))
    if shared:
        raise ValueError(
            f"{len(shared)} images, such as {shared[0]}, are in both {train.file.path} and {test.file.path}: "
            f"a test image must not be a training image"
        )


def _examples(split: _Split, classes: Bool[np.ndarray, " c"], rules: CocoRules, size: int, progress: bool) -> Examples:
    file, images, paths = split.file, split.images, split.paths
    # Group objects by image, keeping the order of the annotations.
    objects = np.flatnonzero(split.kept)
    objects = objects[np.argsort(file.image[objects], kind="stable")]
    row = np.searchsorted(images, file.image[objects])
    place = np.arange(len(objects)) - np.searchsorted(row, row)

    annotated = file.image_sizes[file.image[objects]]
    stored = image_sizes(paths, progress=progress)[row]
    scale = letterbox(stored, size).resized / annotated

    shape = (len(images), rules.sizes[1])
    labels = np.full(shape, -1, dtype=np.int64)
    labels[row, place] = (np.cumsum(classes) - 1)[file.category[objects]]
    boxes = np.zeros((*shape, 4), dtype=np.float32)
    boxes[row, place] = place_boxes(file.boxes[objects], annotated, stored, size)
    areas = np.zeros(shape, dtype=np.float32)
    areas[row, place] = object_areas(file, rules)[objects] * scale.prod(1)
    names = [name for name, is_kept in zip(file.categories.values(), classes, strict=True) if is_kept]
    return Examples(
        inputs=ImageFiles(paths, size),
        labels=labels,
        classes=tuple(names),
        boxes=boxes,
        areas=areas,
        ids=[str(image_id) for image_id in file.image_ids[images]],
    )
