"""Summary of a data set: number of examples, multiset sizes, class frequencies and repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text

from torchmultiset._checks import check, some
from torchmultiset.data.examples import Examples
from torchmultiset.viz.terminal import numbers_table

__all__ = ["ClassSummary", "Description", "SplitSummary", "describe", "headline", "splits_table", "summary_tables"]

# Row limits for a terminal; the JSON output is complete.
_ROWS_OF_SIZES = 20
_ROWS_OF_CLASSES = 40
_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class ClassSummary:
    """Frequency of a class in a split."""

    labels: int
    """Total number of occurrences: an example with two of the class counts twice."""
    examples: int
    """Number of examples that contain the class."""
    most: int
    """Maximum count of the class in one example."""


@dataclass(frozen=True)
class SplitSummary:
    """Summary of one split."""

    examples: int
    labels: int
    """Total number of labels: the sum of all multiset sizes."""
    distinct: int
    """Number of distinct multisets."""
    repeats: int
    """Number of examples that contain a class more than once."""
    sizes: dict[int, int]
    """Multiset size -> number of examples; sizes that do not occur are left out."""
    classes: dict[str, ClassSummary]


@dataclass(frozen=True)
class Description:
    """Summary of a data set; ``dataclasses.asdict`` converts it for JSON."""

    classes: tuple[str, ...]
    input_dtype: str
    input_shape: tuple[int, ...]
    """Shape of one input of a batch: (channels, height, width) for images; the number of positions of text, sets and
    sequences is 0."""
    boxes: bool
    """Whether bounding boxes of the objects are known."""
    areas: bool
    splits: dict[str, SplitSummary]
    columns: tuple[str, ...] = ()
    """Names of the columns of a table."""


def describe(splits: Mapping[str, Examples]) -> Description:
    """Summarise the splits of a data set; only one input is read.

    Args:
        splits: Examples of each split, with the same classes.

    Raises:
        ValueError: If all splits are empty.

    Example:
        >>> pixels = np.zeros((3, 1, 8, 8), dtype=np.uint8)
        >>> labels = np.array([[1, 1], [0, -1], [0, 1]])  # {dog, dog}, {cat} and {cat, dog}
        >>> description = describe({"train": Examples(pixels, labels, classes=("cat", "dog"))})
        >>> description.splits["train"].sizes
        {1: 1, 2: 2}
        >>> description.splits["train"].classes["dog"]
        ClassSummary(labels=3, examples=2, most=2)
    """
    filled = [examples for examples in splits.values() if len(examples)]
    check(bool(filled), "splits", "a data set with at least one example", dict.fromkeys(splits, 0))
    first = filled[0].inputs[np.array([0])]
    return Description(
        classes=filled[0].classes,
        input_dtype=str(first.dtype),
        input_shape=first.shape[1:] if filled[0].tokens is None else (0, *first.shape[2:]),
        boxes=filled[0].boxes is not None,
        areas=filled[0].areas is not None,
        splits={name: _summary(examples) for name, examples in splits.items()},
        columns=tuple(column.name for column in filled[0].columns),
    )


def _summary(examples: Examples) -> SplitSummary:
    num_classes = len(examples.classes)
    known = examples.labels >= 0
    row, label = known.nonzero()[0], examples.labels[known].astype(np.int64)
    # Index each pair of an example and a class in it, to avoid dense counts for data sets with many classes.
    pair, count = np.unique(row * num_classes + label, return_counts=True)
    most = np.zeros(num_classes, dtype=np.int64)
    np.maximum.at(most, pair % num_classes, count)
    labels, holding = (np.bincount(which, minlength=num_classes) for which in (label, pair % num_classes))
    sizes, examples_of_size = np.unique(known.sum(1), return_counts=True)
    return SplitSummary(
        examples=len(examples),
        labels=len(label),
        distinct=len({tuple(labels) for labels in np.sort(np.where(known, examples.labels, -1)).tolist()}),
        repeats=len(np.unique(pair[count > 1] // num_classes)),
        sizes=dict(zip(sizes.tolist(), examples_of_size.tolist(), strict=True)),
        classes={
            name: ClassSummary(*numbers)
            for name, *numbers in zip(examples.classes, labels.tolist(), holding.tolist(), most.tolist(), strict=True)
        },
    )


def headline(description: Description) -> str:
    """Summarise classes and inputs, which the tables do not show, in one line.

    Example:
        >>> rows = np.zeros((2, 4), dtype=np.float32)
        >>> headline(describe({"train": Examples(rows, np.array([[0], [1]]), classes=("cat", "dog"))}))
        '2 classes, inputs float32 of shape 4, boxes and areas not known'
    """
    classes = f"{len(description.classes):,} class{'es' * (len(description.classes) > 1)}"
    if description.columns:
        return f"{classes}, rows with the columns {some(description.columns)}"
    known = [name for name in ("boxes", "areas") if getattr(description, name)]
    shape = " x ".join(str(n or "N") for n in description.input_shape)
    return (
        f"{classes}, inputs {description.input_dtype} of shape {shape}, "
        f"{' and '.join(known or ['boxes', 'areas'])} {'' if known else 'not '}known"
    )


def summary_tables(description: Description) -> list[Table]:
    """Return tables of splits, sizes and classes; they fit a terminal of 80 columns."""
    return [splits_table(description), _sizes_table(description), _classes_table(description)]


def splits_table(description: Description) -> Table:
    """Return a table with one row per split."""
    table = numbers_table("Splits", "split", "examples", "labels", "sizes", "mean size", "with repeats", "distinct")
    for name, split in description.splits.items():
        sizes = mean = repeats = "-"
        if split.examples:
            sizes = _span(min(split.sizes), max(split.sizes))
            mean, repeats = f"{split.labels / split.examples:.2f}", f"{split.repeats / split.examples:.1%}"
        table.add_row(name, f"{split.examples:,}", f"{split.labels:,}", sizes, mean, repeats, f"{split.distinct:,}")
    return table


def _sizes_table(description: Description) -> Table:
    splits = _filled(description)
    every = [size for split in splits.values() for size in split.sizes]
    least, most = min(every), max(every)
    width = -(-(most - least + 1) // _ROWS_OF_SIZES)
    bins = [range(start, start + width) for start in range(least, most + 1, width)]
    counts = [[sum(split.sizes.get(size, 0) for size in sizes) for split in splits.values()] for sizes in bins]

    table = numbers_table("Examples by size", "size", *splits, "share", "")
    for sizes, row, share in zip(bins, counts, _shares(counts), strict=True):
        table.add_row(_span(sizes[0], sizes[-1]), *map("{:,}".format, row), *share)
    return table


def _classes_table(description: Description) -> Table:
    splits = _filled(description)
    counts = [[split.classes[name].labels for split in splits.values()] for name in description.classes]
    shares = _shares(counts)
    shown, title = [*range(len(counts))], "Labels by class"
    if len(counts) > _ROWS_OF_CLASSES:
        shown = sorted(shown, key=lambda i: -sum(counts[i]))[:_ROWS_OF_CLASSES]
        title += f", top {_ROWS_OF_CLASSES} of {len(counts):,}"

    table = numbers_table(title, "class", *splits, "share", "", "at most")
    for i in shown:
        name = description.classes[i]
        most = max(split.classes[name].most for split in splits.values())
        table.add_row(Text(name), *map("{:,}".format, counts[i]), *shares[i], str(most))
    return table


def _filled(description: Description) -> dict[str, SplitSummary]:
    """Return the non-empty splits."""
    return {name: split for name, split in description.splits.items() if split.examples}


def _shares(counts: Sequence[Sequence[int]]) -> list[tuple[str, str]]:
    """Return each row's share of the total as a number and a bar; the largest row has the longest bar."""
    sums = [sum(row) for row in counts]
    total, largest = max(sum(sums), 1), max(*sums, 1)
    return [(f"{row / total:.1%}", _bar(row / largest)) for row in sums]


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
