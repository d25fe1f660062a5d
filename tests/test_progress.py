"""What the command line shows while it trains."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from torchmultiset.cli.progress import TrainingProgress
from torchmultiset.training import Progress

pytestmark = pytest.mark.usefixtures("without_shape_hook")  # the task is none

LINE = {"loss": 1.0, "validation_em": 0.5, "validation_f1": 0.75}


def shown(*moments: Progress) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    optim = SimpleNamespace(epochs=3, batch_size=8)
    task = SimpleNamespace(config=SimpleNamespace(optim=optim), splits={"train": range(90)})
    watch = TrainingProgress(console).start(task)
    for progress in moments:
        watch(progress)
    return console.file.getvalue().splitlines()


def test_a_line_for_each_epoch_that_ends():
    lines = shown(Progress(), Progress(0, 1, 2.0), Progress(1, 0, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[:4] for line in lines] == [
        [f"epoch {epoch}/3", "loss 1.000", "validation EM 0.500", "F1 0.750"] for epoch in (1, 2)
    ]


def test_a_run_resumed_after_the_last_step_of_an_epoch_tells_its_end():
    lines = shown(Progress(1, 12, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[0] for line in lines] == ["epoch 2/3"]


def test_examples_seen():
    assert Progress().seen(90, 8) == 0
    assert Progress(2, 3).seen(90, 8) == 2 * 90 + 24
    assert Progress(2, 12).seen(90, 8) == 3 * 90
