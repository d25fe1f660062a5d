"""The paper's Tables 1 to 3 and its entropy figure as data: methods, data sets and printed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["COLUMNS", "METHODS", "TABLES", "DataSetName", "Printed", "Table", "TableName", "TableRow"]

TableName: TypeAlias = Literal[
    "table-1",
    "table-2",
    "table-3",
    "entropy",
    "beyond",
    "variations",
    "policy",
    "longer",
    "larger",
    "rare",
    "training",
    "rates",
    "trials",
    "precision",
    "recipe",
]
DataSetName: TypeAlias = Literal[
    "mnist-multi-4",
    "mnist-multi-1-4",
    "mnist-multi-10",
    "coco-easy",
    "coco-medium",
    "mnist-multi-1-4-longer",
    "mnist-multi-larger",
    "mnist-multi-rare",
    "mnist-multi-60",
]

COLUMNS: Mapping[DataSetName, str] = {
    "mnist-multi-4": "MNIST Multi (4)",
    "mnist-multi-1-4": "MNIST Multi (1-4)",
    "mnist-multi-10": "MNIST Multi (10)",
    "coco-easy": "COCO Easy",
    "coco-medium": "COCO Medium",
    "mnist-multi-1-4-longer": "MNIST Multi (1-4), more epochs",
    "mnist-multi-larger": "trained with 1-4 digits, tested with 1-8",
    "mnist-multi-rare": "trained with rare digits, tested with all",
    "mnist-multi-60": "MNIST Multi (1-4), 60 pixels",
}
"""The paper's five data sets, named like the presets; one of them with more epochs; and three others."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "multi": {"objective": "multi", "strategy": "greedy"},
    "multi-stochastic": {"objective": "multi", "strategy": "stochastic"},
    "multi-oracle": {"objective": "multi", "strategy": "oracle"},
    "rl": {"objective": "rl"},
    "dm-l1": {"objective": "dm-l1"},
    "dm-kl": {"objective": "dm-kl"},
    "seq": {"objective": "seq", "rank": "random"},
    "seq-random-per-batch": {"objective": "seq", "rank": "random-per-batch"},
    "seq-area": {"objective": "seq", "rank": "area"},
    "seq-spatial": {"objective": "seq", "rank": "spatial"},
    "one-step": {"objective": "one-step"},
}
"""Settings of each method, by the names of the config's fields."""


class Printed(NamedTuple):
    """Numbers of one cell of the paper's tables; standard deviations where the paper has them."""

    em: float
    f1: float
    em_std: float | None = None
    f1_std: float | None = None


class TableRow(NamedTuple):
    """A row of a table."""

    title: str
    printed: tuple[Printed, ...] = ()
    """One for each column; none where the paper has no numbers."""
    only: tuple[DataSetName, ...] | None = None
    """Data sets on which the method can be run; None: all of the table's."""


class Table(NamedTuple):
    """A table, or a figure without printed numbers."""

    split: Literal["validation", "test"]
    """Split on which its numbers are measured."""
    columns: tuple[DataSetName, ...]
    rows: Mapping[str, TableRow]
    """By method."""


def _row(title: str, *numbers: float) -> TableRow:
    """Return a row from EM and F1 of each column in turn."""
    return TableRow(title, tuple(Printed(em, f1) for em, f1 in zip(numbers[::2], numbers[1::2], strict=True)))


TABLES: Mapping[TableName, Table] = {
    "table-1": Table(
        "validation",
        ("mnist-multi-4", "coco-easy"),
        {
            "seq": _row("Random", 0.920, 0.977, 0.721, 0.779),
            # The footnote: "significantly decreased performance".
            "seq-random-per-batch": TableRow("Random per batch"),
            "seq-area": _row("Area", 0.529, 0.830, 0.700, 0.763),
            "seq-spatial": _row("Spatial", 0.917, 0.976, 0.675, 0.738),
        },
    ),
    "table-2": Table(
        "test",
        ("coco-medium",),
        {
            "multi": TableRow("Greedy", (Printed(0.475, 0.645, 0.006, 0.016),)),
            "multi-stochastic": TableRow("Stochastic", (Printed(0.475, 0.649, 0.004, 0.009),)),
            "multi-oracle": TableRow("Oracle", (Printed(0.469, 0.616, 0.002, 0.009),)),
        },
    ),
    "table-3": Table(
        "test",
        ("mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10", "coco-easy", "coco-medium"),
        {
            "multi": _row("L_multi", 0.950, 0.987, 0.953, 0.981, 0.920, 0.992, 0.702, 0.788, 0.481, 0.639),
            "rl": _row("L_RL", 0.912, 0.977, 0.945, 0.980, 0.665, 0.970, 0.672, 0.746, 0.425, 0.564),
            "dm-l1": _row("L_dm^1", 0.921, 0.978, 0.918, 0.969, 0.239, 0.714, 0.533, 0.614, 0.221, 0.085),
            "dm-kl": _row("L_dm^KL", 0.908, 0.974, 0.908, 0.962, 0.256, 0.874, 0.714, 0.763, 0.444, 0.591),
            "seq": _row("L_seq", 0.906, 0.973, 0.891, 0.952, 0.592, 0.946, 0.709, 0.774, 0.457, 0.592),
            "one-step": _row("L_1-step", 0.210, 0.676, 0.055, 0.598, 0.032, 0.854, 0.552, 0.664, 0.000, 0.446),
        },
    ),
    # The text is about the first three; a one-step model has no steps whose entropy could change.
    "entropy": Table(
        "validation",
        ("mnist-multi-10",),
        {
            "multi": TableRow("L_multi"),
            "rl": TableRow("L_RL"),
            "dm-kl": TableRow("L_dm^KL"),
            "dm-l1": TableRow("L_dm^1"),
            "seq": TableRow("L_seq"),
        },
    ),
}
