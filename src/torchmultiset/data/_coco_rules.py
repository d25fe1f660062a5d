"""Which images and objects of COCO make a data set: the rules, and the stages that apply them.

Four stages, in this order (section 5.1 of the paper):

1. large objects: area above the 40th percentile of the training objects;
2. images with the right number of large objects; smaller ones are as if they were not there;
3. images that hold only rare classes go; a class is rare if it makes up less than 1/|C| of the objects that
   stage 2 kept, where C are all categories of the file;
4. images that mix common and rare classes: the paper leaves them open, so there is a rule. That their rare labels go
   and the image stays is the one that gives the paper's number of images (docs/coco.md).

The test set goes through the same stages with the area threshold and the classes of the training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from torchmultiset._checks import check, check_one_of
from torchmultiset.data._coco_file import CocoFile

__all__ = ["CocoRules", "Selection", "Stage", "count", "object_areas", "select"]


@dataclass(frozen=True)
class CocoRules:
    """Which images and objects of COCO make the data set.

    Example:
        >>> CocoRules(sizes=(1, 4), min_area=938.0)  # the threshold as a number
        CocoRules(sizes=(1, 4), area_percentile=40.0, min_area=938.0, area='annotation', ...)
    """

    sizes: tuple[int, int] = (2, 2)
    """Least and greatest number of large objects in an image."""
    area_percentile: float = 40.0
    """An object is large if its area is above this percentile of the training objects."""
    min_area: float | None = None
    """An object is large if its area is above this, in pixels of the annotated image; None: by percentile."""
    area: Literal["annotation", "box"] = "annotation"
    """What the area is: the file's `area` field (COCO: of the segment) or width times height of the box."""
    rare_below: float | None = None
    """A class is rare if its share of the objects of the right images is below this; None: 1/|C|."""
    mixed: Literal["drop-label", "drop-image", "keep"] = "drop-label"
    """What becomes of an image with common and rare classes: its rare labels go, and the image too if too few are
    left, which gives the paper's sizes; the image goes; or it stays and its rare classes count as classes."""
    crowds: bool = False
    """Whether a crowd counts as an object, here and in the percentile."""
    validation_share: float = 0.15
    """Share of the training images that is held out."""
    seed: int = 0
    """Which ones are held out."""

    def __post_init__(self) -> None:
        least, most = self.sizes
        check(1 <= least <= most, "sizes", "(least, greatest) with 1 <= least <= greatest", self.sizes)
        check(0 <= self.area_percentile <= 100, "area_percentile", "from 0 to 100", self.area_percentile)
        check(self.min_area is None or self.min_area >= 0, "min_area", "None or at least 0", self.min_area)
        check_one_of("area", self.area, ("annotation", "box"))
        check(self.rare_below is None or 0 <= self.rare_below <= 1, "rare_below", "None or 0 to 1", self.rare_below)
        check_one_of("mixed", self.mixed, ("drop-label", "drop-image", "keep"))
        check(0 <= self.validation_share < 1, "validation_share", "at least 0 and below 1", self.validation_share)


class Stage(NamedTuple):
    """How much one stage left of one split."""

    split: Literal["training", "test", "train", "validation"]
    """`training` is what `train` and `validation` are made of."""
    name: str
    images: int
    objects: int
    classes: int


class Selection(NamedTuple):
    """What the stages left of one annotation file (N objects, C categories), and by which threshold and classes."""

    kept: Bool[np.ndarray, " n"]
    """The objects that are left."""
    min_area: float
    common: Bool[np.ndarray, " c"]
    """The categories that are not rare."""
    classes: Bool[np.ndarray, " c"]
    """The categories that are left."""
    stages: tuple[Stage, ...]


