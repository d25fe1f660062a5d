"""Tables for the terminal, in a common style."""

from __future__ import annotations

from rich import box
from rich.table import Table

__all__ = ["empty_table", "numbers_table"]


def empty_table(title: str | None = None) -> Table:
    """Create a compact table without columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def numbers_table(title: str, first: str, *others: str) -> Table:
    """Create a table with names on the left, which may wrap, and numbers, which may not; bars have no heading."""
    table = empty_table(title)
    table.add_column(first, max_width=24)
    for name in others:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table
