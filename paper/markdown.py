"""The results as a Markdown page, with a link from each number to its record."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paper.blocks import LOSSES, Block, MethodScores, Overview, Score, overviews, p_value
from paper.records import CellRun

__all__ = ["Page", "Picture", "in_markdown"]

_BESIDE = "Losses beside the paper"
_SHORT = "Losses in short"
_LEAD = "Test exact match of the losses of the paper's Table 3, in short:"
_NOTES = "How to read these tables"
_TRAINING_DIGITS = (
    "Unseen digits occur in no training image. Training digits are a second test set: new images of digits that also"
    " occur in training images. By the authors' published generator, the paper's test images are of this kind."
)


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
    """Return the page as Markdown: what was found, the tables, the figures, the runs, and how to read them."""
    done = sum(run.done for run in page.runs)
    scale = "" if page.scale == "paper" else f" Ours are at the scale {page.scale}, the paper's at full scale."
    losses = [block for block in page.blocks if block.table == LOSSES and block.results]
    lead = next((picture for picture in page.pictures if losses and "/curves-" in picture.address), None)
    parts = [f"# Results, scale `{page.scale}`"]
    if losses:
        parts += [_LEAD, "\n".join(_found(block) for block in losses), f"## Exact match at a glance: {_BESIDE}"]
        parts += [_beside(losses, page), _TRAINING_DIGITS] if _has_seen(losses) else [_beside(losses, page)]
    if lead is not None:
        parts.append(_figure(lead))
    if len(losses) > 1:
        parts += [f"## Exact match at a glance: {_SHORT}", _short(losses, page)]
    parts.append(
        f"Written by `{page.command}`: do not edit.{scale} {done} of {len(page.runs)} runs are done,"
        f" {len(page.runs) - done} are still to be run. The tables at a glance leave out rows and columns without a"
        f" result. [{_NOTES}](#{_NOTES.lower().replace(' ', '-')}) is at the end."
    )
    for overview in overviews(page.blocks):
        parts += [f"## Exact match at a glance: {_text(overview.title)}", _overview(overview, page)]
    for block in page.blocks:
        if not block.results:
            continue
        parts += [f"## {_text(block.title)}", _text(block.data), _scores(block, page), _text(block.verdict)]
        if block.comparisons:
            parts.append(_comparisons(block))
    others = [picture for picture in page.pictures if picture is not lead]
    if others:
        parts.append("## Figures")
    titles = {block.data_set: block.column for block in reversed(page.blocks)}
    for data_set in dict.fromkeys(picture.data_set for picture in others):
        parts.append(f"### {_text(titles.get(data_set, data_set))}")
        parts += [_figure(picture) for picture in others if picture.data_set == data_set]
    missing = [block for block in page.blocks if not block.results]
    if missing:
        parts += [
            "## Tables without a result",
            "\n".join(f"- {_text(f'{each.title}. {each.data}')}" for each in missing),
        ]
    notes = "\n".join(f"- {_text(note)}" for note in page.notes)
    return "\n\n".join([*parts, "## Runs", _runs(page), f"## {_NOTES}", notes]) + "\n"


def _found(block: Block) -> str:
    """Return what the runs of a block of Table 3 say about the paper's numbers."""
    rows, all_losses = block.results, len(block.rows)
    epochs = sorted({len(run.epochs()) for row in rows for run in row.runs})
    head = f"- **{_text(block.column)}**, {' or '.join(map(str, epochs))} epochs: "
    if len(rows) == 1:
        (row,) = rows
        score = row.scores["em"]
        seen = "" if row.seen.value is None else f" on unseen digits and {row.seen.ours} on training digits"
        found = f"{row.title} has {score.ours}{seen}; the paper has {score.papers}."
        left = all_losses - 1
        return head + _text(found + (f" Still to be run: {left} other losses." if left else ""))
    scores = [row.scores["em"] for row in rows]
    found = (
        f"at or above the paper's exact match: {sum(_reaches(score, score) for score in scores)} of {len(rows)} losses"
    )
    if all(row.seen.value is not None for row in rows):
        found += f", and {sum(_reaches(row.seen, row.scores['em']) for row in rows)} on training digits"
    return head + _text(f"{found}. {block.verdict}")


