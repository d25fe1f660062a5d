"""Tables that the paper does not have.

Later objectives beside its six; variations on its own loss; its losses with another policy, and with more epochs; test
data that differs from the training data; the effect of encoders and training for any loss; and short runs that choose
learning rates and the rest of the recipe, and that compare precisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper.tables import METHODS, TABLES, DataSetName, Table, TableName, TableRow
from torchmultiset.pipeline.presets import RECIPES

__all__ = ["BEYOND", "BEYOND_METHODS", "FULL_RATE", "RATES", "SHORT", "rate_method"]

RATES: Mapping[DataSetName, tuple[float, ...]] = {
    **dict.fromkeys(("mnist-multi-4", "mnist-multi-10"), (1e-3, 3e-3, 6e-3)),
    **dict.fromkeys(("coco-easy", "coco-medium"), (3e-4, 1e-3, 3e-3)),
}
"""Learning rates that each loss is tried with; the same for all losses."""


SHORT: tuple[TableName, ...] = ("rates", "trials", "precision")
"""Tables of short runs on validation data."""
FULL_RATE = 6e-3
"""Learning rate of L_multi on digits: the best of the table `rates`."""


def rate_method(method: str, rate: float) -> str:
    """Return the name of a short run of a method with one of the `RATES`.

    Example:
        >>> rate_method("multi", 3e-3)
        'multi-lr-0.003'
    """
    return f"{method}-lr-{rate:g}"


def _tried_on(method: str, rate: float) -> tuple[DataSetName, ...]:
    """Return the data sets with this rate in their grid; on digits, the paper's losses only."""
    with_rate = [data_set for data_set, rates in RATES.items() if rate in rates]
    return tuple(name for name in with_rate if method in TABLES["table-3"].rows or name.startswith("coco"))


# A policy that sees only counts: more weights than the ConvLSTM of the scale small on digits, fewer on photographs.
_COUNTS_ONLY = {"policy": "transformer", "hidden": 64, "layers": 2}

# The paper's losses for policies; L_1-step has no policy.
_SEQUENTIAL = ("multi", "rl", "dm-l1", "dm-kl", "seq")

# Name -> title, and changed settings; for any loss.
_TRAINING: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("without batch normalisation", {"norm": "none"}),
    "wide": ("twice as wide", {"channels": (20, 20, 64)}),
    "fine": ("a finer map", {"channels": (16, 32)}),
    "fresh": ("fresh images in each epoch", {"fresh": "plain"}),
    "distort": ("fresh images of distorted digits", {"fresh": "distorted"}),
    "affine": ("turned, scaled and shifted images", {"augment": "affine"}),
    "faster": ("three times the learning rate", {"lr": 3e-3}),
}

_TITLES: Mapping[str, str] = {
    **{method: row.title for method, row in TABLES["table-3"].rows.items()},
    "counts": "count head",
    "hungarian": "Hungarian slots",
    "power": "power multiset",
    "marginal": "marginal (transformer)",
    "multi-transformer": "L_multi (transformer)",
}

# Name -> title, and a change of the recipe `fast`; for short runs of L_multi.
_TRIALS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "no-layer-norm": ("without LayerNorm of the pooled features", {"policy_norm": "none"}),
    "no-batch-norm": ("without BatchNorm in the tower", {"norm": "none"}),
    "constant": ("constant learning rate", {"schedule": "constant"}),
    "batch-32": ("batches of 32", {"batch_size": 32}),
    "batch-128": ("batches of 128", {"batch_size": 128}),
    "no-clip": ("gradients not clipped", {"clip": 0.0}),
    "mean-max": ("mean and maximum over the map", {"pool": "mean-max"}),
    "ema": ("averaged weights", {"ema": 0.99}),
    "two-layers": ("two layers of ConvLSTM", {"layers": 2}),
    "float32": ("single precision", {"precision": "32-true"}),
}

