"""Copy result tables into pages that quote them: ``python tools/quote_results.py``, after ``python -m paper report``.

Between ``<!-- quote: TITLE -->`` and ``<!-- /quote -->`` a page holds the table "Exact match at a glance: TITLE" of
docs/results/small.md, with links relative to the page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "results" / "small.md"
PAGES = (ROOT / "docs" / "which-loss.md",)
_MARKED = re.compile(r"(<!-- quote: (.*?) -->\n).*?(<!-- /quote -->)", re.DOTALL)


def quoted(page: str, results: str, folder: Path) -> str:
    """Return a page with its quoted tables updated.

    Args:
        page: Text of the page.
        results: Text of `SOURCE`.
        folder: Folder of the page.

    Raises:
        ValueError: The results have no table with a quoted title.
    """

    def table(marked: re.Match[str]) -> str:
        head = f"\n## Exact match at a glance: {marked[2]}\n\n"
        if head not in results:
            raise ValueError(f"{SOURCE.name} has no table {marked[2]!r}: write it with python -m paper report")
        rows = results.split(head)[1].split("\n\n")[0]
        records, here = (Path(os.path.relpath(path, folder)).as_posix() for path in (ROOT / "results", SOURCE))
        links = rows.replace("](../../results/", f"]({records}/").replace("](#", f"]({here}#")
        return f"{marked[1]}\n{links}\n\n{marked[3]}"

    return _MARKED.sub(table, page)


def main() -> None:
    """Update all pages."""
    for page in PAGES:
        page.write_text(quoted(page.read_text(), SOURCE.read_text(), page.parent))


if __name__ == "__main__":
    main()
