"""The paper's Tables 1 to 3 and its entropy figure as data: what was run, on what, and the numbers that are printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["COLUMNS", "METHODS", "TABLES", "DataSetName", "Numbers", "Row", "Table", "TableName"]

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
    "mnist-multi-larger": "1-4 digits learned, 1-8 tested",
    "mnist-multi-rare": "rare digits learned, all tested",
    "mnist-multi-60": "MNIST Multi (1-4), 60 pixels",
}
"""The paper's five, whose names here are those of the presets; one of them with more epochs; and three others."""

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
"""What is learned from, by the names of the config's fields."""


class Numbers(NamedTuple):
    """What a cell of a table says; deviations where there are some."""

    em: float
    f1: float
    em_std: float | None = None
    f1_std: float | None = None


class Row(NamedTuple):
    """A row of a table."""

    title: str
    numbers: tuple[Numbers | None, ...]
    """One for each column; None where the paper has no numbers."""
    only: tuple[DataSetName, ...] | None = None
    """The data sets that it can be run on; None: all of the table's."""


class Table(NamedTuple):
    """A table, or a figure that has none of its numbers printed."""

    split: Literal["validation", "test"]
    """What its numbers are measured on."""
    columns: tuple[DataSetName, ...]
    rows: Mapping[str, Row]
    """By method."""


TABLES: Mapping[TableName, Table] = {
    "table-1": Table(
        "validation",
        ("mnist-multi-4", "coco-easy"),
        {
            "seq": Row("Random", (Numbers(0.920, 0.977), Numbers(0.721, 0.779))),
            # The footnote: "significantly decreased performance".
            "seq-random-per-batch": Row("Random per batch", (None, None)),
            "seq-area": Row("Area", (Numbers(0.529, 0.830), Numbers(0.700, 0.763))),
            "seq-spatial": Row("Spatial", (Numbers(0.917, 0.976), Numbers(0.675, 0.738))),
        },
    ),
    "table-2": Table(
        "test",
        ("coco-medium",),
        {
            "multi": Row("Greedy", (Numbers(0.475, 0.645, 0.006, 0.016),)),
            "multi-stochastic": Row("Stochastic", (Numbers(0.475, 0.649, 0.004, 0.009),)),
            "multi-oracle": Row("Oracle", (Numbers(0.469, 0.616, 0.002, 0.009),)),
        },
    ),
    "table-3": Table(
        "test",
        ("mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10", "coco-easy", "coco-medium"),
        {
            "multi": Row(
                "L_multi",
                (
                    Numbers(0.950, 0.987),
                    Numbers(0.953, 0.981),
                    Numbers(0.920, 0.992),
                    Numbers(0.702, 0.788),
                    Numbers(0.481, 0.639),
                ),
            ),
            "rl": Row(
                "L_RL",
                (
                    Numbers(0.912, 0.977),
                    Numbers(0.945, 0.980),
                    Numbers(0.665, 0.970),
                    Numbers(0.672, 0.746),
                    Numbers(0.425, 0.564),
                ),
            ),
            "dm-l1": Row(
                "L_dm^1",
                (
                    Numbers(0.921, 0.978),
                    Numbers(0.918, 0.969),
                    Numbers(0.239, 0.714),
                    Numbers(0.533, 0.614),
                    Numbers(0.221, 0.085),
                ),
            ),
            "dm-kl": Row(
                "L_dm^KL",
                (
                    Numbers(0.908, 0.974),
                    Numbers(0.908, 0.962),
                    Numbers(0.256, 0.874),
                    Numbers(0.714, 0.763),
                    Numbers(0.444, 0.591),
                ),
            ),
            "seq": Row(
                "L_seq",
                (
                    Numbers(0.906, 0.973),
                    Numbers(0.891, 0.952),
                    Numbers(0.592, 0.946),
                    Numbers(0.709, 0.774),
                    Numbers(0.457, 0.592),
                ),
            ),
            "one-step": Row(
                "L_1-step",
                (
                    Numbers(0.210, 0.676),
                    Numbers(0.055, 0.598),
                    Numbers(0.032, 0.854),
                    Numbers(0.552, 0.664),
                    Numbers(0.000, 0.446),
                ),
            ),
        },
    ),
    # The text speaks of the first three; a one-step model has no steps whose entropy could change.
    "entropy": Table(
        "validation",
        ("mnist-multi-10",),
        {
            "multi": Row("L_multi", (None,)),
            "rl": Row("L_RL", (None,)),
            "dm-kl": Row("L_dm^KL", (None,)),
            "dm-l1": Row("L_dm^1", (None,)),
            "seq": Row("L_seq", (None,)),
        },
    ),
}
