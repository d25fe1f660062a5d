"""The results of the experiments as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from torchmultiset.report.blocks import Block, Glance, Row, Score, at_a_glance, in_short
from torchmultiset.report.contents import Contents, Picture, anchor

__all__ = ["in_html"]

# What is wider than the screen scrolls in its own frame, so that the page itself never does.
_STYLE = """
body { margin: 0 auto; max-width: 76rem; padding: 0 1rem 3rem; font: 1rem/1.5 system-ui, sans-serif; color: #1f2328;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; }
p, details > ul, figcaption { max-width: 56rem; }
a { color: #0550ae; }
nav ul { padding-left: 1.2rem; } nav li { margin: .3rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #d0d7de; }
th:first-child, td:first-child, .text { text-align: left; }
table.glance th { min-width: 4.5rem; white-space: normal; vertical-align: bottom; }
table.results tr > :first-child { position: sticky; left: 0; min-width: 6rem; max-width: 20rem; white-space: normal;
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


def in_html(contents: Contents) -> str:
    """All of it as one page, figures included."""
    title = f"torchmultiset: results, scale {contents.scale}"
    items = "".join(f"<li>{escape(note)}</li>" for note in contents.notes)
    glances = at_a_glance(contents.blocks)
    tables = "".join(_glance(i, glance) for i, glance in enumerate(glances))
    tables += "".join(_block(i, block) for i, block in enumerate(contents.blocks))
    figures = "".join(_figures(i, *each) for i, each in enumerate(contents.figures.items()))
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
paper's. {escape(contents.state)} Written by <code>{escape(contents.command)}</code>.</p>
<nav><ul>{_places(contents, glances)}</ul></nav>
<details><summary>How to read the tables</summary><ul>{items}</ul></details>
{tables}
<h2 id="figures">Figures</h2>
{figures}
<h2 id="runs">Runs</h2>
{_runs(contents)}
</body>
</html>
"""


def _places(contents: Contents, glances: Sequence[Glance]) -> str:
    """A line for each table, with links to all that there is of it."""
    lines: dict[str, list[tuple[str, str]]] = {block.table_title: [] for block in contents.blocks}
    for i, glance in enumerate(glances):
        lines[glance.title].append((f"glance-{i}", "at a glance"))
    for i, block in enumerate(contents.blocks):
        lines[block.table_title].append((f"table-{i}", block.column))
    lines["Figures"] = [(f"figures-{i}", data_set) for i, data_set in enumerate(contents.figures)]
    lines["Runs"] = [("runs", "records and commands")]
    found = []
    for title, places in lines.items():
        links = " · ".join(f'<a href="#{at}">{escape(name)}</a>' for at, name in places)
        found.append(f"<li>{escape(title)}: {links}</li>")
    return "".join(found)


def _glance(number: int, glance: Glance) -> str:
    heads = "".join(f'<th class="group">{escape(name)}</th>' for name in glance.columns)
    rows = []
    for title, of in glance.rows.items():
        cells = (
            '<td class="group">-</td>'
            if row is None
            else _cells(row, replace(row.scores["em"], interval=None), beside=False)
            for row in of
        )
        rows.append(f"<tr><td>{escape(title)}</td>{''.join(cells)}</tr>")
    return f"""
<h2 id="glance-{number}">Exact match at a glance: {escape(glance.title)}</h2>
<div class="wide"><table class="results glance">
<thead><tr><th></th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody>
</table></div>"""


def _block(number: int, block: Block) -> str:
    beside = block.beside_paper
    span = 3 if beside else 1
    groups = "".join(f'<th colspan="{span}" class="group">{escape(title)}</th>' for title in block.metrics.values())
    each = '<th class="group">ours</th><th>paper</th><th>difference</th>' * len(block.metrics)
    second = f"<tr><th></th>{each}</tr>" if beside else ""
    rows = []
    for row in block.all_rows:
        kind = ' class="constant"' if row is block.constant else ""
        cells = "".join(_cells(row, row.scores[metric], beside=beside) for metric in block.metrics)
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


def _cells(row: Row, score: Score, *, beside: bool) -> str:
    if score.value is None or not row.runs:
        ours = f'<td class="group missing">{escape(score.ours)}</td>'
    else:
        about = escape("\n".join(run.command for run in row.runs))
        # To the list of runs, which has record and command: the page may be read where the records are not.
        number = f'<a href="#{escape(anchor(row.runs[0]))}" title="{about}">{escape(score.ours)}</a>'
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


def _figures(number: int, data_set: str, pictures: Sequence[Picture]) -> str:
    return f'<h3 id="figures-{number}">{escape(data_set)}</h3>\n{"".join(map(_figure, pictures))}'


def _figure(picture: Picture) -> str:
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    words = escape(picture.caption)
    return f"""<figure><div class="wide"><img alt="{words}" src="{source}"></div>
<figcaption>{words}</figcaption></figure>
"""


def _runs(contents: Contents) -> str:
    rows = []
    for run, name in contents.runs_and_anchors():
        mark = name and f' id="{name}"'
        tables = f'<td class="text">{escape(", ".join(run.tables))}</td>'
        if run.path is None:
            told = f'<td>{escape(run.cell)}</td>{tables}<td class="missing">missing</td><td></td><td></td>'
        else:
            em = run.metrics["test"]["overall"]["exact_match"]
            told = f'<td><a href="{escape(contents.link(run.path))}">{escape(run.cell)}</a></td>{tables}'
            told += f"<td>{em:.3f}</td><td>{run.best_epoch}</td><td>{run.minutes:.1f}</td>"
        rows.append(f'<tr{mark}>{told}<td class="text"><code>{escape(run.command)}</code></td></tr>')
    heads = "".join(f"<th>{name}</th>" for name in ("test exact match", "best epoch", "minutes"))
    return f"""<div class="wide"><table>
<thead><tr><th>record</th><th class="text">of</th>{heads}<th class="text">command</th></tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""
