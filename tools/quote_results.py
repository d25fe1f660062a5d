"""Copy result tables into pages that quote them: ``python tools/quote_results.py``, after ``python -m paper report``.

Between ``<!-- quote SCALE: TITLE -->`` and ``<!-- /quote -->`` a page holds the table "Exact match at a glance: TITLE"
of docs/results/SCALE.md, with links relative to the page. The default scale is ``small``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "which-loss.md")
_MARKED = re.compile(r"(<!-- quote(?: (\w+))?: (.*?) -->\n).*?(<!-- /quote -->)", re.DOTALL)


def quoted(page: str, folder: Path) -> str:
    """Return a page with its quoted tables updated.

    Args:
        page: Text of the page.
        folder: Folder of the page.

    Raises:
        ValueError: The results have no table with a quoted title.
    """

    def table(marked: re.Match[str]) -> str:
        start, scale, title, end = marked.groups()
        source = ROOT / "docs" / "results" / f"{scale or 'small'}.md"
        head, results = f"\n## Exact match at a glance: {title}\n\n", source.read_text()
        if head not in results:
            raise ValueError(f"{source.name} has no table {title!r}: write it with python -m paper report")
        rows = results.split(head)[1].split("\n\n")[0]
        records, here = (Path(os.path.relpath(path, folder)).as_posix() for path in (ROOT / "results", source))
        links = rows.replace("](../../results/", f"]({records}/").replace("](#", f"]({here}#")
        return f"{start}\n{links}\n\n{end}"

    return _MARKED.sub(table, page)


def main() -> None:
    """Update all pages."""
    for page in PAGES:
        page.write_text(quoted(page.read_text(), page.parent))


if __name__ == "__main__":
    main()
