"""Annotated images, as all importers return them, and the problems that they report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmultiset.data._parse import problem_list

__all__ = [
    "SPLIT_NAMES",
    "SUFFIXES",
    "AnnotatedImage",
    "AnnotatedObject",
    "AnnotationError",
    "AnnotationProblems",
    "Box",
    "Reader",
    "find_images",
    "read_lines",
    "split_of",
    "split_of_folder",
]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""File name extensions of images, in lower case."""
SPLIT_NAMES = {"train": "train", "training": "train"}
SPLIT_NAMES |= {"val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
"""Names of folders and files, each with the split that it denotes."""

Box = tuple[float, float, float, float]
"""x, y, width and height."""


class AnnotationError(ValueError):
    """Error that lists all problems of annotation files.

    Attributes:
        problems: All problems, each with its file and place; the message shows the first 10.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return problem_list("the annotations; nothing was written", self.problems)


@dataclass
class AnnotationProblems:
    """Collector for the problems of annotation files."""

    found: list[str] = field(default_factory=list)

    def add(self, path: Path, where: str | int, what: object) -> None:
        """Record a problem of a file; `where` is an element, a line number, or empty for the file as a whole."""
        place = f"line {where}" if isinstance(where, int) else where
        self.found.append(f"{path}: {place}: {what}" if place else f"{path}: {what}")

    def stop(self) -> None:
        """Raise an AnnotationError if there are any problems."""
        if self.found:
            raise AnnotationError(self.found)


@dataclass(frozen=True)
class AnnotatedObject:
    """One annotated object."""

    label: str
    box: Box | None = None
    """x, y, width and height; None if the annotation has no box."""
    area: float | None = None
    """Area of the object's mask in pixels, if known."""
    ambiguous: bool = False
    """Whether it is a crowd (COCO) or difficult (Pascal VOC)."""


@dataclass(frozen=True)
class AnnotatedImage:
    """One image and its objects."""

    image: Path
    objects: tuple[AnnotatedObject, ...]
    split: str | None = None
    where: str = ""
    """File and element of the annotation, for error messages."""
    size: tuple[int, int] | None = None
    """Width and height that the annotation states; None if it states none."""
    relative: bool = False
    """Whether boxes are fractions of the upright image's width and height, as in YOLO, instead of pixels."""


def split_of(name: str) -> str | None:
    """Return the split that a name contains as a word, or None.

    Example:
        >>> split_of("instances_val2017"), split_of("training"), split_of("trains")
        ('validation', 'train', None)
    """
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def split_of_folder(path: Path, source: Path) -> str | None:
    """Return the split in the name of a folder between `source` and the file `path`, or None."""
    folders = path.relative_to(source).parent.parts
    return next((split for split in map(split_of, folders) if split), None)


def read_lines(path: Path, problems: AnnotationProblems) -> list[str]:
    """Return the lines of a text file; if it is not UTF-8, record a problem and return none."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        problems.add(path, "", "is not text in UTF-8: export it again")
        return []


def find_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, sorted; hidden files and folders are left out."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    hidden = (".", "__MACOSX")
    return sorted(one for one in found if not any(part.startswith(hidden) for part in one.relative_to(folder).parts))


Reader = Callable[[Path, Path | None, AnnotationProblems], list[AnnotatedImage]]
"""Reader of a format: (file or folder of the annotations, folder of the images or None to search near the annotations,
collector for problems) -> annotated images."""
