"""Write the report of the experiments: Markdown, figures, and the one HTML page.

::

    OUT/
      <scale>.md
      <scale>.html      needs nothing else
      <scale>/*.png     the figures of the Markdown page
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from torchmultiset._files import write_whole
from torchmultiset.data.examples import Examples
from torchmultiset.report.blocks import NOTES, Block
from torchmultiset.report.contents import Contents, Picture
from torchmultiset.report.markdown import in_markdown
from torchmultiset.report.page import in_html
from torchmultiset.report.results import Run

__all__ = ["publish"]

_NO_IMAGES = (
    "Test images with their predictions are left out: records hold no images, and the generated data was not at hand."
)


def publish(
    out: str | Path,
    scale: str,
    runs: Sequence[Run],
    blocks: Sequence[Block],
    *,
    data: Mapping[str, Examples] | None = None,
    command: str,
) -> list[Path]:
    """Draw and write all of it; nothing is written before everything is made.

    Args:
        out: Folder to write to.
        scale: What the experiments' size is called.
        runs: From `read_runs`.
        blocks: From `summarise`.
        data: Data set -> its test examples, for pictures with predictions.
        command: What writes the report, as the pages say it.

    Returns:
        What was written.
    """
    from torchmultiset.report.gallery import galleries
    from torchmultiset.report.plots import plots, png

    out = Path(out)

    def link(record: Path) -> str:
        return quote(Path(os.path.relpath(record, out)).as_posix())

    pictured = galleries(runs, data or {})
    drawn = [*plots(runs), *pictured]
    notes = [*NOTES, *([] if pictured else [_NO_IMAGES])]
    files = {out / scale / f"{plot.name}.png": png(plot.figure) for plot in drawn}
    pictures = [
        Picture(plot.data_set, plot.caption, quote(f"{scale}/{path.name}"), content)
        for plot, (path, content) in zip(drawn, files.items(), strict=True)
    ]
    contents = Contents(scale, blocks, runs, pictures, notes, link=link, command=command)
    files[out / f"{scale}.md"] = in_markdown(contents).encode()
    files[out / f"{scale}.html"] = in_html(contents).encode()
    for path, content in files.items():
        write_whole(path, content)
    return [*files]
