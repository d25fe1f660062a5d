"""A table of finished runs: grouped over seeds, sorted by validation score, compared with the best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from torchmultiset._files import write_whole
from torchmultiset.pipeline.config import to_dict
from torchmultiset.pipeline.sweep import FinishedRun
from torchmultiset.viz.comparison import compare
from torchmultiset.viz.intervals import bootstrap
from torchmultiset.viz.terminal import numbers_table

__all__ = ["LEADERBOARD", "Entry", "Mean", "leaderboard", "leaderboard_table", "write_leaderboard"]

LEADERBOARD = "sweep.json"
"""File in the folder of a sweep; the `leaderboard.json` of a portfolio, see `pipeline.standings`, has other fields."""


@dataclass(frozen=True)
class Mean:
    """A score averaged over seeds."""

    value: float
    spread: float | None
    """Standard deviation over seeds; None for one seed."""
    interval: tuple[float, float]
    """95% interval over test examples (bootstrap)."""


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in the seed."""

    name: str
    seeds: tuple[int, ...]
    split: str
    """Split of the scores below: "test", or "validation" if the data has no test examples."""
    validation_em: float
    """Exact match on the validation data, by which entries are sorted; mean over seeds."""
    validation_f1: float
    exact_match: Mean
    f1: Mean
    p: float | None
    """p-value of a paired test against the first entry, Holm's correction; None for the first entry, and for entries
    without a common seed or with other test data."""
    minutes: float
    """Training time, mean over seeds."""


def leaderboard(runs: Iterable[FinishedRun]) -> list[Entry]:
    """Group runs over seeds, and sort them by exact match on the validation data, then by F1.

    Args:
        runs: ``sweep(...).finished.values()``.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        settings = {name: value for name, value in to_dict(run.config).items() if name != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    ordered = sorted(
        (sorted(group, key=lambda run: run.config.seed) for group in groups.values()), key=_validation, reverse=True
    )
    tests = _tests(ordered)
    return [_entry(group, tests.get(str(i))) for i, group in enumerate(ordered)]


def write_leaderboard(folder: str | Path, entries: Sequence[Entry]) -> Path:
    """Write ``sweep.json`` to the folder of a sweep."""
    path = Path(folder, LEADERBOARD)
    write_whole(path, json.dumps([asdict(entry) for entry in entries], indent=2, allow_nan=False) + "\n")
    return path


def leaderboard_table(entries: Sequence[Entry]) -> Table:
    """Return the leaderboard as a table that fits 80 columns."""
    split = entries[0].split if entries else "test"
    table = numbers_table("Leaderboard", "run", "seeds", "validation EM", f"{split} EM", "F1", "p")
    for entry in entries:
        p = "" if entry.p is None else "<0.001" if entry.p < 0.001 else f"{entry.p:.3f}"
        scores = _cell(entry.exact_match), _cell(entry.f1)
        name = Text(entry.name, overflow="fold")
        table.add_row(name, str(len(entry.seeds)), f"{entry.validation_em:.3f}", *scores, p)
    return table


def _cell(mean: Mean) -> str:
    """Return the mean with its spread, and its interval below."""
    low, high = mean.interval
    spread = "" if mean.spread is None else f" ±{mean.spread:.3f}"
    return f"{mean.value:.3f}{spread}\n{low:.3f}-{high:.3f}"


def _entry(group: Sequence[FinishedRun], p: float | None) -> Entry:
    split, (em, f1) = _split(group[0]), _validation(group)
    intervals = bootstrap([run.counts(split) for run in group])

    def mean(score: str, name: str) -> Mean:
        values = [float(run.record[split]["overall"][score]) for run in group]
        return Mean(fmean(values), stdev(values) if len(values) > 1 else None, intervals[name])

    return Entry(
        group[0].name.removesuffix(f"/seed-{group[0].config.seed}"),
        tuple(run.config.seed for run in group),
        split,
        em,
        f1,
        mean("exact_match", "em"),
        mean("f1", "f1"),
        p,
        fmean(float(run.record["minutes"]) for run in group),
    )


def _tests(groups: Sequence[Sequence[FinishedRun]]) -> Mapping[str, float]:
    """Test the first group against each other one with the same test examples; p-values by position."""
    if not groups:
        return {}
    split = _split(groups[0][0])
    truth = groups[0][0].counts(split)[1]
    right: dict[str, dict[int, Any]] = {}
    for i, group in enumerate(groups):
        if _split(group[0]) == split and np.array_equal(group[0].counts(split)[1], truth):
            counts = {run.config.seed: run.counts(split) for run in group}
            right[str(i)] = {seed: np.all(predicted == true, axis=1) for seed, (predicted, true) in counts.items()}
    first = right.pop("0")
    return {test.other: test.adjusted for test in compare(first, right)}


def _validation(group: Sequence[FinishedRun]) -> tuple[float, float]:
    overall = [run.record["validation"]["overall"] for run in group]
    return fmean(part["exact_match"] for part in overall), fmean(part["f1"] for part in overall)


def _split(run: FinishedRun) -> str:
    return "test" if "test" in run.record else "validation"
