"""Coverage and size of conformal sets, as a table for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.data import Examples
from torchmultiset.model.conformal import Conformal, conformal_quantile, contains_truth, in_set, rank_examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.viz.scores import wilson
from torchmultiset.viz.terminal import numbers_table

__all__ = ["ConformalReport", "Resampled", "StoredCalibration", "conformal_report", "conformal_table", "resample"]


@dataclass(frozen=True)
class Resampled:
    """Coverage and size of the sets over random divisions of held-out examples into calibration and test."""

    resamplings: int
    calibration: int
    """Number of calibration examples in each."""
    coverage: float
    """Mean over resamplings of the share of test examples whose truth is in the set."""
    coverage_range: tuple[float, float]
    """5% and 95% quantiles over resamplings."""
    size: float | None
    """Mean over resamplings of the mean number of multisets in a set; None if any set is unbounded."""
    size_range: tuple[float, float] | None
    unbounded: int
    """Number of resamplings in which the truth of too many calibration examples is not among the candidates."""


@dataclass(frozen=True)
class StoredCalibration:
    """Result of the calibration that is stored with a model, on test examples."""

    examples: int
    """Number of calibration examples."""
    coverage: float
    """Share of the test examples whose truth is in the set."""
    interval: tuple[float, float]
    """95% confidence interval of that share (Wilson)."""
    size: float
    """Mean number of multisets in a set."""


@dataclass(frozen=True)
class ConformalReport:
    """Coverage and size of the sets of a split; ``dataclasses.asdict`` converts it for JSON."""

    wanted: float
    """The requested coverage."""
    score: str
    candidates: int
    stored: StoredCalibration | None
    """None if the model has no calibration."""
    resampled: Resampled
    """The same with calibrations on random halves of the split."""


def conformal_report(
    predictor: Predictor,
    examples: Examples,
    coverage: float,
    *,
    resamplings: int = 200,
    watch: Callable[[int], None] = lambda _: None,
) -> ConformalReport:
    """Test the sets of a model on a split that was not used for calibration.

    Args:
        predictor: The model; if its record has a calibration, the sets of that calibration are also tested.
        examples: The test examples.
        coverage: Coverage of the sets, between 0 and 1.
        resamplings: Number of random divisions of the examples for `resample`.
        watch: Called after each batch with its number of examples.

    Raises:
        ValueError: There are too few examples, or the model has no probabilities.
    """
    stored = Conformal.of(predictor)
    used = stored or Conformal.defaults(predictor)
    threshold = None if stored is None else stored.threshold(coverage)  # raises errors before the expensive part
    truth, others = rank_examples(
        predictor, examples, score=used.score, candidates=used.candidates, beam=used.beam, watch=watch
    )
    tested = None
    if stored is not None and threshold is not None:
        hit = contains_truth(truth, others, threshold)
        interval = wilson(int(hit.sum()), len(hit))
        size = float(in_set(others, threshold).sum(1).double().mean())
        tested = StoredCalibration(len(stored.scores), float(hit.double().mean()), interval, size)
    again = resample(truth, others, coverage, resamplings=resamplings)
    return ConformalReport(coverage, used.score, used.candidates, tested, again)


def resample(
    truth: Float[Tensor, " n"],
    candidates: Float[Tensor, "n k"],
    coverage: float,
    *,
    resamplings: int = 200,
    seed: int = 0,
) -> Resampled:
    """Estimate coverage and size of the sets: calibrate on a random half of the examples, test on the other half.

    Args:
        truth: Scores of the true multisets (N,), from `rank_examples`.
        candidates: Scores of the candidates (N, k).
        coverage: Coverage to calibrate for.
        resamplings: Number of random divisions.
        seed: Random seed of the divisions.

    Raises:
        ValueError: Half of the examples are too few for the coverage.
    """
    check(resamplings >= 1, "resamplings", "at least 1", resamplings)
    half, generator = len(truth) // 2, torch.Generator().manual_seed(seed)
    shares, sizes = [], []
    for _ in range(resamplings):
        order = torch.randperm(len(truth), generator=generator)
        threshold = conformal_quantile(truth[order[:half]], coverage)
        others = candidates[order[half:]]
        shares.append(float(contains_truth(truth[order[half:]], others, threshold).double().mean()))
        bounded = threshold < math.inf
        sizes.append(float(in_set(others, threshold).sum(1).double().mean()) if bounded else math.inf)
    unbounded = sum(size == math.inf for size in sizes)
    return Resampled(
        resamplings,
        half,
        float(np.mean(shares)),
        _range(shares),
        None if unbounded else float(np.mean(sizes)),
        None if unbounded else _range(sizes),
        unbounded,
    )


def conformal_table(report: ConformalReport) -> Table:
    """Return the report as a table that fits a terminal of 80 columns."""
    title = f"Sets of multisets with coverage {report.wanted:g}"
    table = numbers_table(title, "calibration", "examples", "coverage", "range", "set size", "range")
    if report.stored is not None:
        stored, bounds = report.stored, "{:.3f}-{:.3f}".format(*report.stored.interval)
        table.add_row(
            "of the model", f"{stored.examples:,}", f"{stored.coverage:.3f}", bounds, f"{stored.size:.2f}", ""
        )
    again = report.resampled
    coverages = "{:.3f}-{:.3f}".format(*again.coverage_range)
    size, sizes = "-", ""
    if again.size is not None and again.size_range is not None:
        size, sizes = f"{again.size:.2f}", "{:.2f}-{:.2f}".format(*again.size_range)
    name = f"{again.resamplings} resamplings"
    table.add_row(name, f"{again.calibration:,}", f"{again.coverage:.3f}", coverages, size, sizes)
    caption = "range: 95% interval (model), 5% to 95% of the resamplings"
    if again.unbounded:
        missed = f"too many true multisets are not among the {report.candidates} candidates"
        caption += f"; in {again.unbounded} of them,\n{missed}"
    table.caption, table.caption_justify = caption, "left"
    return table


def _range(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.05, 0.95])
    return float(low), float(high)
