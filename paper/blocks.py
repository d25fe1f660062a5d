"""Tables of results as data, before they become text: scores beside the paper's, by method, by data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from paper.records import CellRun
from torchmultiset.viz.comparison import ALPHA, Comparison

__all__ = [
    "BASELINE",
    "LOSSES",
    "METRICS",
    "MISSING",
    "MORE_METRICS",
    "NOTES",
    "TITLES",
    "Block",
    "MethodScores",
    "Overview",
    "Score",
    "overviews",
    "p_value",
]

TITLES = {
    "table-1": "Table 1, rank functions",
    "table-2": "Table 2, execution strategies",
    "table-3": "Table 3, losses",
    "beyond": "Beyond the paper",
    "variations": "Variations on the multiset loss",
    "policy": "The paper's losses with a transformer for a policy",
    "longer": "Two losses with more epochs",
    "larger": "Larger multisets than in training",
    "rare": "Digits that are rare in training",
    "training": "Encoders and training, for two objectives",
    "rates": "Learning rates, chosen by short runs",
    "trials": "Changes of the recipe fast, in short runs",
    "precision": "Precision of training, in short runs",
    "recipe": "The paper's own recipe",
}
LOSSES = "table-3"
"""The paper's table of its losses, which leads the report."""
BASELINE = "majority baseline"
METRICS = {"em": "exact match", "f1": "F1 per example", "class_f1": "class F1"}
MORE_METRICS = {
    **METRICS,
    "nll": "NLL",
    "ece": "calibration error",
    "speed": "images/s",
    "parameters": "parameters",
}
"""Metrics of tables that are not the paper's."""
MISSING = "missing"
# Reasons why a data set has no numbers yet.
_NOT_YET = {"coco-medium": "not run yet with the corrected rule for images that mix common and rare classes"}
NOTES = (
    "± is the standard deviation over seeds; a range is the 95% interval over examples (Wilson's for the exact match of"
    " one seed, else the bootstrap). The paper's tables have one of the two, tables beyond it both.",
    "Difference: ours minus the paper's. The paper defines F1 per example, but at least one of its tables cannot have"
    " been computed that way; class F1, averaged over classes, would fit. So the paper's F1 stands beside both.",
    "The paper's numbers are for its own data. Ours are for the data named below each table: below the scale `paper`,"
    " COCO is a subset or an imitation, and the difference means little.",
    "Validation data was also used to choose the epoch, as in the paper.",
    "Tables beyond the paper: NLL is the negative log-likelihood of the true multiset, summed over all orders of its"
    " labels, and calibration error is the expected calibration error with ten bins, both on the first 2,000 test"
    " examples. Policies that emit one label at a time have them only where all orders can be enumerated: up to four"
    " labels, or ten for policies that see only counts. A log-likelihood below -100 counts as -100. Images/s is the"
    " speed of the fastest epoch, on one core of a shared machine, at the commit in the record: `make bench` compares"
    " the costs of objectives. A dash: the objective does not support the data or the metric (the power multiset: more"
    " than 20,000 multisets; the marginal likelihood: more than eight labels).",
    f"{BASELINE.capitalize()}: always the most frequent multiset of the training data.",
    f"First: a row that is better than each other one in a paired test on the same examples (McNemar's exact test;"
    f" with several seeds, an exact sign-flip test on each example's sum over the common seeds; two-sided, Holm's"
    f" correction, p < {ALPHA}). The test is about these trained models; the deviation shows how seeds vary.",
)


@dataclass(frozen=True)
class Score:
    """Our number, and the paper's."""

    value: float | None = None
    spread: float | None = None
    """Standard deviation over seeds."""
    interval: tuple[float, float] | None = None
    """95% interval over examples."""
    paper: float | None = None
    paper_spread: float | None = None
    form: str = ".3f"
    absent: str = MISSING
    """Text if there is no number."""

    @property
    def ours(self) -> str:
        """The number as text."""
        return self.absent if self.value is None else f"{self.value:{self.form}}"

    @property
    def reach(self) -> str:
        """Deviation and interval as text."""
        spread = [] if self.spread is None else [f"±{self.spread:{self.form}}"]
        interval = [] if self.interval is None else [f"{self.interval[0]:.3f}-{self.interval[1]:.3f}"]
        return ", ".join(spread + interval)

    @property
    def papers(self) -> str:
        """The paper's number as text."""
        if self.paper is None:
            return "-"
        return f"{self.paper:.3f}" + ("" if self.paper_spread is None else f" ±{self.paper_spread:.3f}")

    @property
    def difference(self) -> str:
        """Ours minus the paper's, as text."""
        return "-" if self.value is None or self.paper is None else f"{self.value - self.paper:+.3f}"


