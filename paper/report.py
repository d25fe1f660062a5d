"""Write the report of the experiments, a Markdown page with figures, and show its tables in a terminal.

::

    OUT/
      <scale>.md
      <scale>/*.png
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from rich.table import Table
from rich.text import Text

from paper.blocks import NOTES, Block
from paper.markdown import Page, Picture, in_markdown
from paper.records import CellRun
from torchmultiset._files import write_whole
from torchmultiset.data.examples import Examples
from torchmultiset.viz.terminal import empty_table

__all__ = ["publish", "result_table"]

_NO_IMAGES = "Test images with predictions are left out: records hold no images, and the digits were not available."


def result_table(block: Block) -> Table:
    """Return one data set of one table for a terminal of 80 columns: metric after metric, ours beside the paper's."""
    table = empty_table()
    table.title = Text(block.title, style="bold")
    table.add_column("", max_width=32)
    beside = ("paper", "difference") if block.beside_paper else ()
    for name in ("ours", "± or 95%", *beside):
        table.add_column(name, justify="right", no_wrap=True)
    for metric, title in block.metrics.items():
        table.add_row(Text(title, style="italic"))
        for row in block.all_rows:
            score = row.scores[metric]
            papers = (score.papers, score.difference) if beside else ()
            table.add_row(Text(f"  {row.name}"), score.ours, score.reach, *papers)
        table.add_section()
    return table


def publish(
    out: str | Path,
    scale: str,
    runs: Sequence[CellRun],
    blocks: Sequence[Block],
    *,
    data: Mapping[str, Examples] | None = None,
    command: str,
) -> list[Path]:
    """Draw the whole report, then write it and remove figures of earlier reports.

    Args:
        out: Folder to write to.
        scale: Name of the scale.
        runs: From `read_runs`.
        blocks: From `summarise`.
        data: Data set -> its test examples, for images with predictions.
        command: Command that writes the report, for the page.

    Returns:
        Paths of all written files, the page last.
    """
    from paper.figures import losses_plot, plots, png
    from paper.gallery import galleries

    out = Path(out)

    def link(record: Path) -> str:
        return quote(Path(os.path.relpath(record, out)).as_posix())

    pictured = galleries(runs, data or {})
    drawn = [*losses_plot(blocks), *plots(runs), *pictured]
    notes = [*NOTES, *([] if pictured else [_NO_IMAGES])]
    files = {out / scale / f"{plot.name}.png": png(plot.figure) for plot in drawn}
    pictures = [
        Picture(plot.data_set, plot.caption, quote(f"{scale}/{path.name}"))
        for plot, path in zip(drawn, files, strict=True)
    ]
    files[out / f"{scale}.md"] = in_markdown(Page(scale, blocks, runs, pictures, notes, link, command)).encode()
    for path, content in files.items():
        write_whole(path, content)
    for path in (out / scale).glob("*.png"):
        if path not in files:
            path.unlink()
    return [*files]