def select(
    split: Literal["training", "test"], file: CocoFile, rules: CocoRules, *, like: Selection | None = None
) -> Selection:
    """Pass all objects through the stages; threshold and classes come from `like`, if there is one."""
    stages = [count(split, "all annotations", file, np.ones(len(file.image), dtype=bool))]
    # Images without any object are in the file, too.
    stages[0] = stages[0]._replace(images=len(file.image_ids))

    def keep(name: str, kept: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        stages.append(count(split, name, file, kept))
        if not kept.any():
            raise ValueError(f"{file.path}: no {split} image is left after the stage {name!r} of {rules}")
        return kept

    kept = np.ones(len(file.image), dtype=bool)
    if not rules.crowds:
        kept = keep("no crowds", ~file.crowd)

    areas = object_areas(file, rules)
    if like is not None:
        min_area = like.min_area
    elif rules.min_area is not None:
        min_area = float(rules.min_area)
    else:
        min_area = float(np.percentile(areas[kept], rules.area_percentile))
    kept = keep(f"large objects: area above {min_area:,.2f}", kept & (areas > min_area))
    _check_large_boxes(file, kept)

    least, most = rules.sizes
    kept = keep(f"{_span(least, most)} of them in an image", kept & _of_right_size(file, kept, rules))

    frequency = np.bincount(file.category[kept], minlength=len(file.categories)) / kept.sum()
    rare_below = 1 / len(file.categories) if rules.rare_below is None else rules.rare_below
    common = frequency >= rare_below if like is None else like.common
    kept = keep("not only rare classes", kept & _holds_any(file, kept & common[file.category]))

    # What can be a label of the test set is what is one in the training set.
    everything = np.ones_like(common)
    allowed = (everything if rules.mixed == "keep" else common) if like is None else like.classes
    if rules.mixed == "drop-label":
        fits = kept & allowed[file.category]
        fits &= _of_right_size(file, fits, rules)
    else:
        fits = kept & ~_holds_any(file, kept & ~allowed[file.category])
    kept = keep(f"mixed images: {rules.mixed}", fits)
    classes = np.bincount(file.category[kept], minlength=len(file.categories)) > 0
    return Selection(kept, min_area, common, classes, tuple(stages))


def object_areas(file: CocoFile, rules: CocoRules) -> Float64[np.ndarray, " n"]:
    """The area of each object (N,), as the rules define it."""
    if rules.area == "box":
        return np.asarray(file.boxes[:, 2] * file.boxes[:, 3])
    if file.areas is None:
        raise ValueError(f"{file.path}: not all annotations have an 'area'; add it or choose area='box'")
    return file.areas


def _of_right_size(file: CocoFile, kept: Bool[np.ndarray, " n"], rules: CocoRules) -> Bool[np.ndarray, " n"]:
    """Whether each object's image holds a number of kept objects that the rules allow."""
    least, most = rules.sizes
    sizes = np.bincount(file.image[kept], minlength=len(file.image_ids))[file.image]
    return np.asarray((least <= sizes) & (sizes <= most))


def _holds_any(file: CocoFile, wanted: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Whether each object's image holds any of the wanted objects."""
    found = np.bincount(file.image[wanted], minlength=len(file.image_ids))[file.image]
    return np.asarray(found > 0)


def _check_large_boxes(file: CocoFile, kept: Bool[np.ndarray, " n"]) -> None:
    flat = file.object_ids[kept & (file.boxes[:, 2:].min(1) <= 0)].tolist()
    if flat:
        raise ValueError(
            f"{file.path}: {len(flat)} large objects have a bbox without width or height, the first is the "
            f"annotation of id {flat[0]}: correct the bbox, or choose area='box'"
        )


def count(
    split: Literal["training", "test", "train", "validation"],
    name: str,
    file: CocoFile,
    kept: Bool[np.ndarray, " n"],
) -> Stage:
    """How many images, objects and classes are left when these objects are."""
    images, classes = np.unique(file.image[kept]), np.unique(file.category[kept])
    return Stage(split, name, len(images), int(kept.sum()), len(classes))


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
