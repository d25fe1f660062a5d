"""Reader for user-defined data: a JSONL or CSV file, or a folder of images with a labels file.

`docs/own-data.md` shows the formats by example.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float32, Int64

from torchmultiset._checks import check
from torchmultiset.data._arrays import ArrayFiles
from torchmultiset.data._columns import Column, check_columns, encode, learn_columns
from torchmultiset.data._parse import ManifestError, Problems, did_you_mean, show
from torchmultiset.data._readable import readable_records, recognise_vectors
from torchmultiset.data._records import VECTORS, Record, read_records
from torchmultiset.data._splits import SPLITS, split_by_id
from torchmultiset.data.examples import Examples, Inputs
from torchmultiset.data.tokens import TokenKind, TokenRows, TokenText

__all__ = ["FRACTIONS", "Column", "Manifest", "ManifestError", "labels_file", "read_manifest"]

FRACTIONS = (0.7, 0.15, 0.15)
"""Default fractions of train, validation and test if the lines have no split."""


@dataclass(frozen=True, eq=False)
class Manifest:
    r"""A user-defined data set that is parsed but not yet split; `examples` opens it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "pets.csv")
        ...     _ = file.write_text("weight,labels,split\n9.5,cat;dog,train\n3.5,cat;cat,test\n")
        ...     manifest = Manifest.read(file)
        >>> len(manifest.records), manifest.classes, manifest.has_splits
        (2, ('cat', 'dog'), True)
    """

    path: Path
    """The .jsonl or .csv file."""
    records: Sequence[Record]
    """Valid lines."""
    classes: tuple[str, ...]
    """Class names in the order of their indices."""

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        classes: Sequence[str] | None = None,
        labelled: bool = True,
        skip_unreadable: bool = False,
        check_inputs: bool = False,
        progress: bool = False,
        accept: Callable[[Sequence[Record]], None] = lambda _: None,
        vectors: bool = False,
    ) -> Manifest:
        """Parse and validate a file; for the arguments and errors, see `read_manifest`.

        `accept` is called with the valid lines first; an error that it raises takes precedence over their problems.
        With `vectors`, arrays are sets or sequences of vectors, even if all have one shape.
        """
        if classes is not None:
            _check_classes(classes)
        check(check_inputs or not skip_unreadable, "skip_unreadable", "False without check_inputs", skip_unreadable)
        source = labels_file(Path(path))
        problems = Problems(source)
        records = read_records(source, problems, labelled=labelled)
        if not records and not problems.found:
            problems.add(0, "the file has no examples: write one line per example")
        if records and all(record.kind == "array" for record in records):
            records = recognise_vectors(records, source.parent, always=vectors)
        accept(records)
        names = _class_names(records, classes, problems)
        _check_together(records, problems)
        records = readable_records(records, problems, skip_unreadable, check_inputs, progress)
        problems.stop()
        return cls(source, records, names)

    @property
    def has_splits(self) -> bool:
        """Whether the lines have a split."""
        return any(record.split for record in self.records)

    @property
    def images(self) -> list[Path]:
        """Paths of the images; none for other inputs."""
        return [self.path.parent / record.path for record in self.records if record.kind == "image"]

    def examples(
        self,
        *,
        fractions: Sequence[int | float] = FRACTIONS,
        seed: int = 0,
        image_size: int = 224,
        exif: bool = True,
        columns: Sequence[Column] = (),
    ) -> dict[str, Examples]:
        """Return the splits ``"train"``, ``"validation"`` and ``"test"``; for the arguments, see `read_manifest`."""
        numbers = not isinstance(fractions, str) and all(isinstance(share, int | float) for share in fractions)
        ok = numbers and len(fractions) == 3 and min(fractions) >= 0 and abs(sum(fractions) - 1) < 1e-6
        check(ok, "fractions", "three numbers, for train, validation and test, that sum to 1", fractions)
        check(image_size >= 1, "image_size", "at least 1 pixel", image_size)
        problems, records, kind = Problems(self.path), self.records, self.records[0].kind
        splits = self._splits(fractions, seed, problems)
        index = {name: i for i, name in enumerate(self.classes)}
        labels = np.full((len(records), max(len(record.labels) for record in records)), -1, dtype=np.int64)
        for row, record in zip(labels, records, strict=True):
            row[: len(record.labels)] = [index[label] for label in record.labels]
        paths = [self.path.parent / record.path for record in records]
        boxes, areas = _boxes_and_areas(records, labels, paths, image_size, exif)
        inputs: Inputs
        if records[0].cells:
            train = splits == SPLITS.index("train")
            if columns:
                check_columns(columns, records, problems)
            columns = tuple(columns) or learn_columns(records, train if train.any() else ~train, problems)
            problems.stop()
            inputs = encode(columns, records)
        else:
            columns, inputs = (), _inputs(records, paths, image_size, exif)
        examples = Examples(
            inputs,
            labels,
            self.classes,
            boxes=boxes,
            areas=areas,
            ids=[record.id for record in records],
            columns=columns,
            tokens="text" if isinstance(inputs, TokenText) else cast(TokenKind, kind) if kind in VECTORS else None,
            cut=inputs.cut if isinstance(inputs, TokenText | TokenRows) else 0,
        )
        return {name: examples.subset(np.flatnonzero(splits == i)) for i, name in enumerate(SPLITS)}

    def _splits(self, fractions: Sequence[int | float], seed: int, problems: Problems) -> Int64[np.ndarray, " n"]:
        """Return the split of each record (N,), as an index into `SPLITS`."""
        records = self.records
        if self.has_splits:
            return np.array([SPLITS.index(record.split or "train") for record in records], dtype=np.int64)
        wanted = sum(share > 0 for share in fractions)
        if len(records) < wanted:
            fix = "add examples, set the split on each line, or use other fractions"
            problems.add(0, f"{len(records)} examples cannot fill {wanted} splits: {fix}")
            problems.stop()
        labelled = np.array([bool(record.labels) for record in records])
        return split_by_id([record.id for record in records], fractions, seed, labelled=labelled)


def read_manifest(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    fractions: Sequence[int | float] = FRACTIONS,
    seed: int = 0,
    image_size: int = 224,
    exif: bool = True,
    skip_unreadable: bool = False,
    check_inputs: bool = True,
    labelled: bool = True,
    columns: Sequence[Column] = (),
    progress: bool = False,
) -> dict[str, Examples]:
    r"""Read a user-defined data set.

    Args:
        path: A .jsonl file, a .csv file, or a folder that contains labels.jsonl or labels.csv. Paths in the file
            are relative to its folder.
        classes: Class names in the order of their indices; any other label is a problem. If None, the sorted labels of
            the file.
        fractions: Fractions of train, validation and test, used if the lines have no split. The split of an example
            depends only on its id and the seed, so it does not change when lines are added. Exception: in a very small
            file, an example is moved to a split that would be empty, or to train if that would have no labels.
        seed: Random seed of the split.
        image_size: Side length of the square that images are resized to, in pixels.
        exif: Apply the EXIF orientation of images, as image viewers do; boxes refer to the rotated image. If False,
            images and boxes are as stored.
        skip_unreadable: Skip examples whose image or array cannot be read, with a warning that counts and lists them. A
            missing file is still a problem. Requires `check_inputs`.
        check_inputs: Read every image and array once now, so that a damaged file cannot abort training later.
        labelled: Whether every line must have labels; if False, missing labels mean an empty multiset. Requires
            `classes`.
        columns: Columns that a model was trained on, to encode a table in the same way. If empty, columns are fitted
            on the training examples of this file.
        progress: Show a progress bar while images are read.

    Returns:
        The splits ``"train"``, ``"validation"`` and ``"test"``, with the same classes. A split may be empty.

    Raises:
        ManifestError: The file has problems; each is listed with its line number and what to fix.
        FileNotFoundError: The file does not exist, or the folder has no labels file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "pets.csv")
        ...     _ = file.write_text(
        ...         "weight,legs,labels,split\n9.5,8,cat;dog,train\n3.5,8,cat;cat,train\n0,0,,test\n"
        ...     )
        ...     splits = read_manifest(file)
        >>> splits["train"].classes
        ('cat', 'dog')
        >>> splits["train"].counts
        array([[1, 1],
               [2, 0]])
        >>> {name: len(examples) for name, examples in splits.items()}
        {'train': 2, 'validation': 0, 'test': 1}
    """
    manifest = Manifest.read(
        path,
        classes=classes,
        labelled=labelled,
        skip_unreadable=skip_unreadable,
        check_inputs=check_inputs,
        progress=progress,
    )
    return manifest.examples(fractions=fractions, seed=seed, image_size=image_size, exif=exif, columns=columns)


def _check_classes(classes: Sequence[str]) -> None:
    ok = not isinstance(classes, str) and all(isinstance(c, str) and c and c == c.strip() for c in classes)
    check(ok and len(classes) >= 1, "classes", "a list of names without surrounding spaces", classes)
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise ValueError(f"classes must be unique, but {twice} occur more than once")


def labels_file(path: Path) -> Path:
    """Return the file itself, or the labels file of a folder."""
    if path.is_dir():
        found = [file for file in (path / "labels.jsonl", path / "labels.csv") if file.is_file()]
        if not found:
            others = sorted(file for file in path.iterdir() if file.suffix.lower() in (".csv", ".jsonl"))
            if others:
                fix = f"train on the file {others[0]} itself, or rename it to labels{others[0].suffix}"
                raise FileNotFoundError(f"there is no labels.csv in {path}, but {others[0].name}: {fix}")
            raise FileNotFoundError(
                f"there is no data set in {path}: it has no labels.csv. Write one with the columns image and labels, "
                "one line per image, such as yard.jpg,cat;cat;dog (labels.jsonl and built data sets are also accepted)"
            )
        check(len(found) == 1, str(path), "a folder with one labels file", [file.name for file in found])
        return found[0]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.suffix.lower() not in (".jsonl", ".csv"):
        fix = "save a spreadsheet as CSV, and list images in a labels.csv"
        raise ValueError(f"{path} is neither a .jsonl or .csv file nor a folder: {fix}")
    return path


def _class_names(records: list[Record], given: Sequence[str] | None, problems: Problems) -> tuple[str, ...]:
    lines = {label: record.line for record in reversed(records) for label in record.labels}
    if given is None:
        if records and not lines and not problems.found:
            problems.add(0, "no line has a label: add examples with labels, or specify the class names (classes=[...])")
        alike: dict[str, str] = {}
        for name, line in sorted(lines.items(), key=lambda item: item[1]):
            other = alike.setdefault(unicodedata.normalize("NFKC", name).casefold(), name)
            if other != name:
                fix = "use one spelling, or list all labels as classes (--classes) if both are intended"
                problems.add(line, f"the labels {other!r} and {name!r} differ only in case or Unicode form: {fix}")
        return tuple(sorted(lines))
    hints = {name: did_you_mean(name, given) for name in lines.keys() - set(given)}
    for record in records:
        for label in dict.fromkeys(record.labels):
            if label in hints:
                problems.add(record.line, f"the label {show(label)} is not one of the classes{hints[label]}")
    return tuple(given)


def _check_together(records: list[Record], problems: Problems) -> None:
    """Find problems across lines: duplicate ids, and lines that are inconsistent with the first."""
    line_of: dict[str, int] = {}
    parts = [part for part in ("split", "boxes", "areas") if any(getattr(r, part) is not None for r in records)]
    for record in records:
        first, line = records[0], record.line
        if line_of.setdefault(record.id, line) != line:
            fix = "remove one, or give each line a unique id"
            problems.add(line, f"the id {show(record.id)} is already used on line {line_of[record.id]}: {fix}")
        if record.kind != first.kind:
            fix = "use one kind of input per file"
            problems.add(line, f"the input is {record.kind}, but on line {first.line} it is {first.kind}: {fix}")
        elif len(record.features) != len(first.features):
            expected = f"line {first.line} has {len(first.features)}"
            problems.add(line, f"the line has {len(record.features)} features, but {expected}")
        elif record.cells.keys() != first.cells.keys():
            different = ", ".join(sorted(record.cells.keys() ^ first.cells.keys()))
            problems.add(line, f"the feature names differ from those on line {first.line}: {show(different)}")
        for part in parts:
            if getattr(record, part) is None and (record.labels or part == "split"):
                problems.add(line, f"{part!r} is missing, but other lines have it: add it to all lines or none")


def _boxes_and_areas(
    records: Sequence[Record], labels: Int64[np.ndarray, "n m"], paths: list[Path], image_size: int, exif: bool
) -> tuple[Float32[np.ndarray, "n m 4"] | None, Float32[np.ndarray, "n m"] | None]:
    """Return the boxes (N, M, 4) in pixels of the inputs, and the areas (N, M): as given, or else those of the boxes.

    Both are None if no record has boxes or areas.
    """
    known = labels >= 0
    boxes = areas = None
    if any(record.boxes is not None for record in records):
        placed = np.array([box for record in records for box in record.boxes or ()]).reshape(-1, 4)
        if records[0].kind == "image":
            from torchmultiset.data.images import image_sizes, place_boxes  # so that arrays need no Pillow

            sizes = image_sizes(paths, exif=exif)[known.nonzero()[0]]
            placed = place_boxes(placed, sizes, sizes, image_size)
        boxes = np.zeros((*labels.shape, 4), dtype=np.float32)
        boxes[known] = placed
        areas = boxes[..., 2:].prod(-1)
    if any(record.areas is not None for record in records):
        areas = np.zeros(labels.shape, dtype=np.float32)
        areas[known] = [area for record in records for area in record.areas or ()]
    return boxes, areas


def _inputs(records: Sequence[Record], paths: list[Path], image_size: int, exif: bool) -> Inputs:
    """Return the inputs of anything but a table."""
    if records[0].kind in VECTORS:
        return TokenRows([record.rows for record in records if record.rows is not None])
    if records[0].kind == "features":
        return np.stack([record.features for record in records])
    if records[0].kind == "array":
        return ArrayFiles(paths)
    from torchmultiset.data.images import ImageFiles

    return ImageFiles(paths, image_size, exif=exif)
