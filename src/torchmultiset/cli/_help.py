"""Help of commands with many options: ``--help`` shows the common ones, ``--help-all`` all of them."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from cyclopts import Parameter
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.markdown import Markdown

__all__ = ["HELP_ALL", "HelpOf", "as_typed", "flags", "in_full"]

HELP_ALL = "--help-all"

in_full: ContextVar[bool] = ContextVar("in_full", default=False)
"""Whether the command line contains ``--help-all``."""


def as_typed(value: object, unset: str | None = None) -> str | None:
    """Format a value as it would be typed; `unset` stands for None."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else unset if value is None else str(value)


def flags(unset: str | None = None) -> Parameter:
    """Return a parameter for a dataclass whose fields become flags; several values are separated by spaces.

    Args:
        unset: Default that the help shows for None.
    """
    shown = partial(as_typed, unset=unset)
    return Parameter(name="*", consume_multiple=True, negative_iterable=(), show_default=shown)


@dataclass(frozen=True)
class HelpOf:
    """Help formatter of a command, for `App.help_formatter`.

    Args:
        common: Options that ``--help`` shows, in this order within each panel.
        unset: Options without a default. None is also the default of other options, and is then shown as "auto".
        more: Markdown that ``--help-all`` adds after the last panel.
        last: Title of the last panel.
    """

    common: tuple[str, ...]
    unset: tuple[str, ...]
    more: str
    last: str

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Render a panel with all of its options, or only the common ones."""
        entries = [
            entry.copy(default=None) if {*entry.names} & {*self.unset} else entry
            for entry in panel.entries
            if in_full.get() or entry.positional_label or not entry.names or {*entry.names} & {*self.common}
        ]
        order = [name for entry in entries for name in entry.names] if in_full.get() else self.common
        entries.sort(key=lambda entry: min((order.index(name) for name in entry.names if name in order), default=-1))
        if entries:
            DefaultFormatter()(console, options, panel.copy(entries=entries))
        if in_full.get() and str(panel.title) == self.last:
            console.print(Markdown(self.more))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Render the usage line."""
        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Render the description."""
        DefaultFormatter().render_description(console, options, description)
