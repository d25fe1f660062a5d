"""Scores of predictions, as tables for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Int64
from rich.table import Table
from rich.text import Text
from torch import Tensor

from torchmultiset._checks import check, check_counts
from torchmultiset.heads.baselines import best_constant
from torchmultiset.metrics import class_f1, count_mae, count_rmse, exact_match, f1, precision, recall
from torchmultiset.model.outputs import by_name
from torchmultiset.multiset import cardinality, intersection
from torchmultiset.viz.terminal import numbers_table

__all__ = [
    "ClassScores",
    "Constant",
    "CountErrors",
    "Report",
    "Scores",
    "best_constant",
    "in_words",
    "report",
    "score_tables",
    "wilson",
]

K = TypeVar("K")

# Row limit for a terminal; the JSON output is complete.
_ROWS = 40


@dataclass(frozen=True)
class Scores:
    """Mean scores of the predictions for some examples."""

    examples: int
    exact_match: float
    interval: tuple[float, float]
    """95% confidence interval of the exact match (Wilson)."""
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class, pooled over all examples."""

    labels: int
    """Number of true labels of the class."""
    predicted: int
    precision: float | None
    """Fraction of the predicted labels that are true; None if none is predicted."""
    recall: float | None
    """Fraction of the true labels that are predicted; None if none is true."""
    f1: float | None


@dataclass(frozen=True)
class CountErrors:
    """Errors of the counts, as the counting literature reports them; lower is better."""

    mae: float
    """Mean absolute error over examples and classes."""
    rmse: float
    """mRMSE: root mean squared error of each class, averaged over classes."""
    rmse_nonzero: float | None
    """The same over true counts above 0; None if there are none."""
    relative_rmse: float
    """mRMSE with each squared error divided by the true count plus 1."""
    relative_rmse_nonzero: float | None


@dataclass(frozen=True)
class Constant:
    """Majority baseline: scores of always predicting the most frequent multiset of the training data."""

    multiset: dict[str, int]
    scores: Scores
    class_f1: float | None
    errors: CountErrors


