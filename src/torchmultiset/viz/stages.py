"""Table of the images that each stage of the COCO builder keeps, next to the paper's numbers."""

from __future__ import annotations

from rich.table import Table

from torchmultiset.data.coco import Coco, PaperCounts, Stage
from torchmultiset.viz.terminal import empty_table

__all__ = ["stages_table"]


def stages_table(coco: Coco, paper: PaperCounts) -> Table:
    """Return the stages as a table that fits a terminal of 80 columns, above the paper's (`data.coco.PAPER`)."""
    training, test, *parts = (
        [stage for stage in coco.stages if stage.split == split]
        for split in ("training", "test", "train", "validation")
    )
    table = empty_table("Kept by each stage")
    table.add_column("stage")
    for split in ("training", "test"):
        for unit in ("images", "objects", "classes"):
            table.add_column(f"{split if unit == 'images' else ''}\n{unit}", justify="right")
    for one, other in zip(training, test, strict=True):
        table.add_row(one.name, *_numbers(one), *_numbers(other))
    for (stage,) in parts:
        table.add_row(f"of these for {stage.split}", *_numbers(stage))
    table.add_section()
    table.add_row(
        "the paper, of train2014 and val2014", f"{paper.training:,}", "", str(paper.classes), f"{paper.test:,}"
    )
    return table


def _numbers(stage: Stage) -> list[str]:
    return [f"{number:,}" for number in (stage.images, stage.objects, stage.classes)]
