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

from torchmultiset.cli.models import open_splits
from torchmultiset.data._progress import progress_bar
from torchmultiset.model.inputs import open_model
from torchmultiset.model.outputs import by_name
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import equal
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.training.evaluation import evaluate
from torchmultiset.viz.comparison import compare as compare_paired
from torchmultiset.viz.scores import Report, in_words, report
from torchmultiset.viz.terminal import numbers_table

__all__ = ["compare_app"]

compare_app = App(
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
    report: Report
    right: Bool[np.ndarray, " n"]


@compare_app.default
def compare(
    data: Path,
    models: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    number: Annotated[int, Parameter(validator=Number(gte=0))] = 8,
    json_: Annotated[bool, Parameter("--json", negative=())] = False,
) -> None:
    """Test several models on the same examples: scores, significance, and examples on which they disagree.

    Args:
        data: A folder written by `multiset data build`, a .jsonl or .csv file, or a folder of images with a labels.csv.
        models: Folders of models or of training runs, or names of models that ship with the package.
        split: Split to test on.
        number: Maximum number of disagreements to show.
        json_: Print JSON.
    """
    if len(models) < 2:
        raise ValueError(
            "comparing needs at least two models: add one, or use `multiset evaluate` to test a single model"
        )
    predictors = [open_model(name) for name in models]
    for name, predictor in zip(models, predictors, strict=True):
        if predictor.classes != predictors[0].classes:
            raise ValueError(f"{name} and {models[0]} have different classes: compare models with the same classes")
    compared = [_test(*model, data, split) for model in zip(models, predictors, strict=True)]
    best = max(compared, key=lambda one: int(one.right.sum()))
    # Keyed by index, because the same name may be given twice.
    pairs = {str(i): {0: one.right} for i, one in enumerate(compared) if one is not best}
    tests = [(compared[int(test.other)].name, test) for test in compare_paired({0: best.right}, pairs)]
    if json_:
        plain: dict[str, Any] = {
            "models": [{"model": one.name, **one.report.to_json()} for one in compared],
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
        print(json.dumps(plain, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_scores(compared, split))
    print()
    for name, test in tests:
        verdict = "significantly better than" if test.better else "not significantly better than"
        print(f"{best.name} is {verdict} {name} (paired test, p = {test.adjusted:.2g}):")
        print(
            f"  of the examples that only one of them predicts correctly, it has {test.wins:,} and the other", end=" "
        )
        print(f"{test.losses:,}.")
    shown = _differences(compared, number)
    if shown is not None:
        print()
        console.print(shown)


def _test(name: str, predictor: Predictor, data: Path, split: str) -> _Compared:
    examples = as_trained(predictor, open_splits(predictor, data, split)[split], split, data)
    with progress_bar(sys.stderr.isatty(), name, len(examples)) as advance:
        counts, target = evaluate(predictor, examples, watch=advance)
    scores = report(counts, target, predictor.classes, split=split)
    return _Compared(name, predictor, counts, scores, equal(counts, target).numpy())


def _scores(compared: Sequence[_Compared], split: str) -> Table:
    title = f"{compared[0].report.overall.examples:,} {split} examples"
    table = numbers_table(title, "model", "objective", "exact match", "95% CI", "F1", "weights")
    for one in compared:
        overall, (low, high) = one.report.overall, one.report.overall.interval
        objective = str(one.predictor.record.get("config", {}).get("objective", "-"))
        weights = sum(weight.numel() for weight in one.predictor.parameters())
        scores = (f"{overall.exact_match:.3f}", f"{low:.3f}-{high:.3f}", f"{overall.f1:.3f}", f"{weights:,}")
        table.add_row(Text(one.name), objective, *scores)
    return table


def _differences(compared: Sequence[_Compared], number: int) -> Table | None:
    """Return a table of the first examples that only some of the models predict correctly; None if there are none."""
    right = np.stack([one.right for one in compared])
    differ = np.flatnonzero(right.any(0) & ~right.all(0))[:number]
    if not len(differ):
        return None
    table = numbers_table("Disagreements", "example", *(one.name for one in compared))
    for i in differ.tolist():
        answers = (
            Text(f"{'✓' if one.right[i] else '✗'} {in_words(by_name(one.counts[i].tolist(), one.predictor.classes))}")
            for one in compared
        )
        table.add_row(str(i), *answers)
    return table
