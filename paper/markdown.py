"""The results as a Markdown page, with a link from each number to its record."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paper.blocks import Block, MethodScores, Overview, Score, overviews, p_value
from paper.records import CellRun

__all__ = ["Page", "Picture", "in_markdown"]


@dataclass(frozen=True)
class Picture:
    """A figure on a page."""

    data_set: str
    caption: str
    address: str
    """Its file, relative to the page."""


@dataclass(frozen=True)
class Page:
    """Contents of a page."""

    scale: str
    blocks: Sequence[Block]
    runs: Sequence[CellRun]
    pictures: Sequence[Picture]
    notes: Sequence[str]
    """How to read the tables."""
    link: Callable[[Path], str]
    """Record -> its address, relative to the page."""
    command: str
    """Command that writes the page."""


def in_markdown(page: Page) -> str:
    """Return the page as Markdown."""
    done = sum(run.done for run in page.runs)
    scale = "" if page.scale == "paper" else f" Ours are at the scale {page.scale}, the paper's at full scale."
    parts = [
        f"# Results, scale `{page.scale}`",
        f"Written by `{page.command}`: do not edit.{scale} {done} of {len(page.runs)} runs are done.",
        "\n".join(f"- {_text(note)}" for note in page.notes),
    ]
    trained = _trained(page)
    if trained:
        parts += ["## Exact match at a glance: Trained losses beside the paper", trained]
    for overview in overviews(page.blocks):
        parts += [f"## Exact match at a glance: {_text(overview.title)}", _overview(overview, page)]
    for block in page.blocks:
        parts += [f"## {_text(block.title)}", _text(block.data), _table(block, page), _text(block.verdict)]
        if block.comparisons:
            parts.append(_comparisons(block))
    if page.pictures:
        parts.append("## Figures")
    titles = {block.data_set: block.column for block in reversed(page.blocks)}
    for data_set in dict.fromkeys(picture.data_set for picture in page.pictures):
        parts.append(f"### {_text(titles.get(data_set, data_set))}")
        for picture in page.pictures:
            if picture.data_set == data_set:
                caption = _text(picture.caption)
                parts.append(f"![{caption}]({picture.address})\n\n{caption}")
    return "\n\n".join([*parts, "## Runs", _runs(page)]) + "\n"


def _trained(page: Page) -> str:
    """Return finished runs of Table 3 that were also tested on training digits, as the paper's were."""
    heads = ["data", "loss", "epochs", "unseen digits", "training digits", "paper"]
    lines = [_row(heads), _row(["---", "---", *["---:"] * 4])]
    for run in page.runs:
        at = run.tables.get("table-3")
        if at is None or at.paper is None or run.path is None or "seen" not in run.metrics:
            continue
        unseen, seen = (run.metrics[split]["overall"] for split in ("test", "seen"))
        low, high = unseen["interval"]
        seed = f" (seed {run.seed})" if run.seed else ""
        lines.append(
            _row(
                [
                    _text(at.column),
                    _text(at.row + seed),
                    str(len(run.epochs())),
                    f"[{unseen['exact_match']:.3f}]({page.link(run.path)}) {low:.3f} to {high:.3f}",
                    f"[{seen['exact_match']:.3f}]({page.link(run.path)})",
                    f"{at.paper['em']:.3f}",
                ]
            )
        )
    return "\n".join(lines) if len(lines) > 2 else ""


def _table(block: Block, page: Page) -> str:
    heads = [""]
    for title in block.metrics.values():
        heads += [title, "paper", "difference"] if block.beside_paper else [title]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for row in block.all_rows:
        cells = [_text(row.name)]
        for metric in block.metrics:
            score = row.scores[metric]
            cells += [_ours(row, score, page), *((score.papers, score.difference) if block.beside_paper else ())]
        lines.append(_row(cells))
    return "\n".join(lines)


def _overview(overview: Overview, page: Page) -> str:
    lines = [_row(["", *map(_text, overview.columns)]), _row(["---", *["---:"] * len(overview.columns)])]
    for title, rows in overview.rows.items():
        cells = ["-" if row is None else _ours(row, replace(row.scores["em"], interval=None), page) for row in rows]
        lines.append(_row([_text(title), *cells]))
    return "\n".join(lines)


def _ours(row: MethodScores, score: Score, page: Page) -> str:
    """Return a number with a link to its record, or to the list of its runs if there are several."""
    if score.value is None or not row.runs:
        return score.ours
    run = row.runs[0]
    address = page.link(run.path) if len(row.runs) == 1 and run.path is not None else f"#{_anchor(run)}"
    return f"[{score.ours}]({address}) {score.reach}".rstrip()


def _comparisons(block: Block) -> str:
    lines = [_row(["against", "seeds", "only the first is right", "only the other is right", "p", "Holm"])]
    lines.append(_row(["---", *["---:"] * 5]))
    for test in block.comparisons:
        numbers = (str(test.seeds), f"{test.wins:,}", f"{test.losses:,}", p_value(test.p), p_value(test.adjusted))
        lines.append(_row([_text(test.other), *numbers]))
    return "\n".join(lines)


def _runs(page: Page) -> str:
    lines = [_row(["record", "tables", "test exact match", "best epoch", "minutes", "command"])]
    lines.append(_row(["---", "---", "---:", "---:", "---:", "---"]))
    marked = set[str]()
    for run in page.runs:
        mark = "" if _anchor(run) in marked else f'<a id="{_anchor(run)}"></a>'
        marked.add(_anchor(run))
        tables = _text(", ".join(run.tables))
        if run.path is None:
            cells = [mark + _text(run.cell), tables, "missing", "", ""]
        else:
            em = run.metrics["test"]["overall"]["exact_match"]
            name = f"{mark}[{_text(run.cell)}]({page.link(run.path)})"
            cells = [name, tables, f"{em:.3f}", f"{run.best_epoch}", f"{run.minutes:.1f}"]
        code = run.command.replace("|", r"\|")  # even in code, a bar would end the cell
        lines.append(_row([*cells, f"`{code}`"]))
    return "\n".join(lines)


def _anchor(run: CellRun) -> str:
    """Return the anchor of the list of runs of a method on a data set."""
    return re.sub(r"[^A-Za-z0-9-]", "-", f"{run.data_set}-{run.method}")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    r"""Escape the special characters of Markdown.

    Example:
        >>> print(_text("L_dm^1 | <b>"))
        L\_dm^1 \| \<b>
    """
    return re.sub(r"([\\`*_\[\]<|])", r"\\\1", text)
