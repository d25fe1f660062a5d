"""Import of annotated images from COCO JSON, YOLO text and Pascal VOC XML into a manifest.

`docs/import.md` shows the layouts that are recognised.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchmultiset._checks import check, check_one_of
from torchmultiset.data._splits import split_by_id
from torchmultiset.data._write import as_jsonl, relative_path, rounded, upright_boxes, write_new
from torchmultiset.data.images import image_sizes
from torchmultiset.data.importers._annotations import (
    AnnotatedImage,
    AnnotationError,
    AnnotationProblems,
    Reader,
)
from torchmultiset.data.importers._coco import find_coco, read_coco
from torchmultiset.data.importers._voc import find_voc, read_voc
from torchmultiset.data.importers._yolo import find_yolo, read_yolo

__all__ = ["AMBIGUOUS", "FORMATS", "AnnotationError", "Imported", "import_annotations", "recognise"]

FORMATS: dict[str, str] = {"coco": "COCO JSON", "yolo": "YOLO text", "voc": "Pascal VOC XML"}
"""Formats and their full names."""
AMBIGUOUS = ("drop", "keep", "drop-image")
"""Rules for COCO's crowds and Pascal VOC's difficult objects."""
_READERS: dict[str, Reader] = {"coco": read_coco, "yolo": read_yolo, "voc": read_voc}
_VALIDATION = 0.15


@dataclass(frozen=True)
class Imported:
    """Summary of an import."""

    format: str
    """``"coco"``, ``"yolo"`` or ``"voc"``."""
    images: dict[str, int]
    """Number of images by split; the key is empty if the manifest has no splits."""
    labels: dict[str, int]
    """Number of objects by class, sorted by class."""
    ambiguous: int
    """Number of crowds and difficult objects in the source."""
    left_out: int
    """Number of images left out because of them."""
    notes: tuple[str, ...]
    """Choices to report: about splits, class names and ambiguous objects."""


def recognise(source: str | Path) -> str:
    """Return the format of annotations: ``"coco"``, ``"yolo"`` or ``"voc"``.

    Raises:
        FileNotFoundError: There is nothing at `source`.
        ValueError: None or several of the formats fit.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")
    found = {"coco": find_coco(source), "voc": find_voc(source), "yolo": find_yolo(source)}
    if found["yolo"] and not any(file.suffix == ".txt" for file in found["yolo"]) and (found["coco"] or found["voc"]):
        found["yolo"] = []  # a data.yaml beside other annotations
    fit = [name for name, files in found.items() if files]
    expected = "a COCO .json file, or a folder with COCO .json, YOLO .txt or Pascal VOC .xml files"
    check(bool(fit), "source", expected, str(source))
    if len(fit) > 1:
        which = " and ".join(FORMATS[name] for name in fit)
        raise ValueError(f"{source} contains {which}: choose one with --format {' or '.join(fit)}")
    return fit[0]


def import_annotations(
    source: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    images: str | Path | None = None,
    boxes: bool = False,
    ambiguous: str = "drop",
) -> Imported:
    r"""Write a manifest of annotated images; the images are not copied.

    Each image becomes a line with its path relative to the folder of `out`, a label per object, and its split. If all
    images belong to one split, no split is written, so that `read_manifest` draws the splits; if there are training
    images but none for validation, 15% of them are used for validation, chosen by their paths.

    Args:
        source: A COCO .json file, or a folder with annotations; see `docs/import.md` for the layouts.
        out: Output file, .jsonl or .csv. An existing file must have the same content.
        format: ``"coco"``, ``"yolo"`` or ``"voc"``; if None, it is recognised.
        images: Folder of the images, if it is not where the format usually has it.
        boxes: Also write the box of each object, and its area if the source has the area of every object, for the
            rank functions; requires a .jsonl file.
        ambiguous: COCO's crowds (``iscrowd``: an unknown number of objects under one mask) and Pascal VOC's difficult
            objects: ``"drop"`` leaves them out, ``"keep"`` counts each as one object, and ``"drop-image"`` leaves out
            images that have any.

    Raises:
        AnnotationError: The annotations have problems; each is listed with its file, line or element, and what to fix.
        FileExistsError: `out` exists with different content.
        FileNotFoundError: There is nothing at `source`.
        ValueError: The format is not recognised, or an argument is invalid.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> with TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 20)).save(f"{folder}/yard.png")
        ...     _ = Path(folder, "yard.txt").write_text("1 0.5 0.5 0.2 0.2\n0 0.1 0.5 0.2 0.4\n1 0.8 0.5 0.2 0.4\n")
        ...     _ = Path(folder, "classes.txt").write_text("cat\ndog\n")
        ...     imported = import_annotations(folder, f"{folder}/pets.csv")
        ...     print(Path(folder, "pets.csv").read_text())
        image,labels
        yard.png,dog:2;cat:1
        >>> imported.format, imported.labels
        ('yolo', {'cat': 1, 'dog': 2})
    """
    source, out = Path(source), Path(out)
    check(out.suffix.lower() in (".jsonl", ".csv"), "out", "a .jsonl or .csv file", str(out))
    check(not boxes or out.suffix.lower() == ".jsonl", "out", "a .jsonl file, as CSV cannot have boxes", str(out))
    check_one_of("ambiguous", ambiguous, AMBIGUOUS)
    check(images is None or Path(images).is_dir(), "images", "an existing folder", str(images))
    if format is None:
        format = recognise(source)
    check_one_of("format", format, FORMATS)
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")

    problems = AnnotationProblems()
    read = _READERS[format](source, Path(images) if images else None, problems)
    _check_unique(read, problems)
    problems.stop()
    marked = sum(item.ambiguous for annotated in read for item in annotated.objects)
    kept, left_out = _resolve(read, ambiguous)
    if not any(annotated.objects for annotated in kept):
        raise AnnotationError([f"{source}: no object is left in {len(kept)} images: there are no labels to train on"])
    splits, notes = _splits(kept, out)
    notes += [_ambiguous_note(marked, left_out, ambiguous)] if marked else []
    if format == "yolo" and all(item.label.isdecimal() for a in kept for item in a.objects):
        notes.append("the classes have no names, only numbers: add a file classes.txt with one name per line")
    lines = _with_boxes(kept, splits, out, problems) if boxes else _lines(kept, splits, out)
    problems.stop()
    write_new(out, _csv(lines) if out.suffix.lower() == ".csv" else as_jsonl(lines))
    labels = Counter(item.label for annotated in kept for item in annotated.objects)
    counted = Counter(split or "" for split in splits)
    return Imported(format, dict(counted), dict(sorted(labels.items())), marked, left_out, tuple(notes))