def _reaches(ours: Score, beside: Score) -> bool:
    return ours.value is not None and beside.paper is not None and ours.value >= beside.paper


def _has_seen(blocks: Sequence[Block]) -> bool:
    return any(row.seen.value is not None for block in blocks for row in block.results)


def _beside(blocks: Sequence[Block], page: Page) -> str:
    """Return the losses that have a result, beside the paper's numbers; also on training digits, if there are any."""
    seen = _has_seen(blocks)
    heads = ["data", "loss", *(["ours, unseen digits", "ours, training digits"] if seen else ["ours"]), "paper"]
    rows = []
    for block in blocks:
        for number, row in enumerate(block.results):
            score = replace(row.scores["em"], interval=None)
            cells = [_text(block.column) if number == 0 else "", _text(row.title), _ours(row, score, page)]
            rows.append([*cells, *([_ours(row, row.seen, page)] if seen else []), score.papers])
    return _table(heads, rows, texts=(0, 1))


def _short(blocks: Sequence[Block], page: Page) -> str:
    """Return a row for each loss, with its exact match on each data set and the paper's number in parentheses."""
    titles = dict.fromkeys(row.title for block in blocks for row in block.results)
    rows = []
    for title in titles:
        cells = []
        for block in blocks:
            found = [row for row in block.results if row.title == title]
            score = replace(found[0].scores["em"], interval=None) if found else None
            cells.append(f"{_ours(found[0], score, page)} ({score.papers})" if score else "-")
        rows.append([_text(title), *cells])
    return _table(["loss", *(_text(block.column) for block in blocks)], rows)


def _figure(picture: Picture) -> str:
    caption = _text(picture.caption)
    return f"![{caption}]({picture.address})\n\n{caption}"


def _scores(block: Block, page: Page) -> str:
    heads, rows = [""], []
    for title in block.metrics.values():
        heads += [title, "paper", "difference"] if block.beside_paper else [title]
    for row in block.all_rows:
        cells = [_text(row.name)]
        for metric in block.metrics:
            score = row.scores[metric]
            cells += [_ours(row, score, page), *((score.papers, score.difference) if block.beside_paper else ())]
        rows.append(cells)
    return _table(heads, rows)


def _overview(overview: Overview, page: Page) -> str:
    def cell(row: MethodScores | None) -> str:
        return "-" if row is None else _ours(row, replace(row.scores["em"], interval=None), page)

    rows = ([_text(title), *map(cell, some)] for title, some in overview.rows.items())
    return _table(["", *map(_text, overview.columns)], rows)


def _ours(row: MethodScores, score: Score, page: Page) -> str:
    """Return a number with a link to its record, or to the list of its runs if there are several."""
    if score.value is None or not row.runs:
        return score.ours
    run = row.runs[0]
    address = page.link(run.path) if len(row.runs) == 1 and run.path is not None else f"#{_anchor(run)}"
    return f"[{score.ours}]({address}) {score.reach}".rstrip()


def _comparisons(block: Block) -> str:
    heads = ["against", "seeds", "only the first is right", "only the other is right", "p", "Holm"]
    rows = []
    for test in block.comparisons:
        numbers = (str(test.seeds), f"{test.wins:,}", f"{test.losses:,}", p_value(test.p), p_value(test.adjusted))
        rows.append([_text(test.other), *numbers])
    return _table(heads, rows)


def _runs(page: Page) -> str:
    rows, marked = [], set[str]()
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
        rows.append([*cells, f"`{code}`"])
    heads = ["record", "tables", "test exact match", "best epoch", "minutes", "command"]
    return _table(heads, rows, texts=(0, 1, 5))


def _anchor(run: CellRun) -> str:
    """Return the anchor of the list of runs of a method on a data set."""
    return re.sub(r"[^A-Za-z0-9-]", "-", f"{run.data_set}-{run.method}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Collection[int] = (0,)) -> str:
    """Return a table; columns are aligned right, as numbers are, except for those of `texts`."""
    line = ["---" if i in texts else "---:" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, line, *rows))


def _text(text: str) -> str:
    r"""Escape the special characters of Markdown.

    Example:
        >>> print(_text("L_dm^1 | <b>"))
        L\_dm^1 \| \<b>
    """
    return re.sub(r"([\\`*_\[\]<|])", r"\\\1", text)