@dataclass(frozen=True)
class Report:
    """Scores of the predictions for a split: overall, by size and by class."""

    split: str
    overall: Scores
    class_f1: float | None
    """F1 averaged over classes, as in the paper's tables."""
    errors: CountErrors
    sizes: dict[int, Scores]
    """Size of the true multiset -> scores of the examples that have it."""
    classes: dict[str, ClassScores]
    constant: Constant | None = None
    baselines: dict[str, Scores] = field(default_factory=dict)
    """Scores of other baselines on the same examples, by name."""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain dictionaries; sizes become strings, as JSON requires."""
        plain = asdict(self)
        return plain | {"sizes": {str(size): scores for size, scores in plain["sizes"].items()}}


def report(
    counts: Int64[Tensor, "n c"],
    target: Int64[Tensor, "n c"],
    classes: Sequence[str],
    *,
    split: str = "test",
    constant: Int64[Tensor, " c"] | None = None,
    baselines: Mapping[str, Int64[Tensor, "n c"]] | None = None,
) -> Report:
    """Score predictions against the truth.

    Args:
        counts: Predicted counts (N, C).
        target: True counts (N, C).
        classes: Names of the C classes.
        split: Name of the split, for titles.
        constant: Multiset (C,) of the majority baseline, from `best_constant`.
        baselines: Predicted counts (N, C) of other baselines, by name.

    Example:
        >>> target = torch.tensor([[2, 0], [1, 1], [0, 1]])
        >>> scores = report(torch.tensor([[2, 0], [1, 1], [1, 0]]), target, ["cat", "dog"])
        >>> scores.overall.exact_match, scores.sizes[2].exact_match, scores.classes["dog"].recall
        (0.6666666666666666, 1.0, 0.5)
    """
    check_counts("target", target)
    check_counts("counts", counts, like=(target.shape[0], target.shape[1]))
    check(len(classes) == target.shape[1], "classes", f"{target.shape[1]} names", len(classes))
    check(len(target) >= 1, "target", "at least one example", len(target))
    sizes = cardinality(target)
    return Report(
        split=split,
        overall=_scores(counts, target),
        class_f1=_number(class_f1(counts, target)),
        errors=_errors(counts, target),
        sizes={n: _scores(counts[sizes == n], target[sizes == n]) for n in sorted({*sizes.tolist()})},
        classes=_by_class(counts, target, classes),
        constant=None if constant is None else _constant(constant, target, classes),
        baselines={name: _scores(predicted, target) for name, predicted in (baselines or {}).items()},
    )


def wilson(right: int, of: int) -> tuple[float, float]:
    """Compute Wilson's 95% confidence interval of a proportion, also valid for small samples and near 0 and 1.

    Example:
        >>> [round(bound, 3) for bound in wilson(90, 100)], wilson(0, 10)[0]
        ([0.826, 0.945], 0.0)
    """
    check(0 <= right <= of and of >= 1, "right", f"from 0 to {of}, of at least one", right)
    z = 1.959963984540054  # 97.5% quantile of the standard normal distribution
    share = right / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    # Return the exact bounds 0 and 1 without rounding errors.
    return (0.0 if right == 0 else centre - reach), (1.0 if right == of else centre + reach)


def in_words(multiset: dict[str, int]) -> str:
    """Format a multiset on one line.

    Example:
        >>> in_words({"cat": 2, "dog": 1}), in_words({})
        ('cat ×2, dog', '(nothing)')
    """  # noqa: RUF002  (the sign is meant)
    items = [name if count == 1 else f"{name} ×{count}" for name, count in multiset.items()]  # noqa: RUF001
    return ", ".join(items) or "(nothing)"


def score_tables(report: Report) -> list[Table]:
    """Return the report as tables that fit a terminal of 80 columns."""
    shown = [_overall_table(report), _errors_table(report)]
    if len(report.sizes) > 1:
        shown.append(_sizes_table(report))
    return [*shown, _classes_table(report)]


def _scores(counts: Tensor, target: Tensor) -> Scores:
    right = exact_match(counts, target).double()
    means = (float(metric(counts, target).double().mean()) for metric in (precision, recall, f1))
    return Scores(len(target), float(right.mean()), wilson(int(right.sum()), len(target)), *means)


def _errors(counts: Tensor, target: Tensor) -> CountErrors:
    return CountErrors(
        mae=float(count_mae(counts, target).double().mean()),
        rmse=float(count_rmse(counts, target)),
        rmse_nonzero=_number(count_rmse(counts, target, nonzero=True)),
        relative_rmse=float(count_rmse(counts, target, relative=True)),
        relative_rmse_nonzero=_number(count_rmse(counts, target, nonzero=True, relative=True)),
    )


def _constant(constant: Tensor, target: Tensor, classes: Sequence[str]) -> Constant:
    always = constant.expand_as(target).contiguous()
    scores, errors = _scores(always, target), _errors(always, target)
    return Constant(by_name(constant.tolist(), classes), scores, _number(class_f1(always, target)), errors)


def _by_class(counts: Tensor, target: Tensor, classes: Sequence[str]) -> dict[str, ClassScores]:
    rows = (intersection(counts, target).sum(0), counts.sum(0), target.sum(0))
    return {
        name: ClassScores(
            labels=true,
            predicted=predicted,
            precision=_share(shared, predicted),
            recall=_share(shared, true),
            f1=_share(2 * shared, predicted + true),
        )
        for name, shared, predicted, true in zip(classes, *(row.tolist() for row in rows), strict=True)
    }


def _share(part: int, of: int) -> float | None:
    return part / of if of else None


def _number(value: Tensor) -> float | None:
    """Convert to float; NaN, which JSON lacks, becomes None."""
    return None if torch.isnan(value) else float(value)


def _overall_table(report: Report) -> Table:
    table = numbers_table(f"{report.overall.examples:,} {report.split} examples", "", *_HEADINGS, "class F1")
    table.add_row("this model", *_cells(report.overall), _show(report.class_f1))
    if report.constant is not None:
        for name, scores in report.baselines.items():
            table.add_row(name, *_cells(scores), "")
        table.add_row("majority baseline", *_cells(report.constant.scores), _show(report.constant.class_f1))
        table.caption = f"majority baseline: {in_words(report.constant.multiset)}, the most frequent in training"
        table.caption_justify = "left"
    return table


def _errors_table(report: Report) -> Table:
    table = numbers_table("Count errors (lower is better)", "", "MAE", "mRMSE", "nonzero", "relative", "rel. nonzero")
    rows = {"model": report.errors} | ({"majority": report.constant.errors} if report.constant else {})
    for name, errors in rows.items():
        table.add_row(name, *map(_show, astuple(errors)))
    return table


def _sizes_table(report: Report) -> Table:
    shown, which = _most_frequent({size: scores.examples for size, scores in report.sizes.items()})
    table = numbers_table(f"By size of the true multiset{which}", "size", "examples", *_HEADINGS)
    for size in sorted(shown):
        scores = report.sizes[size]
        table.add_row(str(size), f"{scores.examples:,}", *_cells(scores))
    return table


def _most_frequent(times: Mapping[K, int]) -> tuple[list[K], str]:
    """Return the keys that get a row, and a suffix for the title if others do not."""
    if len(times) <= _ROWS:
        return [*times], ""
    return sorted(times, key=lambda key: -times[key])[:_ROWS], f", the {_ROWS} most frequent of {len(times)}"


def _classes_table(report: Report) -> Table:
    shown, which = _most_frequent({name: scores.labels for name, scores in report.classes.items()})
    title = f"By class, pooled over all examples{which}"
    table = numbers_table(title, "class", "labels", "predicted", "precision", "recall", "F1")
    for name in shown:
        scores = report.classes[name]
        shares = map(_show, (scores.precision, scores.recall, scores.f1))
        table.add_row(Text(name), f"{scores.labels:,}", f"{scores.predicted:,}", *shares)
    return table


_HEADINGS = ("exact match", "95% CI", "precision", "recall", "F1")


def _cells(scores: Scores) -> list[str]:
    means = (f"{value:.3f}" for value in (scores.precision, scores.recall, scores.f1))
    return [f"{scores.exact_match:.3f}", "{:.3f}-{:.3f}".format(*scores.interval), *means]


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
