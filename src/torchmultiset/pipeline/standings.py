"""Validation scores of candidates and baselines, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from torchmultiset._files import write_whole
from torchmultiset.metrics import exact_match, f1
from torchmultiset.viz.terminal import empty_table

__all__ = ["Standing", "read_standings", "score", "standings_table", "write_standings"]

STANDINGS = "leaderboard.json"


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

    @property
    def score(self) -> float:
        """Mean of exact match and F1, by which candidates are compared."""
        return (self.exact_match + self.f1) / 2


def score(name: str, about: str, pairs: Sequence[tuple[Tensor, Tensor]], minutes: float) -> Standing:
    """Score predictions for held-out examples.

    Args:
        name: Name of the candidate or baseline.
        about: Description.
        pairs: Predicted and true counts (N, C) of each part.
        minutes: Training time.

    Example:
        >>> counts = torch.tensor([[1, 0], [0, 2]])
        >>> score("same", "", [(counts, counts)], 0.5).score
        1.0
    """
    counts, target = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    right, overlap = exact_match(counts, target).double(), f1(counts, target).double()
    error = float(((right + overlap) / 2).std(correction=0)) / len(target) ** 0.5
    return Standing(name, about, len(target), float(right.mean()), float(overlap.mean()), error, minutes)


def standings_table(standings: Sequence[Standing]) -> Table:
    """Return a table that fits 80 columns, best first."""
    table = empty_table("Leaderboard: scores on held-out examples")
    for heading, justify in (("", "left"), ("EM", "right"), ("F1", "right"), ("score", "right"), ("min", "right")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("description", overflow="fold")
    for one in sorted(standings, key=lambda standing: -standing.score):
        spread = f"{one.score:.3f} ±{one.error:.3f}"
        minutes = f"{one.minutes:.1f}" if one.minutes else ""
        table.add_row(Text(one.name), f"{one.exact_match:.3f}", f"{one.f1:.3f}", spread, minutes, Text(one.about))
    table.caption = "score: mean of exact match (EM) and F1, ± its standard error"
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