def p_value(p: float) -> str:
    """Return a p-value as text.

    Example:
        >>> p_value(0.0421), p_value(1e-9)
        ('p = 0.042', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


@dataclass(frozen=True, eq=False)
class MethodScores:
    """Scores of a method, or of the majority baseline, on one data set."""

    title: str
    scores: Mapping[str, Score]
    """By metric."""
    runs: tuple[CellRun, ...]
    """Finished runs, in the order of seeds."""
    missing: tuple[CellRun, ...] = ()

    @property
    def name(self) -> str:
        """The title, with the number of runs if some are missing."""
        some = self.runs and self.missing
        return f"{self.title} ({len(self.runs)} of {len(self.runs + self.missing)} seeds)" if some else self.title

    @property
    def seen(self) -> Score:
        """Exact match on the second test set, whose images are made of training digits; no number without it."""
        values = [run.metrics["seen"]["overall"]["exact_match"] for run in self.runs if "seen" in run.metrics]
        return Score(fmean(values) if values and len(values) == len(self.runs) else None, absent="-")


@dataclass(frozen=True, eq=False)
class Block:
    """One data set of one table."""

    table: str
    data_set: str
    column: str
    split: str
    rows: tuple[MethodScores, ...]
    baseline: MethodScores | None
    comparisons: tuple[Comparison, ...]
    verdict: str
    """Sentence about which row is first."""
    examples: int
    """Number of examples of our numbers; 0 if there are none yet."""

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics of its columns, with their titles."""
        return METRICS if self.beside_paper else MORE_METRICS

    @property
    def beside_paper(self) -> bool:
        """Whether it is one of the paper's own tables."""
        return self.table.startswith("table-")

    @property
    def table_title(self) -> str:
        """Title of the table."""
        return TITLES.get(self.table, self.table)

    @property
    def title(self) -> str:
        """Titles of table and data set."""
        return f"{self.table_title}: {self.column}, {self.split} data"

    @property
    def data(self) -> str:
        """Sentence about the data of our numbers."""
        run = next((run for row in self.rows for run in row.runs), None)
        if run is None:
            return f"Our data: {_NOT_YET.get(self.data_set, 'none yet')}."
        return f"Our data: {run.data}, {self.examples:,} {self.split} examples."

    @property
    def results(self) -> tuple[MethodScores, ...]:
        """Rows that have a result."""
        return tuple(row for row in self.rows if row.runs)

    @property
    def all_rows(self) -> tuple[MethodScores, ...]:
        """Rows with the baseline last."""
        return self.rows if self.baseline is None else (*self.rows, self.baseline)


@dataclass(frozen=True, eq=False)
class Overview:
    """Exact matches of one table on all of its data sets."""

    title: str
    columns: tuple[str, ...]
    """Titles of the data sets."""
    rows: Mapping[str, tuple[MethodScores | None, ...]]
    """Title of a method -> its scores on each data set; None where it has none."""


def overviews(blocks: Sequence[Block]) -> list[Overview]:
    """Return an overview of each table with several data sets; rows and columns without a result are left out.

    Args:
        blocks: From `summarise`.
    """
    tables: dict[str, list[Block]] = {}
    for block in blocks:
        tables.setdefault(block.table, []).append(block)
    found = []
    for of_table in tables.values():
        parts = [part for part in of_table if part.results]
        titles = dict.fromkeys(row.title for part in parts for row in part.results)
        by_title = [{row.title: row for row in part.rows} for part in parts]
        if parts and len(of_table) > 1:
            rows = {title: tuple(of.get(title) for of in by_title) for title in titles}
            if any(part.baseline for part in parts):
                rows[BASELINE] = tuple(part.baseline for part in parts)
            found.append(Overview(parts[0].table_title, tuple(part.column for part in parts), rows))
    return found