BEYOND_METHODS: Mapping[str, Mapping[str, Any]] = {
    "counts": {"objective": "counts"},
    "hungarian": {"objective": "hungarian"},
    "power": {"objective": "power"},
    "marginal": {"objective": "marginal", **_COUNTS_ONLY},
    **{f"{loss}-transformer": {**METHODS[loss], **_COUNTS_ONLY} for loss in _SEQUENTIAL},
    "multi-js": {"objective": "multi", "divergence": "js"},
    "multi-tv": {"objective": "multi", "divergence": "tv"},
    **{
        f"{objective}-{name}": {"objective": objective, **values}
        for objective in ("multi", "counts")
        for name, (_, values) in _TRAINING.items()
    },
    "seq-faster": {"objective": "seq", **_TRAINING["faster"][1]},
    "multi-transformer-faster": {"objective": "multi", **_COUNTS_ONLY, **_TRAINING["faster"][1]},
    **{f"multi-{name}": {**METHODS["multi"], "lr": FULL_RATE, **values} for name, (_, values) in _TRIALS.items()},
    # As many epochs as three hours of one core allow.
    "multi-paper": {**METHODS["multi"], **RECIPES["paper"], "epochs": 40},
}
"""Settings of each method, by the names of the config's fields."""
_ALL_RATES = sorted({rate for rates in RATES.values() for rate in rates})
BEYOND_METHODS = {
    **BEYOND_METHODS,
    **{
        rate_method(method, rate): {**{**METHODS, **BEYOND_METHODS}[method], "lr": rate}
        for method in _TITLES
        for rate in _ALL_RATES
        if _tried_on(method, rate)
    },
}

_COLUMNS = TABLES["table-3"].columns
# Ten labels have 1,024 sub-multisets, and ten of ten digits make 92,378 multisets: above the limits of both objectives.
_NOT_TEN: tuple[DataSetName, ...] = tuple(name for name in _COLUMNS if name != "mnist-multi-10")
# On small data two losses learn almost nothing. Up to eight digits make 43,757 multisets, too many for a class each.
_RARE = [method for method in _TITLES if method not in ("rl", "dm-l1")]
_LARGER = [method for method in _RARE if method != "power"]


def _training_rows() -> dict[str, TableRow]:
    """Return the rows: "faster" on photographs only, since digits already have that rate; the others on digits."""
    rows = dict[str, TableRow]()
    for method in ("multi", "counts", "seq", "multi-transformer"):
        photographs_only = method in ("seq", "multi-transformer")
        rows[method] = TableRow(_TITLES[method], only=("coco-easy",) if photographs_only else None)
        for name, (change, _) in _TRAINING.items():
            if name == "faster" or not photographs_only:
                only: DataSetName = "coco-easy" if name == "faster" else "mnist-multi-60"
                rows[f"{method}-{name}"] = TableRow(f"{_TITLES[method]}, {change}", only=(only,))
    return rows


BEYOND: Mapping[TableName, Table] = {
    "beyond": Table(
        "test",
        _COLUMNS,
        {
            method: TableRow(title, only=_NOT_TEN if method in ("power", "marginal") else None)
            for method, title in _TITLES.items()
        },
    ),
    "variations": Table(
        "test",
        ("mnist-multi-4", "coco-easy"),
        {
            "multi": TableRow("L_multi"),
            "multi-js": TableRow("Jensen-Shannon"),
            "multi-tv": TableRow("total variation"),
        },
    ),
    "policy": Table(
        "test",
        ("mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10"),
        {f"{loss}-transformer": TableRow(TABLES["table-3"].rows[loss].title) for loss in _SEQUENTIAL},
    ),
    "longer": Table("test", ("mnist-multi-1-4-longer",), {loss: TableRow(_TITLES[loss]) for loss in ("multi", "seq")}),
    "larger": Table("test", ("mnist-multi-larger",), {method: TableRow(_TITLES[method]) for method in _LARGER}),
    "training": Table("test", ("mnist-multi-60", "coco-easy"), _training_rows()),
    "rare": Table("test", ("mnist-multi-rare",), {method: TableRow(_TITLES[method]) for method in _RARE}),
    "rates": Table(
        "validation",
        (*RATES,),
        {
            rate_method(method, rate): TableRow(f"{title}, {rate:g}", only=_tried_on(method, rate))
            for method, title in _TITLES.items()
            for rate in _ALL_RATES
        },
    ),
    "trials": Table(
        "validation",
        ("mnist-multi-10",),
        {
            rate_method("multi", FULL_RATE): TableRow("the recipe fast"),
            **{f"multi-{name}": TableRow(title) for name, (title, _) in _TRIALS.items() if name != "float32"},
        },
    ),
    "precision": Table(
        "validation",
        ("mnist-multi-4",),
        {rate_method("multi", FULL_RATE): TableRow("bfloat16"), "multi-float32": TableRow(_TRIALS["float32"][0])},
    ),
    "recipe": Table("test", ("mnist-multi-4",), {"multi-paper": TableRow("L_multi, exactly as in the paper")}),
}
