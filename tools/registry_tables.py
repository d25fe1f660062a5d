"""Write the tables of objectives, encoders, policies and heads into the pages: ``python tools/registry_tables.py``.

Between ``<!-- registry: NAME -->`` and ``<!-- /registry -->`` a page holds a table of the entries of a registry. A row
is made from the class: its name, the first sentence of its docstring, and for an objective its settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torchmultiset._registry import Registry
from torchmultiset.model.objectives import CONTEXT
from torchmultiset.model.registry import COUNT_HEADS, ENCODERS, OBJECTIVES, POLICIES

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "training.md",)
_MARKED = re.compile(r"(<!-- registry: (\w+) -->\n).*?(<!-- /registry -->)", re.DOTALL)
_SELECTED_BY_A_BACKBONE = ("pretrained", "finetuned")


def _first_sentence(cls: type) -> str:
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return text.removesuffix(".").replace("|", r"\|")


def _flags(objective: Any) -> Iterator[str]:
    hints = get_type_hints(objective)
    for field in fields(objective):
        if field.name not in CONTEXT:
            choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
            yield " ".join([f"`--{field.name.replace('_', '-')}`", *[f"({', '.join(choices)})"] * bool(choices)])


def _objectives() -> Iterator[tuple[str, ...]]:
    yield "`--objective`", "loss", "network", "`--stop end`", "settings"
    for name, kind in OBJECTIVES.items():
        network = "one-shot head" if kind.one_shot else "policy that sees only counts" if kind.counts_only else "policy"
        end = "no" if kind.one_shot or kind.no_end else "yes"
        yield f"`{name}`", _first_sentence(kind), network, end, ", ".join(_flags(kind))


def _networks(flag: str, registry: Registry, left_out: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield f"`{flag}`", "network"
    for name, cls in registry.items():
        if name not in left_out:
            yield f"`{name}`", _first_sentence(cls)


TABLES: dict[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "objectives": _objectives,
    "encoders": lambda: _networks("--encoder", ENCODERS, _SELECTED_BY_A_BACKBONE),
    "policies": lambda: _networks("--policy", POLICIES),
    "count_heads": lambda: _networks("--count-head", COUNT_HEADS),
}


def filled(page: str) -> str:
    """Return a page with its tables updated.

    Args:
        page: Text of the page.

    Raises:
        KeyError: There is no table with a marked name.
    """

    def table(marked: re.Match[str]) -> str:
        start, name, end = marked.groups()
        head, *rows = TABLES[name]()
        lines = [head, ("---",) * len(head), *rows]
        return f"{start}\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{end}"

    return _MARKED.sub(table, page)


def main() -> None:
    """Update all pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
