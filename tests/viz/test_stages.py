from __future__ import annotations

import io

from rich.console import Console

from torchmultiset.data.coco import Coco, CocoRules, PaperCounts, Stage
from torchmultiset.data.examples import Examples
from torchmultiset.viz.stages import stages_table


def test_the_table_compares_stages_with_the_paper_in_80_columns(monkeypatch):
    nothing = Examples.__new__(Examples)
    stages = (
        Stage("training", "all annotations", 82_783, 604_907, 80),
        Stage("training", "large objects: area above 1,362.41", 80_000, 360_000, 79),
        Stage("train", "held out", 68_001, 300_001, 78),
        Stage("validation", "held out", 11_999, 59_999, 77),
        Stage("test", "all annotations", 40_504, 291_875, 76),
        Stage("test", "large objects: area above 1,362.41", 40_000, 170_000, 75),
    )
    coco = Coco(nothing, nothing, nothing, CocoRules(), 1362.41, stages)
    text = io.StringIO()
    Console(file=text, width=80).print(stages_table(coco, PaperCounts(10_230, 5_107, 24)))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80

    def row(start: str) -> list[str]:
        (line,) = (line for line in lines if line.startswith(start))
        return line.removeprefix(start).split()

    assert row("all annotations") == ["82,783", "604,907", "80", "40,504", "291,875", "76"]
    assert row("large objects: area above") == ["80,000", "360,000", "79", "40,000", "170,000", "75"]
    assert row("of these for train") == ["68,001", "300,001", "78"]
    assert row("of these for validation") == ["11,999", "59,999", "77"]
    assert row("the paper, of train2014")[-3:] == ["10,230", "24", "5,107"]
