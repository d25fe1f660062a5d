"""The results of the experiments as Markdown, each number with a link to where it is from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torchmultiset.report.results import Run
from torchmultiset.report.summary import Block, Glance, Row, Score, at_a_glance, in_short, scale_note

__all__ = ["anchor", "in_markdown"]

Link = Callable[[Path], str]


def in_markdown(
    scale: str,
    blocks: Sequence[Block],
    runs: Sequence[Run],
    images: Sequence[tuple[str, str]],
    notes: Sequence[str],
    *,
    link: Link,
    command: str,
) -> str:
    """All tables, figures and runs.

    Args:
        scale: What the experiments' size is called.
        blocks: From `summarise`.
        runs: What they are made of, done or missing.
        images: Caption and address of each figure.
        notes: How to read it.
        link: Record -> its address, as seen from the page.
        command: What writes this page.
    """
    done = sum(run.done for run in runs)
    parts = [
        f"# Results, scale `{scale}`",
        f"Written by `{command}`: do not edit. {scale_note(scale)} {done} of {len(runs)} runs are done.",
        "\n".join(f"- {_text(note)}" for note in notes),
    ]
    for glance in at_a_glance(blocks):
        parts += [f"## Exact match at a glance: {_text(glance.title)}", _glance(glance, link)]
    for block in blocks:
        parts += [f"## {_text(block.title)}", _text(block.data), _table(block, link), _text(block.verdict)]
        if block.comparisons:
            parts.append(_comparisons(block))
    if images:
        parts += ["## Figures", *(f"![{_text(caption)}]({address})\n\n{_text(caption)}" for caption, address in images)]
    return "\n\n".join([*parts, "## Runs", _runs(runs, link)]) + "\n"


def anchor(run: Run) -> str:
    """The name of the place where the runs of a method are listed.

    Example:
        >>> from torchmultiset.report.results import run_of
        >>> about = {"data_set": "coco-easy", "method": "seq", "seed": 1, "tables": {}, "command": ""}
        >>> anchor(run_of({"cell": "coco-easy/seq/seed-1", **about}))
        'coco-easy-seq'
    """
    return re.sub(r"[^A-Za-z0-9-]", "-", f"{run.data_set}-{run.method}")


def _table(block: Block, link: Link) -> str:
    heads = [""]
    for title in block.metrics.values():
        heads += [title, "paper", "difference"] if block.beside_paper else [title]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for row in block.all_rows:
        cells = [_text(row.name)]
        for metric in block.metrics:
            score = row.scores[metric]
            cells += [_ours(row, score, link), *((score.papers, score.difference) if block.beside_paper else ())]
        lines.append(_row(cells))
    return "\n".join(lines)


def _glance(glance: Glance, link: Link) -> str:
    lines = [_row(["", *map(_text, glance.columns)]), _row(["---", *["---:"] * len(glance.columns)])]
    for title, rows in glance.rows.items():
        cells = ["-" if row is None else _ours(row, replace(row.scores["em"], interval=None), link) for row in rows]
        lines.append(_row([_text(title), *cells]))
    return "\n".join(lines)


def _ours(row: Row, score: Score, link: Link) -> str:
    if score.value is None or not row.runs:
        return score.ours
    run = row.runs[0]
    address = link(run.path) if len(row.runs) == 1 and run.path is not None else f"#{anchor(run)}"
    return f"[{score.ours}]({address}) {score.reach}".rstrip()


def _comparisons(block: Block) -> str:
    lines = [_row(["against", "seeds", "only it is right", "only the other is", "p", "Holm"])]
    lines.append(_row(["---", *["---:"] * 5]))
    for told in block.comparisons:
        numbers = (str(told.seeds), f"{told.wins:,}", f"{told.losses:,}", in_short(told.p), in_short(told.adjusted))
        lines.append(_row([_text(told.other), *numbers]))
    return "\n".join(lines)


def _runs(runs: Sequence[Run], link: Link) -> str:
    lines = [_row(["record", "of", "test exact match", "best epoch", "minutes", "command"])]
    lines.append(_row(["---", "---", "---:", "---:", "---:", "---"]))
    named = set()
    for run in runs:
        # The first of a method carries the name that numbers over several seeds link to.
        mark = "" if anchor(run) in named else f'<a id="{anchor(run)}"></a>'
        named.add(anchor(run))
        tables = _text(", ".join(run.tables))
        if run.path is None:
            cells = [mark + _text(run.cell), tables, "missing", "", ""]
        else:
            em = run.metrics["test"]["overall"]["exact_match"]
            name = f"{mark}[{_text(run.cell)}]({link(run.path)})"
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
