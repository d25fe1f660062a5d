"""Our scores beside the paper's, data set by data set, from the records of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from paper.blocks import BASELINE, METRICS, MISSING, MORE_METRICS, Block, MethodScores, Score, p_value
from paper.cells import Position
from paper.records import CellRun
from torchmultiset.metrics import class_f1, exact_match, f1
from torchmultiset.viz.comparison import Comparison, Correct, compare
from torchmultiset.viz.intervals import Counts, bootstrap
from torchmultiset.viz.scores import in_words, wilson

__all__ = ["PARTS", "scores_of", "summarise"]

Chosen: TypeAlias = Callable[[UInt8[np.ndarray, "n c"]], Bool[np.ndarray, " n"]]
"""Selects examples by their true counts (N, C)."""
PARTS: Mapping[str, Mapping[str, Chosen]] = {
    "larger": {
        "1 to 4 labels, as in training": lambda true: true.sum(1) <= 4,
        "5 to 8 labels": lambda true: true.sum(1) > 4,
    },
    "rare": {
        "frequent digits only": lambda true: true[:, 5:].sum(1) == 0,
        "with a rare digit": lambda true: true[:, 5:].sum(1) > 0,
    },
}
"""Table -> parts of its test data that are also scored separately."""
_NO_MORE = {metric: Score(absent="-") for metric in MORE_METRICS if metric not in METRICS}


def summarise(runs: Sequence[CellRun]) -> list[Block]:
    """Return every table, data set by data set, the paper's own first.

    Args:
        runs: From `read_runs`.

    Raises:
        ValueError: Runs of one data set were tested on different examples.
    """
    parts: dict[tuple[str, int], list[CellRun]] = {}
    for run in runs:
        for table, at in run.tables.items():
            if table != "entropy":
                parts.setdefault((table, at.place[1]), []).append(run)
    # The paper's own come first.
    ordered = sorted(parts.items(), key=lambda item: (not item[0][0].startswith("table-"), item[0]))
    return [
        block
        for (table, _), some in ordered
        for block in (_block(table, some), *(_block(table, some, part) for part in PARTS.get(table, {})))
    ]


def scores_of(counts: Counts) -> dict[str, float]:
    """Compute exact match, F1 and class F1, by the names in `METRICS`.

    Example:
        >>> predicted, true = np.array([[2, 1], [0, 1]], np.uint8), np.array([[1, 1], [1, 1]], np.uint8)
        >>> {name: round(score, 3) for name, score in scores_of((predicted, true)).items()}
        {'em': 0.0, 'f1': 0.733, 'class_f1': 0.667}
    """
    predicted, true = (torch.from_numpy(part.astype(np.int64)) for part in counts)
    alone = {"em": exact_match(predicted, true), "f1": f1(predicted, true)}
    means = {name: float(scores.double().mean()) for name, scores in alone.items()}
    return means | {"class_f1": float(class_f1(predicted, true))}


def _block(table: str, runs: Sequence[CellRun], part: str = "") -> Block:
    """Return the scores on one data set, or on a part of it, which are computed from the predictions."""
    at, chosen = runs[0].tables[table], PARTS[table][part] if part else None
    rows = tuple(_row(table, group, chosen) for group in _by_method(table, runs))
    done = [run for row in rows for run in row.runs]
    comparisons, verdict = _who_is_first(rows, at.split, chosen)
    baseline, examples = None, 0
    if done:
        baseline = _baseline(done[0], at.split, chosen)
        overall = done[0].metrics[at.split]["overall"]
        examples = overall["examples"] if chosen is None else len(_counts(done[0], at.split, chosen)[1])
    column = f"{at.column}, {part}" if part else at.column
    return Block(table, runs[0].data_set, column, at.split, rows, baseline, tuple(comparisons), verdict, examples)


def _by_method(table: str, runs: Sequence[CellRun]) -> list[list[CellRun]]:
    groups: dict[tuple[int, str], list[CellRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault((run.tables[table].place[0], run.method), []).append(run)
    return [groups[key] for key in sorted(groups)]


def _row(table: str, runs: Sequence[CellRun], chosen: Chosen | None = None) -> MethodScores:
    at, done = runs[0].tables[table], tuple(run for run in runs if run.done)
    missing = tuple(run for run in runs if not run.done)
    if chosen is None:
        reports = [run.metrics[at.split] for run in done]
        values = {metric: [_value(metric, part) for part in reports] for metric in METRICS}
    else:
        parts = [scores_of(_counts(run, at.split, chosen)) for run in done]
        values = {metric: [part[metric] for part in parts] for metric in METRICS}
    scores = {metric: _beside_paper(_mean(of_seeds, absent=MISSING), metric, at) for metric, of_seeds in values.items()}
    beside_paper = table.startswith("table-")
    kept = all(run.has_predictions(at.split) for run in done)
    if kept and (len(done) == 1 or (done and not beside_paper)):
        intervals = _intervals([_counts(run, at.split, chosen) for run in done])
        known = {metric for metric, score in scores.items() if score.value is not None}
        scores |= {metric: replace(scores[metric], interval=intervals[metric]) for metric in known}
    if not beside_paper:
        scores |= _more(done) if chosen is None else _NO_MORE
    return MethodScores(at.row, scores, done, missing)


def _intervals(seeds: Sequence[Counts]) -> dict[str, tuple[float, float]]:
    found = bootstrap(seeds)
    if len(seeds) == 1:
        right = (seeds[0][0] == seeds[0][1]).all(1)
        found["em"] = wilson(int(right.sum()), len(right))
    return found


def _counts(run: CellRun, split: str, chosen: Chosen | None) -> Counts:
    predicted, true = run.predictions(split)
    some = slice(None) if chosen is None else chosen(true)
    return predicted[some], true[some]


def _more(done: Sequence[CellRun]) -> dict[str, Score]:
    """Return the scores that only tables beyond the paper have."""
    found = [run.worth() for run in done]
    worth = [each or {} for each in found]
    absent = "not measured" if None in found else "-"
    return {
        "nll": _mean([each.get("negative_log_likelihood") for each in worth], absent=absent),
        "ece": _mean([each.get("calibration", {}).get("error") for each in worth], absent=absent),
        "speed": _mean([max(line["images_per_second"] for line in run.epochs()) for run in done], ",.0f"),
        "parameters": _mean([run.parameters for run in done[:1]], ",.0f"),
    }


def _mean(values: Sequence[int | float | None], form: str = ".3f", absent: str = "-") -> Score:
    """Return the mean over all seeds; absent if one of them has no number."""
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return Score(form=form, absent=absent if values else MISSING)
    return Score(fmean(known), stdev(known) if len(known) > 1 else None, form=form)


def _beside_paper(score: Score, metric: str, at: Position) -> Score:
    name, paper = "em" if metric == "em" else "f1", at.paper or {}
    return replace(score, paper=paper.get(name), paper_spread=paper.get(f"{name}_std"))


def _value(metric: str, report: Mapping[str, Any]) -> float | None:
    found: float | None = (
        report["class_f1"] if metric == "class_f1" else report["overall"]["exact_match" if metric == "em" else metric]
    )
    return found


def _baseline(run: CellRun, split: str, chosen: Chosen | None) -> MethodScores | None:
    """Score the majority baseline on all examples or on the chosen ones; None if it is not recorded."""
    constant = run.metrics[split]["constant"]
    if constant is None:
        return None
    values: dict[str, float | None] = {"class_f1": constant["class_f1"]}
    if chosen is None:
        values |= {"em": constant["scores"]["exact_match"], "f1": constant["scores"]["f1"]}
        low, high = constant["scores"]["interval"]
    else:
        true = _counts(run, split, chosen)[1]
        always = np.array([constant["multiset"].get(name, 0) for name in run.metrics[split]["classes"]], true.dtype)
        values |= scores_of((np.broadcast_to(always, true.shape), true))
        low, high = wilson(int((true == always).all(1).sum()), len(true))
    scores = {metric: Score(value) for metric, value in values.items()}
    scores["em"] = replace(scores["em"], interval=(low, high))
    return MethodScores(f"{BASELINE}: {in_words(constant['multiset'])}", scores | _NO_MORE, (run,))


def _who_is_first(
    rows: Sequence[MethodScores], split: str, chosen: Chosen | None = None
) -> tuple[list[Comparison], str]:
    there = {row.title: row for row in rows if row.runs}
    if len(there) < 2:
        return [], "Fewer than two rows have results: none is first."
    if not all(run.has_predictions(split) for row in there.values() for run in row.runs):
        return [], f"Not compared: predictions on {split} data were not kept."
    correct = _correct(there, split, chosen)
    best = max(there, key=lambda title: there[title].scores["em"].value or 0.0)
    comparisons = compare(correct[best], {title: right for title, right in correct.items() if title != best})
    doubtful = [
        f"{comparison.other} ({p_value(comparison.adjusted)})" for comparison in comparisons if not comparison.better
    ]
    tested = {best, *(comparison.other for comparison in comparisons)}
    doubtful += [f"{title} (no seed in common)" for title in there if title not in tested]
    if doubtful:
        return comparisons, f"No row is first: {best} is highest, but not distinguishable from {', '.join(doubtful)}."
    if len(there) < len(rows):
        missing = ", ".join(row.title for row in rows if not row.runs)
        return comparisons, f"{best} is first among the rows that have results; missing: {missing}."
    least = max(comparisons, key=lambda comparison: comparison.adjusted)
    seeds = "" if least.seeds == 1 else f"; against {least.other} in {least.ahead} of {least.seeds} seeds"
    return comparisons, f"{best} is first ({p_value(least.adjusted)}{seeds})."


def _correct(rows: Mapping[str, MethodScores], split: str, chosen: Chosen | None) -> dict[str, Correct]:
    """Return title -> seed -> which examples are right, after checking that the examples are the same."""
    first: tuple[CellRun, UInt8[np.ndarray, "n c"]] | None = None
    correct: dict[str, Correct] = {}
    for title, row in rows.items():
        right = {}
        for run in row.runs:
            predicted, true = _counts(run, split, chosen)
            first = first or (run, true)
            if not np.array_equal(true, first[1]):
                raise ValueError(
                    f"{run.cell} and {first[0].cell} were tested on different {split} examples and cannot be compared:"
                    f" run one of them again, with: {run.command} --again"
                )
            right[run.seed] = (predicted == true).all(1)
        correct[title] = right
    return correct
