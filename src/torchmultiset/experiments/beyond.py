"""Tables that the paper does not have: later objectives beside its six, and variations on its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchmultiset.experiments.paper import COLUMNS, TABLES, DataSetName, Row, Table, TableName

__all__ = ["BEYOND", "BEYOND_METHODS"]

# A policy that sees only counts, with about as many weights as the ConvLSTM.
_COUNTS_ONLY = {"policy": "transformer", "hidden": 64, "layers": 2}

BEYOND_METHODS: Mapping[str, Mapping[str, Any]] = {
    "counts": {"objective": "counts"},
    "hungarian": {"objective": "hungarian"},
    "power": {"objective": "power"},
    "marginal": {"objective": "marginal", **_COUNTS_ONLY},
    "multi-transformer": {"objective": "multi", **_COUNTS_ONLY},
    "multi-js": {"objective": "multi", "divergence": "js"},
    "multi-tv": {"objective": "multi", "divergence": "tv"},
    "multi-mixed": {"objective": "multi", "strategy": "mixed"},
    "multi-coached": {"objective": "multi", "coaching": 0.5},
}
"""What is learned from, by the names of the config's fields."""

# Ten labels have 1,024 parts, and ten of ten digits make 92,378 multisets.
_NOT_TEN: tuple[DataSetName, ...] = tuple(name for name in COLUMNS if name != "mnist-multi-10")


def _row(title: str, columns: int, only: tuple[DataSetName, ...] | None = None) -> Row:
    return Row(title, (None,) * columns, only)


BEYOND: Mapping[TableName, Table] = {
    "beyond": Table(
        "test",
        (*COLUMNS,),
        {
            **{method: _row(row.title, 5) for method, row in TABLES["table-3"].rows.items()},
            "counts": _row("count head", 5),
            "hungarian": _row("Hungarian slots", 5),
            "power": _row("power multiset", 5, _NOT_TEN),
            "marginal": _row("marginal (transformer)", 5, _NOT_TEN),
            "multi-transformer": _row("L_multi (transformer)", 5),
        },
    ),
    "variations": Table(
        "test",
        ("mnist-multi-4", "coco-easy", "coco-medium"),
        {
            "multi": _row("L_multi", 3),
            "multi-js": _row("Jensen-Shannon", 3),
            "multi-tv": _row("total variation", 3),
            "multi-mixed": _row("mixed roll-in", 3),
            "multi-coached": _row("coached", 3),
        },
    ),
}
