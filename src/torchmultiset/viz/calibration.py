"""Calibration of a model's confidence, and selective prediction.

Confidence is the probability of the predicted multiset, summed over all orders of its labels. A model is calibrated if
80% of the predictions with confidence 0.8 are correct. Confidence is useful for abstaining if more confident
predictions are more often correct, calibrated or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from rich.table import Table
from torch import Tensor

from torchmultiset._checks import check, check_counts
from torchmultiset.data.examples import Examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.viz.scores import wilson
from torchmultiset.viz.terminal import numbers_table

__all__ = ["Answered", "Bin", "Calibration", "calibrate", "calibration_tables", "log_probabilities"]

_THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_POINTS = 100  # maximum number of points of a curve


@dataclass(frozen=True)
class Bin:
    """Predictions with a confidence above `low` and at most `high`."""

    low: float
    high: float
    examples: int
    confidence: float
    """Mean confidence."""
    exact_match: float
    interval: tuple[float, float]
    """95% confidence interval of the exact match (Wilson)."""


@dataclass(frozen=True)
class Answered:
    """Accuracy when the model abstains below a confidence threshold."""

    min_confidence: float
    examples: int
    coverage: float
    """Fraction of the examples that are answered."""
    exact_match: float | None
    """Exact match of the answered examples; None if there are none."""


@dataclass(frozen=True)
class Calibration:
    """Relation between confidence and exact match; ``dataclasses.asdict`` converts it for JSON."""

    examples: int
    confidence: float
    """Mean confidence of all examples."""
    exact_match: float
    error: float
    """Expected calibration error: gap between confidence and exact match in a bin, averaged over examples."""
    bins: list[Bin]
    """Non-empty bins."""
    answered: list[Answered]
    curve: list[tuple[float, float]]
    """Pairs of coverage and risk: error rate when only this fraction, the most confident, is answered."""
    area: float
    """Area under `curve`: mean risk over all coverages."""


def log_probabilities(
    predictor: Predictor,
    examples: Examples,
    counts: Int64[Tensor, "n c"],
    *,
    beam: int = 8,
    batch_size: int = 256,
    watch: Callable[[int], None] = lambda _: None,
) -> Float64[Tensor, " n"]:
    """Compute the log-probability of one multiset per example, such as the prediction.

    Args:
        predictor: Predictor that assigns the probabilities.
        examples: The N examples.
        counts: One multiset per example (N, C).
        beam: As for `Predictor.log_probability`.
        batch_size: Batch size.
        watch: Called after each batch with its number of examples.
    """
    check_counts("counts", counts, like=(len(examples), len(predictor.classes)))
    device = next(predictor.parameters()).device
    found = [torch.zeros(0, dtype=torch.float64)]
    for batch, some in zip(examples.batches(batch_size), torch.split(counts, batch_size), strict=False):
        found.append(predictor.log_probability(batch.x.to(device), some.to(device), beam=beam).cpu())
        watch(len(some))
    return torch.cat(found)


def calibrate(confidence: Float[Tensor, " n"], right: Bool[Tensor, " n"], *, bins: int = 10) -> Calibration:
    """Compare the confidence of predictions with their exact match.

    Args:
        confidence: Probability of each prediction (N,).
        right: Whether each prediction is correct (N,).
        bins: Number of bins of equal width.

    Example:
        >>> result = calibrate(torch.tensor([0.9, 0.9, 0.6, 0.2]), torch.tensor([True, True, False, False]))
        >>> round(result.error, 3), [answered.exact_match for answered in result.answered[:2]]
        (0.25, [0.5, 0.6666666666666666])
        >>> result.curve
        [(0.5, 0.0), (0.75, 0.3333333333333333), (1.0, 0.5)]
    """
    check(len(confidence) >= 1, "confidence", "of at least one example", confidence)
    check(confidence.shape == right.shape, "right", f"of shape {tuple(confidence.shape)}", right)
    check(bool(((confidence >= 0) & (confidence <= 1 + 1e-6)).all()), "confidence", "from 0 to 1", confidence)
    check(bins >= 1, "bins", "at least 1", bins)
    confidence, wrong = confidence.double().clamp(max=1), 1 - right.double()
    place = (confidence * bins).ceil().long().clamp(min=1) - 1
    filled = [
        _bin(i / bins, (i + 1) / bins, confidence[place == i], right[place == i]) for i in sorted({*place.tolist()})
    ]
    distance = sum(part.examples * abs(part.confidence - part.exact_match) for part in filled)
    surest, order = confidence.sort(descending=True)
    risk = wrong[order].cumsum(0) / torch.arange(1, len(wrong) + 1)
    # Examples with equal confidence are answered together.
    last = torch.cat([surest[1:] != surest[:-1], torch.tensor([True])]).nonzero()[:, 0]
    shown = last[torch.linspace(0, len(last) - 1, min(len(last), _POINTS)).round().long()]
    coverage = (shown + 1).double() / len(wrong)
    share = torch.diff(last + 1, prepend=torch.tensor([0])) / len(wrong)
    return Calibration(
        examples=len(right),
        confidence=float(confidence.mean()),
        exact_match=float(right.double().mean()),
        error=distance / len(right),
        bins=filled,
        answered=[_answered(confidence, right, threshold) for threshold in _THRESHOLDS],
        curve=[*zip(coverage.tolist(), risk[shown].tolist(), strict=True)],
        area=float((risk[last] * share).sum()),
    )


def calibration_tables(calibration: Calibration) -> list[Table]:
    """Return tables of the bins and of the abstention thresholds; they fit a terminal of 80 columns."""
    title = f"Calibration (expected calibration error {calibration.error:.3f})"
    bins = numbers_table(title, "confidence", "examples", "mean confidence", "exact match", "95% CI")
    for part in calibration.bins:
        shares = (f"{part.confidence:.3f}", f"{part.exact_match:.3f}", "{:.3f}-{:.3f}".format(*part.interval))
        bins.add_row(f"{part.low:.2f}-{part.high:.2f}", f"{part.examples:,}", *shares)
    bins.add_row(
        "all", f"{calibration.examples:,}", f"{calibration.confidence:.3f}", f"{calibration.exact_match:.3f}", ""
    )
    headings = ("--min-confidence", "answered", "coverage", "exact match of answered")
    abstaining = numbers_table("Abstention", *headings)
    for kept in calibration.answered:
        share = "-" if kept.exact_match is None else f"{kept.exact_match:.3f}"
        abstaining.add_row(f"{kept.min_confidence:.2f}", f"{kept.examples:,}", f"{kept.coverage:.3f}", share)
    return [bins, abstaining]


def _bin(low: float, high: float, confidence: Tensor, right: Tensor) -> Bin:
    hits = int(right.sum())
    n = len(right)
    return Bin(low, high, n, float(confidence.mean()), hits / n, wilson(hits, n))


def _answered(confidence: Tensor, right: Tensor, threshold: float) -> Answered:
    kept = right[confidence >= threshold]
    share = float(kept.double().mean()) if len(kept) else None
    return Answered(threshold, len(kept), len(kept) / len(right), share)
