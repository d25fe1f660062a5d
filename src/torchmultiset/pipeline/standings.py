"""Validation scores of candidates and baselines, as a table and as JSON.

The score of an example is the mean of its exact match and F1. Candidates may be scored on different examples: one part
of a cross-validation, all parts, or the validation data. Therefore they are not ranked by their scores, but by their
*lead*: the mean difference from the score of ridge regression on the same examples, fitted to the same training data.
Its standard error is subtracted, so that ridge regression, whose lead is 0, is displaced only by a candidate that leads
by more than that, and a candidate that was scored on few examples must lead by more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from torchmultiset._files import write_whole
from torchmultiset.metrics import exact_match, f1
from torchmultiset.viz.terminal import empty_table

__all__ = [
    "PORTFOLIO",
    "STANDINGS",
    "Standing",
    "ranked",
    "read_standings",
    "score",
    "standings_table",
    "write_standings",
]

STANDINGS = "leaderboard.json"
PORTFOLIO = "portfolio.json"
"""File with the data, the budget and the candidates of a portfolio."""


class Standing(NamedTuple):
    """Validation scores of a candidate or a baseline."""

    name: str
    about: str
    examples: int
    """Number of held-out examples."""
    exact_match: float
    f1: float
    error: float
    """Standard error of the score."""
    minutes: float
    """Training time."""
    lead: float = 0.0
    """Mean difference from the score of ridge regression on the same examples."""
    lead_error: float = 0.0
    """Standard error of the lead."""

    @property
    def score(self) -> float:
        """Mean of exact match and F1."""
        return (self.exact_match + self.f1) / 2


def score(
    name: str,
    about: str,
    pairs: Sequence[tuple[Tensor, Tensor]],
    minutes: float,
    *,
    ridge: Sequence[Tensor] = (),
) -> Standing:
    """Score predictions for held-out examples.

    Args:
        name: Name of the candidate or baseline.
        about: Description.
        pairs: Predicted and true counts (N, C) of each part.
        minutes: Training time.
        ridge: Counts (N, C) that ridge regression predicts for each part, for the lead; without them it is 0.

    Example:
        >>> counts = torch.tensor([[1, 0], [0, 2]])
        >>> right = score("right", "", [(counts, counts)], 0.5, ridge=[torch.tensor([[1, 0], [2, 0]])])
        >>> right.score, right.lead
        (1.0, 0.5)
    """
    counts, target = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    right, overlap = _scores(counts, target)
    each = (right + overlap) / 2
    lead = each - sum(_scores(torch.cat([*ridge]), target)) / 2 if ridge else torch.zeros_like(each)
    error, lead_error = (float(values.std(correction=0)) / len(target) ** 0.5 for values in (each, lead))
    means = float(right.mean()), float(overlap.mean())
    return Standing(name, about, len(target), *means, error, minutes, float(lead.mean()), lead_error)


def _scores(counts: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return exact match and F1 of each example (N,)."""
    return exact_match(counts, target).double(), f1(counts, target).double()


def ranked(standings: Iterable[Standing]) -> list[Standing]:
    """Return the standings, best first: by the lead minus its standard error, then by the score.

    Example:
        >>> few, many = (Standing(name, "", 9, 0.5, 0.5, 0.1, 1.0, lead=0.2) for name in ("few", "many"))
        >>> [one.name for one in ranked([few._replace(lead_error=0.1), many._replace(lead_error=0.05)])]
        ['many', 'few']
    """
    return sorted(standings, key=lambda one: (one.lead_error - one.lead, -one.score))


def standings_table(standings: Sequence[Standing]) -> Table:
    """Return a table that fits 80 columns, best first."""
    table = empty_table("Leaderboard: scores on held-out examples")
    for heading, justify in (("", "left"), ("EM", "right"), ("F1", "right"), ("lead", "right"), ("min", "right")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("description", overflow="fold")
    for one in ranked(standings):
        lead = f"{one.lead:+.3f} ±{one.lead_error:.3f}"
        minutes = f"{one.minutes:.1f}" if one.minutes else ""
        table.add_row(Text(one.name), f"{one.exact_match:.3f}", f"{one.f1:.3f}", lead, minutes, Text(one.about))
    table.caption = (
        "lead: of the mean of exact match (EM) and F1 over that of ridge regression on the same examples,"
        " ± its standard error"
    )
    table.caption_justify = "left"
    return table


def write_standings(folder: Path, standings: Sequence[Standing]) -> None:
    """Write ``leaderboard.json``."""
    write_whole(folder / STANDINGS, json.dumps([one._asdict() for one in standings], indent=2) + "\n")


def read_standings(folder: Path) -> list[Standing]:
    """Read ``leaderboard.json``; empty if there is none."""
    path = folder / STANDINGS
    if not path.exists():
        return []
    try:
        standings = [Standing(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        for one in standings:
            if not all(isinstance(value, str) for value in one[:2]) or not all(
                isinstance(n, int | float) for n in one[2:]
            ):
                raise ValueError("an entry is not a number")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to resume without the table") from None
    return standings
