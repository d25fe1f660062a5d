"""What terminal, Markdown and HTML all show: numbers beside the paper's, in rows, in blocks of one data set each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchmultiset.report.results import Run
from torchmultiset.viz.comparison import ALPHA, Comparison

__all__ = [
    "CONSTANT",
    "METRICS",
    "MISSING",
    "MORE_METRICS",
    "NOTES",
    "TITLES",
    "Block",
    "Glance",
    "Row",
    "Score",
    "at_a_glance",
    "in_short",
    "scale_note",
]

TITLES = {
    "table-1": "Table 1, rank functions",
    "table-2": "Table 2, execution strategies",
    "table-3": "Table 3, losses",
    "beyond": "Beyond the paper",
    "variations": "Variations on the multiset loss",
    "policy": "The paper's losses with a transformer for a policy",
    "longer": "Two losses with more epochs",
    "larger": "More labels than were learned from",
    "rare": "Digits that were rare",
    "training": "Encoders and training, whatever the loss",
}
CONSTANT = "always the same"
METRICS = {"em": "exact match", "f1": "F1 per example", "class_f1": "class F1"}
MORE_METRICS = {
    **METRICS,
    "nll": "NLL",
    "ece": "calibration error",
    "speed": "images/s",
    "parameters": "parameters",
}
"""For tables that are not the paper's."""
MISSING = "missing"
NOTES = (
    "Ours: ± is the standard deviation over seeds; a range is the 95% interval over examples (Wilson's for the exact"
    " match of one seed, else by the bootstrap). The paper's tables have the one or the other, those beyond it both.",
    "Difference: ours minus the paper's. The paper defines F1 per example, but at least one of its tables cannot have"
    " been made so; class F1, averaged over classes, would fit. So the paper's one F1 stands beside both.",
    "The paper's numbers are for its own data. Ours are for the data that each table names: below the scale `paper`,"
    " COCO is a part of it or an imitation, and there the difference says little.",
    "Validation data has also chosen the epoch, as in the paper.",
    "Tables beyond the paper: NLL is the negative log-likelihood of the true multiset, over all orders of its labels,"
    " and calibration error the expected one in ten bins, both on the first 2,000 test examples; for policies that name"
    " one label after another, only where all orders can be followed: up to four labels, or ten for those that see only"
    " counts. A log-likelihood below -100 counts as -100. Images/s is that of the fastest epoch, on one core of a"
    " machine that others use, too, and of the commit that the record names: what objectives cost beside each other is"
    " told by `make bench`. A dash is for what an objective refuses or does not know: the power multiset more than"
    " 20,000 multisets, the marginal likelihood more than eight labels.",
    f"{CONSTANT.capitalize()}: the multiset that is most frequent in training, whatever the input.",
    f"First: a row that is better than each other one in a paired test on the same examples (McNemar's exact test;"
    f" with several seeds, an exact sign-flip test on each example's sum over the seeds that both have; two-sided,"
    f" Holm's correction, p < {ALPHA}). It speaks of these trained models; what other seeds would give, the deviation"
    " says.",
)


def scale_note(scale: str) -> str:
    """What a reader must know before comparing."""
    return "" if scale == "paper" else f"Ours were made at the scale {scale}, the paper's at full scale."


@dataclass(frozen=True)
class Score:
    """One number of ours, and what the paper has in its place."""

    value: float | None = None
    spread: float | None = None
    """Standard deviation over seeds."""
    interval: tuple[float, float] | None = None
    """95%, over examples."""
    paper: float | None = None
    paper_spread: float | None = None
    form: str = ".3f"
    absent: str = MISSING
    """What is shown if there is no number."""

    @property
    def ours(self) -> str:
        """The number as it is shown."""
        return self.absent if self.value is None else f"{self.value:{self.form}}"

    @property
    def reach(self) -> str:
        """How sure it is, as it is shown."""
        spread = [] if self.spread is None else [f"±{self.spread:{self.form}}"]
        interval = [] if self.interval is None else [f"{self.interval[0]:.3f}-{self.interval[1]:.3f}"]
        return ", ".join(spread + interval)

    @property
    def papers(self) -> str:
        """The paper's number as it is shown."""
        if self.paper is None:
            return "-"
        return f"{self.paper:.3f}" + ("" if self.paper_spread is None else f" ±{self.paper_spread:.3f}")

    @property
    def difference(self) -> str:
        """Ours minus the paper's, as it is shown."""
        return "-" if self.value is None or self.paper is None else f"{self.value - self.paper:+.3f}"


def in_short(p: float) -> str:
    """A p-value as it is shown.

    Example:
        >>> in_short(0.0421), in_short(1e-9)
        ('p = 0.042', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


@dataclass(frozen=True, eq=False)
class Row:
    """A method, or the constant multiset."""

    title: str
    scores: Mapping[str, Score]
    """By metric."""
    runs: tuple[Run, ...]
    """Where the numbers are from: done, in the order of seeds."""
    missing: tuple[Run, ...] = ()

    @property
    def name(self) -> str:
        """The title, and how many of its runs there are if some are missing."""
        some = self.runs and self.missing
        return f"{self.title} ({len(self.runs)} of {len(self.runs + self.missing)} seeds)" if some else self.title


@dataclass(frozen=True, eq=False)
class Block:
    """One data set of one table."""

    table: str
    data_set: str
    column: str
    split: str
    rows: tuple[Row, ...]
    constant: Row | None
    comparisons: tuple[Comparison, ...]
    verdict: str
    """Which one is first, in words."""
    examples: int
    """On which our numbers are measured; 0 if there are none yet."""

    @property
    def metrics(self) -> Mapping[str, str]:
        """What its columns are, in words."""
        return METRICS if self.beside_paper else MORE_METRICS

    @property
    def beside_paper(self) -> bool:
        """Whether it is one of the paper's own tables."""
        return self.table.startswith("table-")

    @property
    def table_title(self) -> str:
        """The table in words."""
        return TITLES.get(self.table, self.table)

    @property
    def title(self) -> str:
        """Table and data set in words."""
        return f"{self.table_title}: {self.column}, {self.split} data"

    @property
    def data(self) -> str:
        """What our numbers are measured on, in words."""
        run = next((run for row in self.rows for run in row.runs), None)
        if run is None:
            return "Our data: none yet."
        return f"Our data: {run.data}, {self.examples:,} {self.split} examples."

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """With the constant one last."""
        return self.rows if self.constant is None else (*self.rows, self.constant)


@dataclass(frozen=True, eq=False)
class Glance:
    """The exact matches of one table on all of its data sets."""

    title: str
    columns: tuple[str, ...]
    """The data sets."""
    rows: Mapping[str, tuple[Row | None, ...]]
    """Method, in words -> its row on each data set; None where it has none."""


def at_a_glance(blocks: Sequence[Block]) -> list[Glance]:
    """Tables of several data sets, in short.

    Args:
        blocks: From `summarise`.
    """
    tables: dict[str, list[Block]] = {}
    for block in blocks:
        tables.setdefault(block.table, []).append(block)
    found = []
    for parts in tables.values():
        titles = dict.fromkeys(row.title for part in parts for row in part.rows)
        by_title = [{row.title: row for row in part.rows} for part in parts]
        if len(parts) > 1:
            rows = {title: tuple(of.get(title) for of in by_title) for title in titles}
            if any(part.constant for part in parts):
                rows[CONSTANT] = tuple(part.constant for part in parts)
            found.append(Glance(parts[0].table_title, tuple(part.column for part in parts), rows))
    return found
