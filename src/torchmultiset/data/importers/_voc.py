"""Importer for Pascal VOC XML: a folder with an .xml file per image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from torchmultiset._files import is_file
from torchmultiset.data._parse import show
from torchmultiset.data.importers._annotations import (
    SUFFIXES,
    AnnotatedImage,
    AnnotatedObject,
    AnnotationProblems,
    Box,
    read_lines,
    split_of_folder,
)

__all__ = ["find_voc", "read_voc"]

_LARGEST = 16 * 2**20  # bytes; VOC's largest annotation has some 20 KB
_DEEPEST = 100
# In the order of preference: with train.txt and val.txt, trainval.txt is not needed.
_LISTS = (("train", "train"), ("val", "validation"), ("test", "test"), ("trainval", "train"))


@dataclass
class Element:
    """Element of an XML file, with its line number."""

    tag: str
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Return the direct children with this tag."""
        return [child for child in self.children if child.tag == tag]

    def child(self, tag: str) -> Element | None:
        """Return the first direct child with this tag."""
        return next(iter(self.all(tag)), None)

    def content(self, tag: str) -> str:
        """Return the text of the first child with this tag without surrounding spaces; empty if there is none."""
        child = self.child(tag)
        return child.text.strip() if child else ""


class _XmlError(ValueError):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def find_voc(source: Path) -> list[Path]:
    """Return the .xml files of a folder and its subfolders, or a single file."""
    if source.is_file():
        return [source] if source.suffix.lower() == ".xml" else []
    return sorted(path for path in source.rglob("*.xml") if not path.name.startswith("."))


def read_voc(source: Path, images: Path | None, problems: AnnotationProblems) -> list[AnnotatedImage]:
    """Read all annotation files of a folder.

    The split is that of a folder named train, valid or test, or else of the lists in ``ImageSets/Main``; if there are
    such lists, annotations that are in none of them are left out.
    """
    files = find_voc(source)
    if not files:
        problems.add(source, "", "there is no Pascal VOC annotation (.xml)")
    root = source if source.is_dir() else source.parent
    listed = _listed(root, problems)
    read = []
    for file in files:
        split = split_of_folder(file, root)
        if not split and listed:
            if file.stem not in listed:
                continue
            split = listed[file.stem]
        annotated = _read_file(file, split, images, problems)
        read += [annotated] if annotated else []
    if listed and not read and not problems.found:
        problems.add(
            root / "ImageSets" / "Main", "", "the lists contain none of the annotations: correct or remove them"
        )
    return read


def _parse_xml(path: Path) -> Element:
    """Parse an XML file into a tree, without document types and entities.

    A document type is rejected before its content is read, so that no entity can be declared and expanded, neither
    recursively (an XML bomb) nor from another file. Files that are too large or too deeply nested are refused, too.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    top = Element("", 0)
    stack = [top]

    def start(tag: str, _: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise _XmlError(parser.CurrentLineNumber, f"elements are nested more than {_DEEPEST} deep")
        element = Element(tag, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text += data

    def refuse(*_: object) -> NoReturn:
        fix = "remove it; annotations need no document type and no entities"
        raise _XmlError(parser.CurrentLineNumber, f"has a document type (<!DOCTYPE), which is not read: {fix}")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    if path.stat().st_size > _LARGEST:
        raise _XmlError(0, f"larger than {_LARGEST // 2**20} MiB, too large for the annotation of one image")
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise _XmlError(error.lineno, f"not XML: {what} at column {error.offset + 1}; export it again") from None
    except (LookupError, ValueError) as error:
        if isinstance(error, _XmlError):
            raise
        raise _XmlError(1, f"not XML: {error}; save it as UTF-8") from None
    return top.children[0]


def _listed(root: Path, problems: AnnotationProblems) -> dict[str, str]:
    """Return the split of each name in ``ImageSets/Main``; train, val and test take precedence over trainval."""
    splits: dict[str, str] = {}
    for name, split in _LISTS:
        file = root / "ImageSets" / "Main" / f"{name}.txt"
        if file.is_file() and not (name == "trainval" and {"train", "validation"} <= set(splits.values())):
            for line in read_lines(file, problems):
                if line.strip():
                    splits.setdefault(line.split()[0], split)
    return splits


def _read_file(
    file: Path, split: str | None, images: Path | None, problems: AnnotationProblems
) -> AnnotatedImage | None:
    try:
        root = _parse_xml(file)
    except _XmlError as error:
        problems.add(file, error.line or "", error)
        return None
    if root.tag != "annotation":
        fix = "pass a folder in which all .xml files are annotations"
        problems.add(file, root.line, f"the first element must be <annotation>, but is <{root.tag}>: {fix}")
        return None
    objects = []
    for item in root.all("object"):
        name = item.content("name")
        if not name:
            problems.add(file, item.line, "<object> must have a <name> with the class: add it")
            continue
        try:
            box = _box(item)
        except _XmlError as error:
            problems.add(file, error.line, error)
            continue
        ambiguous = item.content("difficult") not in ("", "0")
        objects.append(AnnotatedObject(name, box, ambiguous=ambiguous))
    image = _image(file, root, images)
    if image is None:
        written = root.content("filename") or f"{file.stem}.jpg"
        fix = "add the image, or pass the folder of the images (--images)"
        problems.add(file, root.line, f"there is no image {show(written)}: {fix}")
        return None
    return AnnotatedImage(image, tuple(objects), split, str(file), _size(root))


def _box(item: Element) -> Box | None:
    """Return the box: VOC's corners are the first and last pixel, counted from 1."""
    corners = item.child("bndbox")
    if corners is None:
        return None
    numbers = []
    for tag in ("xmin", "ymin", "xmax", "ymax"):
        try:
            number = float(corners.content(tag))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _XmlError(corners.line, f"<bndbox> must have a number <{tag}>, but has {show(corners.content(tag))}")
        numbers.append(number)
    left, top, right, bottom = numbers
    if right < left or bottom < top:
        raise _XmlError(corners.line, f"<bndbox> must have xmin <= xmax and ymin <= ymax, but has {numbers}")
    left, top = max(left - 1, 0), max(top - 1, 0)
    return left, top, max(right - left, 0), max(bottom - top, 0)


def _image(file: Path, root: Element, images: Path | None) -> Path | None:
    """Return the image that the file describes: by <filename>, or with the same name as the .xml file."""
    written = root.content("filename").replace("\\", "/").rpartition("/")[2]
    names = [written] if written else []
    names += [f"{file.stem}{suffix}" for end in SUFFIXES for suffix in (end, end.upper())]
    beside = file.parent.parent
    folders = [images] if images else [file.parent, beside / "JPEGImages", beside / "images", beside]
    places = (folder / name for name in names for folder in folders)
    return next(filter(is_file, places), None)


def _size(root: Element) -> tuple[int, int] | None:
    size = root.child("size")
    width, height = (size.content("width"), size.content("height")) if size else ("", "")
    whole = all(side.isdecimal() and len(side) < 10 and int(side) > 0 for side in (width, height))
    return (int(width), int(height)) if whole else None
