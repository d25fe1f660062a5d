"""``multiset compare``: several models on the same examples, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from cyclopts import App, Parameter
from cyclopts.validators import Number
from jaxtyping import Bool
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from torchmultiset.cli.models import named, open_splits
from torchmultiset.data._progress import progress_bar
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import equal
from torchmultiset.pipeline.inputs import open_model
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.training.evaluation import evaluate
from torchmultiset.viz.comparison import compare as compare_paired
from torchmultiset.viz.scores import Report, in_words, report
from torchmultiset.viz.terminal import numbers_table

__all__ = ["app"]

app = App(
    name="compare",
    help_epilogue="""\
Examples:

- `multiset compare data/demo runs/demo runs/demo-counts`
- `multiset compare pets.csv runs/pets runs/pets-larger --split validation --json`
""",
)


class _Compared(NamedTuple):
    name: str
    predictor: Predictor
    counts: Tensor
    told: Report
    right: Bool[np.ndarray, " n"]


@app.default
def compare(
    data: Path,
    models: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    number: Annotated[int, Parameter(validator=Number(gte=0))] = 8,
    json_: Annotated[bool, Parameter("--json", negative=())] = False,
) -> None:
    """Test several models on the same examples: how good each is, and on which they differ.

    Args:
        data: A folder that a build wrote, a .jsonl or .csv file of your own, or a folder of images with a labels.csv.
        models: Folders of models, or of the runs that made them; or names of those that come with the package.
        split: Which examples.
        number: How many examples to show on which the models differ.
        json_: Print JSON.
    """
    if len(models) < 2:
        raise ValueError("name at least two models; `multiset evaluate` tests one")
    predictors = [open_model(name) for name in models]
    for name, predictor in zip(models, predictors, strict=True):
        if predictor.classes != predictors[0].classes:
            raise ValueError(f"{name} and {models[0]} have different classes, and cannot be compared")
    compared = [_look(*model, data, split) for model in zip(models, predictors, strict=True)]
    best = max(compared, key=lambda one: int(one.right.sum()))
    # By number: a name may be given twice.
    pairs = {str(i): {0: one.right} for i, one in enumerate(compared) if one is not best}
    tests = [(compared[int(test.other)].name, test) for test in compare_paired({0: best.right}, pairs)]
    if json_:
        told: dict[str, Any] = {
            "models": [{"model": one.name, **one.told.to_json()} for one in compared],
            "best": best.name,
            "against": [
                {
                    "model": name,
                    "only_best_right": test.wins,
                    "only_other_right": test.losses,
                    "p": test.p,
                    "adjusted_p": test.adjusted,
                    "better": test.better,
                }
                for name, test in tests
            ],
        }
        print(json.dumps(told, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_scores(compared, split))
    print()
    for name, test in tests:
        sure = "better than" if test.better else "not distinguishable from"
        print(f"{best.name} is {sure} {name}: {test.wins:,} right against {test.losses:,} where one of them is wrong")
        print(f"  (paired test, p = {test.adjusted:.2g}).")
    shown = _differences(compared, number)
    if shown is not None:
        print()
        console.print(shown)


def _look(name: str, predictor: Predictor, data: Path, split: str) -> _Compared:
    examples = as_trained(predictor, open_splits(predictor, data, split)[split], split, data)
    with progress_bar(sys.stderr.isatty(), name, len(examples)) as advance:
        counts, target = evaluate(predictor, examples, watch=advance)
    told = report(counts, target, predictor.classes, split=split)
    return _Compared(name, predictor, counts, told, equal(counts, target).numpy())


def _scores(compared: Sequence[_Compared], split: str) -> Table:
    title = f"{compared[0].told.overall.examples:,} {split} examples"
    table = numbers_table(title, "model", "objective", "exact match", "95% interval", "F1", "weights")
    for one in compared:
        overall, (low, high) = one.told.overall, one.told.overall.interval
        objective = str(one.predictor.record.get("config", {}).get("objective", "-"))
        weights = sum(weight.numel() for weight in one.predictor.parameters())
        scores = (f"{overall.exact_match:.3f}", f"{low:.3f}-{high:.3f}", f"{overall.f1:.3f}", f"{weights:,}")
        table.add_row(Text(one.name), objective, *scores)
    return table


def _differences(compared: Sequence[_Compared], number: int) -> Table | None:
    """The first examples that some have right and others have not."""
    right = np.stack([one.right for one in compared])
    differ = np.flatnonzero(right.any(0) & ~right.all(0))[:number]
    if not len(differ):
        return None
    table = numbers_table("Where they differ", "example", *(one.name for one in compared))
    for i in differ.tolist():
        answers = (
            Text(f"{'✓' if one.right[i] else '✗'} {in_words(named(one.counts[i], one.predictor))}") for one in compared
        )
        table.add_row(str(i), *answers)
    return table