def _check_unique(read: Sequence[AnnotatedImage], problems: AnnotationProblems) -> None:
    first: dict[Path, str] = {}
    for annotated in read:
        other = first.setdefault(annotated.image.resolve(), annotated.where)
        if other != annotated.where:
            problems.found.append(f"{annotated.where}: the image {annotated.image} is already annotated in {other}")


def _resolve(read: Sequence[AnnotatedImage], rule: str) -> tuple[list[AnnotatedImage], int]:
    """Apply the rule for ambiguous objects; also return the number of images left out."""
    if rule == "keep":
        return list(read), 0
    if rule == "drop-image":
        kept = [a for a in read if not any(item.ambiguous for item in a.objects)]
        return kept, len(read) - len(kept)
    return [replace(a, objects=tuple(item for item in a.objects if not item.ambiguous)) for a in read], 0


def _splits(kept: Sequence[AnnotatedImage], out: Path) -> tuple[list[str | None], list[str]]:
    """Return the split of each image, and notes about the splits."""
    splits = [annotated.split for annotated in kept]
    present = set(splits)
    if len(present) == 1:
        (only,) = present
        drawn = "the manifest has no splits, so they are drawn when it is read"
        return [None] * len(splits), [f"all images belong to the split {only}: {drawn}"] if only else []
    if None in present:
        without = [annotated for annotated in kept if annotated.split is None]
        raise AnnotationError(
            [f"{a.where}: the image is in no split, but others are: move it to train, valid or test" for a in without]
        )
    training = [i for i, split in enumerate(splits) if split == "train"]
    if "validation" in present or len(training) < 2:
        return splits, []
    paths = [relative_path(kept[i].image, out) for i in training]
    chosen = split_by_id(paths, (1 - _VALIDATION, _VALIDATION), seed=0)
    for i, validation in zip(training, chosen, strict=True):
        splits[i] = "validation" if validation else "train"
    return splits, [f"no validation images: {int(chosen.sum())} of the {len(training)} training images are used"]


def _ambiguous_note(marked: int, left_out: int, rule: str) -> str:
    done = {"drop": "left out", "keep": "kept", "drop-image": f"left out with their {left_out} images"}[rule]
    return f"{marked} crowds or difficult objects are {done} (--ambiguous {rule})"


def _lines(kept: Sequence[AnnotatedImage], splits: Sequence[str | None], out: Path) -> list[dict[str, Any]]:
    lines = []
    for annotated, split in zip(kept, splits, strict=True):
        line: dict[str, Any] = {"image": relative_path(annotated.image, out)}
        line["labels"] = [item.label for item in annotated.objects]
        lines.append(line | ({"split": split} if split else {}))
    return lines


def _with_boxes(
    kept: Sequence[AnnotatedImage], splits: Sequence[str | None], out: Path, problems: AnnotationProblems
) -> list[dict[str, Any]]:
    """Return lines with boxes in pixels of the upright image, and areas if all objects have one."""
    for a in kept:
        if any(item.box is None for item in a.objects):
            problems.found.append(f"{a.where}: an object has no box: add it, or import without --boxes")
    problems.stop()
    areas = all(item.area is not None for a in kept for item in a.objects)
    stored = image_sizes([a.image for a in kept])
    upright = image_sizes([a.image for a in kept], exif=True)
    lines = []
    for a, line, size, turned in zip(kept, _lines(kept, splits, out), stored, upright, strict=True):
        boxes = np.array([item.box for item in a.objects], dtype=np.float64).reshape(-1, 4)
        if a.relative:
            boxes = boxes * np.tile(turned, 2)
        elif a.size != tuple(turned.tolist()) or (size == turned).all():  # annotated as stored
            boxes = boxes * np.tile(size / (a.size or size), 2)  # the file may have been resized
            boxes = upright_boxes(boxes, size, a.image)
        line["boxes"] = rounded(boxes)
        lines.append(line | ({"areas": [item.area for item in a.objects]} if areas else {}))
    return lines


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*lines[0]], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        counts = Counter(line["labels"])
        wrong = [name for name in counts if ";" in name or "\n" in name]
        if wrong:
            raise ValueError(f"the class {wrong[0]!r} cannot be written to CSV: write a .jsonl file")
        writer.writerow(line | {"labels": ";".join(f"{name}:{count}" for name, count in counts.items())})
    return text.getvalue()
