"""What a report of the experiments holds, whatever it is written as."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmultiset.report.blocks import Block, Row, scale_note
from torchmultiset.report.results import Run

__all__ = ["Contents", "Picture", "anchor"]


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        data_set: What it is about.
        caption: What it shows.
        address: Where its file is, as seen from the page.
        png: The file's content.
    """

    data_set: str
    caption: str
    address: str
    png: bytes


@dataclass(frozen=True)
class Contents:
    """All tables, figures and runs.

    Attributes:
        scale: What the experiments' size is called.
        blocks: From `summarise`.
        runs: What they are made of, done or missing.
        pictures: The figures.
        notes: How to read it.
        link: Record -> its address, as seen from the page.
        command: What writes the report.
    """

    scale: str
    blocks: Sequence[Block]
    runs: Sequence[Run]
    pictures: Sequence[Picture]
    notes: Sequence[str]
    link: Callable[[Path], str]
    command: str

    @property
    def state(self) -> str:
        """How large the experiments are, and how many of them are done."""
        done = sum(run.done for run in self.runs)
        return f"{scale_note(self.scale)} {done} of {len(self.runs)} runs are done."

    @property
    def figures(self) -> dict[str, list[Picture]]:
        """Data set, in words -> its pictures."""
        words = {block.data_set: block.column for block in reversed(self.blocks)}
        found: dict[str, list[Picture]] = {}
        for picture in self.pictures:
            found.setdefault(words.get(picture.data_set, picture.data_set), []).append(picture)
        return found

    def address(self, row: Row) -> str:
        """Where the numbers of a row are from: its record, or the list of its runs if there are several."""
        run = row.runs[0]
        return self.link(run.path) if len(row.runs) == 1 and run.path is not None else f"#{anchor(run)}"

    def runs_and_anchors(self) -> list[tuple[Run, str]]:
        """Each run, the first of a method with the name that numbers over several seeds link to, the others with ""."""
        first = {anchor(run): run for run in reversed(self.runs)}
        return [(run, anchor(run) if first[anchor(run)] is run else "") for run in self.runs]


def anchor(run: Run) -> str:
    """The name of the place where the runs of a method are listed.

    Example:
        >>> from torchmultiset.report.results import run_of
        >>> about = {"data_set": "coco-easy", "method": "seq", "seed": 1, "tables": {}, "command": ""}
        >>> anchor(run_of({"cell": "coco-easy/seq/seed-1", **about}))
        'coco-easy-seq'
    """
    return re.sub(r"[^A-Za-z0-9-]", "-", f"{run.data_set}-{run.method}")
