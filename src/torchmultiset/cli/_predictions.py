"""Output of ``multiset predict``: rows for JSON and CSV, and a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from torchmultiset.model.conformal import Conformal
from torchmultiset.model.inputs import Explained
from torchmultiset.model.outputs import Prediction, by_name
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import from_labels
from torchmultiset.viz.scores import in_words
from torchmultiset.viz.terminal import empty_table

__all__ = ["add_row", "csv_lines", "prediction_rows", "predictions_table"]

_LISTED = 20  # maximum number of multisets that a table lists for one input, besides the first


def prediction_rows(
    batch: Explained,
    predictor: Predictor,
    min_confidence: float | None,
    conformal: Conformal | None = None,
    coverage: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the fields to print for each input; `best`, `set` and `abstained` only if requested."""
    prediction = batch.prediction
    counts, best = prediction.counts, prediction.best
    sets = None
    if conformal is not None and coverage is not None and best is not None:
        sets, best = conformal.sets(best, coverage), None
    assert prediction.confidence is not None
    accepted = prediction.accepted(0.0 if min_confidence is None else min_confidence).tolist()
    for i, name in enumerate(batch.names):
        confidence = float(prediction.confidence[i])
        row: dict[str, Any] = {
            "input": name,
            "labels": by_name(counts[i].tolist(), predictor.classes),
            "sequence": _in_order(prediction, i, predictor.classes),
            "confidence": None if math.isnan(confidence) else confidence,
        }
        if best is not None:
            row["best"] = _listed(best.counts[i], best.log_probability[i], predictor)
        if sets is not None:
            inside = sets.inside[i]
            row["set"] = _listed(sets.counts[i, inside], sets.log_probability[i, inside], predictor)
            bounds = zip(predictor.classes, sets.low[i].tolist(), sets.high[i].tolist(), strict=True)
            row["intervals"] = {name: [low, high] for name, low, high in bounds if high}
        if batch.truth is not None:
            right = bool((counts[i] == batch.truth[i]).all())
            row |= {"truth": by_name(batch.truth[i].tolist(), predictor.classes), "right": right}
            if sets is not None:
                row["in_set"] = bool((sets.counts[i, sets.inside[i]] == batch.truth[i]).all(-1).any())
        if min_confidence is not None:
            row["abstained"] = not accepted[i]
            if row["abstained"]:
                row |= {name: None for name in ("labels", "sequence", "right") if name in row}
        yield row


def _listed(counts: torch.Tensor, log_probability: torch.Tensor, predictor: Predictor) -> list[dict[str, Any]]:
    """Return multisets (k, C) with their probabilities."""
    return [
        {"labels": by_name(multiset, predictor.classes), "probability": math.exp(log)}
        for multiset, log in zip(counts.tolist(), log_probability.tolist(), strict=True)
        if log > -math.inf
    ]


def _in_order(prediction: Prediction, i: int, classes: Sequence[str]) -> list[str] | None:
    """Return the labels in the order of emission; None without a policy, or if a search found another multiset."""
    if prediction.sequence is None:
        return None
    labels = prediction.sequence[i]
    if not torch.equal(from_labels(labels, len(classes)), prediction.counts[i]):
        return None
    return [classes[label] for label in labels.tolist() if label >= 0]


def csv_lines(row: Mapping[str, Any], *, header: bool) -> str:
    """Return the fields of an input as a line of CSV, after a header if requested.

    Labels are written as in a labels.csv, so that a corrected file can be used for training.
    """
    names = [name for name in row if name != "sequence"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(names)
    writer.writerow([_csv_cell(row[name]) for name in names])
    return text.getvalue()


def _csv_cell(value: Any) -> str:
    if isinstance(value, dict):
        return ";".join(f"{name}:{count}" for name, count in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def predictions_table(*, in_order: bool) -> Table:
    table = empty_table()
    table.add_column("input", overflow="fold", max_width=40)
    table.add_column("prediction")
    if in_order:
        table.add_column("order")
    table.add_column("confidence", justify="right", no_wrap=True)
    table.add_column("truth")
    return table


def add_row(table: Table, row: Mapping[str, Any], *, in_order: bool) -> None:
    truth = ""
    if "truth" in row:
        truth = (
            "✓" if row["right"] else in_words(row["truth"]) if row["right"] is None else f"✗ {in_words(row['truth'])}"
        )
    confidence = "" if row["confidence"] is None else f"{row['confidence']:.2f}"
    abstained = row.get("abstained", False)
    predicted = "(abstained)" if abstained else in_words(row["labels"])
    order = [Text(" ".join(row["sequence"] or ()))] if in_order else []
    table.add_row(Text(row["input"]), Text(predicted), *order, confidence, Text(truth))
    others = row.get("best", row.get("set", ()))[0 if abstained else 1 :]
    for other in others if "best" in row else others[:_LISTED]:
        mark = "✓" if other["labels"] == row.get("truth") else ""
        table.add_row("", Text(in_words(other["labels"])), *[""] * in_order, f"{other['probability']:.2f}", mark)
    if "set" in row and others:
        more = f"and {len(others) - _LISTED} more; " if len(others) > _LISTED else ""
        table.add_row("", Text(f"{more}counts: {_in_words(row['intervals'])}"), *[""] * in_order, "", "")


def _in_words(intervals: Mapping[str, Sequence[int]]) -> str:
    """Format the intervals of counts on one line."""
    each = (f"{name} {low}" if low == high else f"{name} {low}-{high}" for name, (low, high) in intervals.items())
    return ", ".join(each)
