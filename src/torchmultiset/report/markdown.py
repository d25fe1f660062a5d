"""The results of the experiments as Markdown, each number with a link to where it is from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torchmultiset.report.blocks import Block, Glance, Row, Score, at_a_glance, in_short
from torchmultiset.report.contents import Contents

__all__ = ["in_markdown"]


def in_markdown(contents: Contents) -> str:
    """All of it as one page, with the figures beside it."""
    parts = [
        f"# Results, scale `{contents.scale}`",
        f"Written by `{contents.command}`: do not edit. {contents.state}",
        "\n".join(f"- {_text(note)}" for note in contents.notes),
    ]
    for glance in at_a_glance(contents.blocks):
        parts += [f"## Exact match at a glance: {_text(glance.title)}", _glance(glance, contents)]
    for block in contents.blocks:
        parts += [f"## {_text(block.title)}", _text(block.data), _table(block, contents), _text(block.verdict)]
        if block.comparisons:
            parts.append(_comparisons(block))
    if contents.pictures:
        parts.append("## Figures")
    for data_set, pictures in contents.figures.items():
        figures = ((_text(picture.caption), picture.address) for picture in pictures)
        parts += [f"### {_text(data_set)}", *(f"![{caption}]({address})\n\n{caption}" for caption, address in figures)]
    return "\n\n".join([*parts, "## Runs", _runs(contents)]) + "\n"


def _table(block: Block, contents: Contents) -> str:
    heads = [""]
    for title in block.metrics.values():
        heads += [title, "paper", "difference"] if block.beside_paper else [title]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for row in block.all_rows:
        cells = [_text(row.name)]
        for metric in block.metrics:
            score = row.scores[metric]
            cells += [_ours(row, score, contents), *((score.papers, score.difference) if block.beside_paper else ())]
        lines.append(_row(cells))
    return "\n".join(lines)


def _glance(glance: Glance, contents: Contents) -> str:
    lines = [_row(["", *map(_text, glance.columns)]), _row(["---", *["---:"] * len(glance.columns)])]
    for title, rows in glance.rows.items():
        cells = ["-" if row is None else _ours(row, replace(row.scores["em"], interval=None), contents) for row in rows]
        lines.append(_row([_text(title), *cells]))
    return "\n".join(lines)


def _ours(row: Row, score: Score, contents: Contents) -> str:
    if score.value is None or not row.runs:
        return score.ours
    return f"[{score.ours}]({contents.address(row)}) {score.reach}".rstrip()


def _comparisons(block: Block) -> str:
    lines = [_row(["against", "seeds", "only it is right", "only the other is", "p", "Holm"])]
    lines.append(_row(["---", *["---:"] * 5]))
    for told in block.comparisons:
        numbers = (str(told.seeds), f"{told.wins:,}", f"{told.losses:,}", in_short(told.p), in_short(told.adjusted))
        lines.append(_row([_text(told.other), *numbers]))
    return "\n".join(lines)


def _runs(contents: Contents) -> str:
    lines = [_row(["record", "of", "test exact match", "best epoch", "minutes", "command"])]
    lines.append(_row(["---", "---", "---:", "---:", "---:", "---"]))
    for run, anchor in contents.runs_and_anchors():
        mark = anchor and f'<a id="{anchor}"></a>'
        tables = _text(", ".join(run.tables))
        if run.path is None:
            cells = [mark + _text(run.cell), tables, "missing", "", ""]
        else:
            em = run.metrics["test"]["overall"]["exact_match"]
            name = f"{mark}[{_text(run.cell)}]({contents.link(run.path)})"
            cells = [name, tables, f"{em:.3f}", f"{run.best_epoch}", f"{run.minutes:.1f}"]
        code = run.command.replace("|", r"\|")  # a table's cell ends at each other one, even in code
        lines.append(_row([*cells, f"`{code}`"]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    r"""Plain text, whatever signs are in it.

    Example:
        >>> print(_text("L_dm^1 | <b>"))
        L\_dm^1 \| \<b>
    """
    return re.sub(r"([\\`*_\[\]<|])", r"\\\1", text)
