"""Selection of COCO images and objects: the rules and the stages that apply them.

Four stages, in this order (section 5.1 of the paper):

1. Keep large objects: area above the 40th percentile of the training objects.
2. Keep images with the right number of large objects; small objects are ignored.
3. Drop images with only rare classes. A class is rare if it makes up less than 1/|C| of the objects that stage 2
   kept, where C is the set of all categories of the file.
4. Handle images that mix common and rare classes. The paper does not specify how; dropping the rare labels and keeping
   the image reproduces the paper's number of images (docs/coco.md).

The test set goes through the same stages, with the area threshold and the classes of the training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from torchmultiset._checks import check, check_one_of
from torchmultiset.data._coco_file import CocoFile

__all__ = ["CocoRules", "SelectedObjects", "Stage", "count", "object_areas", "select"]


@dataclass(frozen=True)
class CocoRules:
    """Rules that select images and objects of COCO.

    Example:
        >>> CocoRules(sizes=(1, 4), min_area=938.0)  # absolute threshold
        CocoRules(sizes=(1, 4), area_percentile=40.0, min_area=938.0, area='annotation', ...)
    """

    sizes: tuple[int, int] = (2, 2)
    """Minimum and maximum number of large objects per image."""
    area_percentile: float = 40.0
    """An object is large if its area is above this percentile of the training objects."""
    min_area: float | None = None
    """Absolute area threshold for large objects, in pixels of the annotated image; None: use `area_percentile`."""
    area: Literal["annotation", "box"] = "annotation"
    """Definition of area: the file's `area` field (in COCO, the segment's area), or box width times height."""
    rare_below: float | None = None
    """A class is rare if its share of the objects left after the `sizes` stage is below this; None: 1/|C|."""
    mixed: Literal["drop-label", "drop-image", "keep"] = "drop-label"
    """Handling of images with common and rare classes: drop the rare labels, and the image if too few remain, which
    reproduces the paper's sizes; drop the image; or keep it, with its rare classes among the classes."""
    crowds: bool = False
    """Whether crowds count as objects, also in the percentile."""
    validation_share: float = 0.15
    """Fraction of the training images held out for validation."""
    seed: int = 0
    """Random seed of the validation split."""

    def __post_init__(self) -> None:
        least, most = self.sizes
        check(1 <= least <= most, "sizes", "(minimum, maximum) with 1 <= minimum <= maximum", self.sizes)
        check(0 <= self.area_percentile <= 100, "area_percentile", "from 0 to 100", self.area_percentile)
        check(self.min_area is None or self.min_area >= 0, "min_area", "None or at least 0", self.min_area)
        check_one_of("area", self.area, ("annotation", "box"))
        check(self.rare_below is None or 0 <= self.rare_below <= 1, "rare_below", "None or 0 to 1", self.rare_below)
        check_one_of("mixed", self.mixed, ("drop-label", "drop-image", "keep"))
        check(0 <= self.validation_share < 1, "validation_share", "at least 0 and below 1", self.validation_share)


class Stage(NamedTuple):
    """Number of images, objects and classes that one stage keeps of one split."""

    split: Literal["training", "test", "train", "validation"]
    """`training` is the union of `train` and `validation`."""
    name: str
    images: int
    objects: int
    classes: int


class SelectedObjects(NamedTuple):
    """Objects selected from one annotation file (N objects, C categories), with the threshold and classes used."""

    kept: Bool[np.ndarray, " n"]
    """Mask of the selected objects."""
    min_area: float
    common: Bool[np.ndarray, " c"]
    """Mask of the categories that are not rare."""
    classes: Bool[np.ndarray, " c"]
    """Mask of the categories that remain."""
    stages: tuple[Stage, ...]


def select(
    split: Literal["training", "test"], file: CocoFile, rules: CocoRules, *, like: SelectedObjects | None = None
) -> SelectedObjects:
    """Pass all objects through the stages, with the threshold and classes of `like` if given."""
    stages = [count(split, "all annotations", file, np.ones(len(file.image), dtype=bool))]
    # `count` sees only images with objects; the file also lists images without any.
    stages[0] = stages[0]._replace(images=len(file.image_ids))

    def keep(name: str, kept: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        stages.append(count(split, name, file, kept))
        if not kept.any():
            raise ValueError(f"{file.path}: no {split} image is left after the stage {name!r}; relax {rules}")
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

    number = " to ".join(map(str, dict.fromkeys(rules.sizes)))
    kept = keep(f"{number} of them in an image", kept & _of_right_size(file, kept, rules))

    frequency = np.bincount(file.category[kept], minlength=len(file.categories)) / kept.sum()
    rare_below = 1 / len(file.categories) if rules.rare_below is None else rules.rare_below
    common = frequency >= rare_below if like is None else like.common
    kept = keep("not only rare classes", kept & _holds_any(file, kept & common[file.category]))

    # Test labels are restricted to the classes of the training set.
    everything = np.ones_like(common)
    allowed = (everything if rules.mixed == "keep" else common) if like is None else like.classes
    if rules.mixed == "drop-label":
        fits = kept & allowed[file.category]
        fits &= _of_right_size(file, fits, rules)
    else:
        fits = kept & ~_holds_any(file, kept & ~allowed[file.category])
    kept = keep(f"mixed images: {rules.mixed}", fits)
    classes = np.bincount(file.category[kept], minlength=len(file.categories)) > 0
    return SelectedObjects(kept, min_area, common, classes, tuple(stages))


def object_areas(file: CocoFile, rules: CocoRules) -> Float64[np.ndarray, " n"]:
    """Return the area of each object (N,), as defined by the rules."""
    if rules.area == "box":
        return np.asarray(file.boxes[:, 2] * file.boxes[:, 3])
    if file.areas is None:
        raise ValueError(f"{file.path}: not all annotations have an 'area': add it, or use area='box'")
    return file.areas


def _of_right_size(file: CocoFile, kept: Bool[np.ndarray, " n"], rules: CocoRules) -> Bool[np.ndarray, " n"]:
    """Return whether each object's image has a number of kept objects within `rules.sizes`."""
    least, most = rules.sizes
    sizes = np.bincount(file.image[kept], minlength=len(file.image_ids))[file.image]
    return np.asarray((least <= sizes) & (sizes <= most))


def _holds_any(file: CocoFile, wanted: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return whether each object's image contains any of the wanted objects."""
    found = np.bincount(file.image[wanted], minlength=len(file.image_ids))[file.image]
    return np.asarray(found > 0)


def _check_large_boxes(file: CocoFile, kept: Bool[np.ndarray, " n"]) -> None:
    flat = file.object_ids[kept & (file.boxes[:, 2:].min(1) <= 0)].tolist()
    if flat:
        raise ValueError(
            f"{file.path}: {len(flat)} large objects have a bbox of zero width or height, starting with annotation id "
            f"{flat[0]}: correct the bbox, or use area='box'"
        )


def count(
    split: Literal["training", "test", "train", "validation"],
    name: str,
    file: CocoFile,
    kept: Bool[np.ndarray, " n"],
) -> Stage:
    """Count the images, objects and classes among the kept objects."""
    images, classes = np.unique(file.image[kept]), np.unique(file.category[kept])
    return Stage(split, name, len(images), int(kept.sum()), len(classes))
