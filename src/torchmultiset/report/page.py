"""The results of the experiments as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from torchmultiset.report.markdown import anchor
from torchmultiset.report.results import Run
from torchmultiset.report.summary import Block, Glance, Row, Score, at_a_glance, in_short, scale_note

__all__ = ["in_html"]

Link = Callable[[Path], str]

# What is wider than the screen scrolls in its own frame, so that the page itself never does.
_STYLE = """
body { margin: 0 auto; max-width: 64rem; padding: 0 1rem 3rem; font: 1rem/1.5 system-ui, sans-serif; color: #1f2328;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
a { color: #0550ae; }
nav ul { columns: 18rem; padding-left: 1.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #d0d7de; }
th:first-child, td:first-child, td.text { text-align: left; }
table.results td:first-child { position: sticky; left: 0; min-width: 6rem; max-width: 9rem; white-space: normal;
  background: inherit; }
table.results tr { background: #fff; }
th[colspan] { text-align: center; }
th.group, td.group { border-left: 1px solid #d0d7de; }
td small { color: #57606a; }
td.missing { color: #9a6700; font-style: italic; }
table.results tr.constant { background: #f6f8fa; }
.verdict { font-weight: 600; }
figure { margin: 1.5rem 0; } figcaption { color: #57606a; font-size: .9rem; }
img { display: block; width: 100%; min-width: 36rem; max-width: 56rem; height: auto; }
summary { cursor: pointer; }
"""


def in_html(
    scale: str,
    blocks: Sequence[Block],
    runs: Sequence[Run],
    images: Sequence[tuple[str, bytes]],
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
        images: Caption and PNG of each figure.
        notes: How to read it.
        link: Record -> its address, as seen from the page.
        command: What writes this page.
    """
    done = sum(run.done for run in runs)
    title = f"torchmultiset: results, scale {scale}"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    glances = at_a_glance(blocks)
    heads = [*((f"glance-{i}", f"Exact match at a glance: {glance.title}") for i, glance in enumerate(glances))]
    heads += [
        *((f"table-{i}", block.title) for i, block in enumerate(blocks)),
        ("figures", "Figures"),
        ("runs", "Runs"),
    ]
    contents = "".join(f'<li><a href="#{at}">{escape(name)}</a></li>' for at, name in heads)
    tables = "".join(_glance(i, glance, link) for i, glance in enumerate(glances))
    tables += "".join(_block(i, block, link) for i, block in enumerate(blocks))
    figures = "".join(_figure(caption, content) for caption, content in images)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>The experiments of <cite>Loss Functions for Multiset Prediction</cite> (Welleck et al., 2018), ours beside the
paper's. {escape(scale_note(scale))} {done} of {len(runs)} runs are done. Written by <code>{escape(command)}</code>.</p>
<nav><ul>{contents}</ul></nav>
<details><summary>How to read the tables</summary><ul>{items}</ul></details>
{tables}
<h2 id="figures">Figures</h2>
{figures}
<h2 id="runs">Runs</h2>
{_runs(runs, link)}
</body>
</html>
"""


def _glance(number: int, glance: Glance, link: Link) -> str:
    heads = "".join(f'<th class="group">{escape(name)}</th>' for name in glance.columns)
    rows = []
    for title, of in glance.rows.items():
        cells = (
            '<td class="group">-</td>'
            if row is None
            else _cells(row, replace(row.scores["em"], interval=None), link, beside=False)
            for row in of
        )
        rows.append(f"<tr><td>{escape(title)}</td>{''.join(cells)}</tr>")
    return f"""
<h2 id="glance-{number}">Exact match at a glance: {escape(glance.title)}</h2>
<div class="wide"><table class="results">
<thead><tr><th></th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody>
</table></div>"""


def _block(number: int, block: Block, link: Link) -> str:
    beside = block.beside_paper
    span = 3 if beside else 1
    groups = "".join(f'<th colspan="{span}" class="group">{escape(title)}</th>' for title in block.metrics.values())
    each = '<th class="group">ours</th><th>paper</th><th>difference</th>' * len(block.metrics)
    second = f"<tr><th></th>{each}</tr>" if beside else ""
    rows = []
    for row in block.all_rows:
        kind = ' class="constant"' if row is block.constant else ""
        cells = "".join(_cells(row, row.scores[metric], link, beside=beside) for metric in block.metrics)
        rows.append(f"<tr{kind}><td>{escape(row.name)}</td>{cells}</tr>")
    return f"""
<h2 id="table-{number}">{escape(block.title)}</h2>
<p>{escape(block.data)}</p>
<div class="wide"><table class="results">
<thead><tr><th></th>{groups}</tr>{second}</thead>
<tbody>{"".join(rows)}</tbody>
</table></div>
<p class="verdict">{escape(block.verdict)}</p>
{_comparisons(block)}"""


def _cells(row: Row, score: Score, link: Link, *, beside: bool) -> str:
    if score.value is None or not row.runs:
        ours = f'<td class="group missing">{escape(score.ours)}</td>'
    else:
        run = row.runs[0]
        address = link(run.path) if len(row.runs) == 1 and run.path is not None else f"#{anchor(run)}"
        about = escape("\n".join(run.command for run in row.runs))
        number = f'<a href="{escape(address)}" title="{about}">{escape(score.ours)}</a>'
        ours = f'<td class="group">{number} <small>{escape(score.reach)}</small></td>'
    return f"{ours}<td>{escape(score.papers)}</td><td>{escape(score.difference)}</td>" if beside else ours


def _comparisons(block: Block) -> str:
    if not block.comparisons:
        return ""
    rows = "".join(
        f"<tr><td>{escape(told.other)}</td><td>{told.seeds}</td><td>{told.wins:,}</td><td>{told.losses:,}</td>"
        f"<td>{escape(in_short(told.p))}</td><td>{escape(in_short(told.adjusted))}</td></tr>"
        for told in block.comparisons
    )
    heads = "".join(f"<th>{name}</th>" for name in ("against", "seeds", "only it is right", "only the other is"))
    return f"""<details><summary>The paired tests</summary><div class="wide"><table>
<thead><tr>{heads}<th>p</th><th>Holm</th></tr></thead><tbody>{rows}</tbody></table></div></details>"""


def _figure(caption: str, content: bytes) -> str:
    source = f"data:image/png;base64,{b64encode(content).decode()}"
    words = escape(caption)
    return f"""<figure><div class="wide"><img alt="{words}" src="{source}"></div>
<figcaption>{words}</figcaption></figure>
"""


def _runs(runs: Sequence[Run], link: Link) -> str:
    rows, named = [], set()
    for run in runs:
        # The first of a method carries the name that numbers over several seeds link to.
        mark = "" if anchor(run) in named else f' id="{anchor(run)}"'
        named.add(anchor(run))
        tables = f'<td class="text">{escape(", ".join(run.tables))}</td>'
        if run.path is None:
            told = f'<td>{escape(run.cell)}</td>{tables}<td class="missing">missing</td><td></td><td></td>'
        else:
            em = run.metrics["test"]["overall"]["exact_match"]
            told = f'<td><a href="{escape(link(run.path))}">{escape(run.cell)}</a></td>{tables}'
            told += f"<td>{em:.3f}</td><td>{run.best_epoch}</td><td>{run.minutes:.1f}</td>"
        rows.append(f'<tr{mark}>{told}<td class="text"><code>{escape(run.command)}</code></td></tr>')
    heads = "".join(f"<th>{name}</th>" for name in ("record", "of", "test exact match", "best epoch", "minutes"))
    return f"""<div class="wide"><table>
<thead><tr>{heads}<th>command</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>"""
