"""The tables of the experiments for a terminal of 80 columns."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from torchmultiset.report.blocks import Block

__all__ = ["result_table"]


def result_table(block: Block) -> Table:
    """One data set of one table: metric after metric, ours beside the paper's."""
    table = Table(title=Text(block.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    table.padding = (0, 1, 0, 0)
    table.add_column("", max_width=32)
    beside = ("paper", "difference") if block.beside_paper else ()
    for name in ("ours", "± or 95%", *beside):
        table.add_column(name, justify="right", no_wrap=True)
    for metric, title in block.metrics.items():
        table.add_row(Text(title, style="italic"))
        for row in block.all_rows:
            score = row.scores[metric]
            papers = (score.papers, score.difference) if beside else ()
            table.add_row(Text(f"  {row.name}"), score.ours, score.reach, *papers)
        table.add_section()
    return table
